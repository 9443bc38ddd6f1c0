"""Signed documents: the RFCs' vectors, and nothing but the signer's own bytes is accepted."""

from __future__ import annotations

import base64
import json
import os
import pickle
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from dewmark.errors import InputError, KeyFileError, SignatureError, StorageError
from dewmark_desk.signing import SigningKey, VerifyingKey, canonical_json, load_signers, verify

# RFC 8037, appendix A: the key, its thumbprint and the signature of a message.
D = "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"
JWK = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
THUMBPRINT = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
MESSAGE = b"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc"
SIGNATURE = "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


PRIVATE = Ed25519PrivateKey.from_private_bytes(unb64(D))
KEY = SigningKey(PRIVATE)
CLAIMS = {"document": "x", "verdict": "marked", "p_value": 1e-06, "name": "Brücke", "n": None}


@pytest.mark.parametrize(
    ("load", "message"),
    [(SigningKey.load, "no signing key .*make it"), (load_signers, "cannot read public key .*No such file")],
)
def test_a_missing_key_is_reported(tmp_path, load, message) -> None:
    with pytest.raises(KeyFileError, match=message):
        load(tmp_path / "none")


@pytest.mark.parametrize("load", [SigningKey.load, load_signers])
@pytest.mark.parametrize("place", ["fifo", "/dev/zero", "deep.jwk"])
def test_only_a_small_regular_file_is_read(tmp_path, load, place) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "deep.jwk").write_text("[" * 10**5)
    with pytest.raises(KeyFileError, match="not a regular file|expected a JWK|not an unencrypted"):
        load(tmp_path / place)


def test_agrees_with_the_vectors_of_rfc_8037() -> None:
    assert VerifyingKey.from_jwk(JWK) == KEY.public
    assert KEY.public.id == THUMBPRINT
    assert PRIVATE.sign(MESSAGE) == unb64(SIGNATURE)
    message, _, signature = KEY.sign(CLAIMS, kind="x").rpartition(".")
    assert unb64(signature) == PRIVATE.sign(message.encode())


def test_a_document_says_what_it_is_and_who_signed_it() -> None:
    signed = verify(KEY.sign(CLAIMS, kind="detection-report"), [SigningKey.generate().public, KEY.public])
    assert (signed.kind, signed.payload, signed.signer) == ("detection-report", CLAIMS, THUMBPRINT)


def test_one_kind_of_document_does_not_pass_for_another() -> None:
    with pytest.raises(SignatureError, match="is a dossier, not a detection-report"):
        verify(KEY.sign(CLAIMS, kind="dossier"), [KEY.public], kind="detection-report")


def test_signing_is_deterministic_and_ignores_the_order_of_names() -> None:
    reordered = dict(reversed(CLAIMS.items()))
    assert KEY.sign(CLAIMS, kind="x") == KEY.sign(reordered, kind="x")


@given(st.data())
def test_a_document_with_any_changed_character_is_rejected(data: st.DataObject) -> None:
    document = KEY.sign(CLAIMS, kind="x")
    place = data.draw(st.integers(0, len(document) - 1))
    other = data.draw(
        st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.").filter(
            lambda c: c != document[place]
        )
    )
    reason = "not a signed document"
    if "." not in (other, document[place]):
        reason += "|signature is wrong"
        if place < document.index("."):
            reason += "|alg, kid and typ|signed with EdDSA|typ is unknown|signer that is not trusted"
    with pytest.raises(SignatureError, match=reason):
        verify(document[:place] + other + document[place + 1 :], [KEY.public])


@pytest.mark.parametrize(
    ("header", "payload", "reason"),
    [
        ({"alg": "none"}, CLAIMS, "alg, kid and typ"),
        ({"alg": "HS256", "kid": THUMBPRINT, "typ": "dewmark-x+jws"}, CLAIMS, "EdDSA"),
        ({"alg": "EdDSA", "kid": THUMBPRINT, "typ": "JWT"}, CLAIMS, "typ is unknown"),
        ({"alg": "EdDSA", "kid": THUMBPRINT, "typ": "dewmark-x+jws", "crit": ["b"]}, CLAIMS, "nothing else"),
        ({"alg": "EdDSA", "kid": "other", "typ": "dewmark-x+jws"}, CLAIMS, "not trusted here"),
        ({"alg": "EdDSA", "kid": THUMBPRINT, "typ": "dewmark-x+jws"}, [1], "canonical"),
    ],
)
def test_headers_and_payloads_that_we_never_write_are_rejected(header, payload, reason) -> None:
    message = f"{b64(canonical_json(header))}.{b64(canonical_json(payload))}"
    document = f"{message}.{b64(PRIVATE.sign(message.encode()))}"
    with pytest.raises(SignatureError, match=reason):
        verify(document, [KEY.public])


def test_a_signed_payload_with_duplicate_names_is_rejected() -> None:
    header = canonical_json({"alg": "EdDSA", "kid": THUMBPRINT, "typ": "dewmark-x+jws"})
    payload = b'{"verdict":"marked","verdict":"not_marked"}'
    message = f"{b64(header)}.{b64(payload)}"
    with pytest.raises(SignatureError, match="canonical"):
        verify(f"{message}.{b64(PRIVATE.sign(message.encode()))}", [KEY.public])


def test_a_signed_header_with_spaces_is_rejected() -> None:
    header = json.dumps({"alg": "EdDSA", "kid": THUMBPRINT, "typ": "dewmark-x+jws"}).encode()
    assert b" " in header
    message = f"{b64(header)}.{b64(canonical_json(CLAIMS))}"
    with pytest.raises(SignatureError, match="canonical"):
        verify(f"{message}.{b64(PRIVATE.sign(message.encode()))}", [KEY.public])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.b",
        "a.b.c.d",
        "é.é.é",
        "!.!.!",
        "e30.e30.e30",
        "WyJhbGciLCJiNjQiXQ.e30.e30",
        "." * 2,
        "[" * 9999,
    ],
)
def test_garbage_is_rejected_in_one_line(text: str) -> None:
    with pytest.raises(SignatureError, match="not a signed document"):
        verify(text, [KEY.public])


def test_keys_survive_their_files(tmp_path: Path) -> None:
    KEY.save(tmp_path / "a.pem")
    KEY.public.save(tmp_path / "a.jwk")
    assert (tmp_path / "a.pem").stat().st_mode & 0o777 == 0o600
    assert SigningKey.load(tmp_path / "a.pem").public == KEY.public
    assert load_signers(tmp_path / "a.jwk") == [KEY.public]
    (tmp_path / "set.json").write_text(json.dumps({"keys": [JWK, SigningKey.generate().public.to_jwk()]}))
    assert KEY.public in load_signers(tmp_path / "set.json")
    with pytest.raises(StorageError, match="exists"):
        KEY.save(tmp_path / "a.pem")


def test_the_secret_half_is_never_shown() -> None:
    assert D not in repr(KEY)
    assert D not in repr(KEY.public)
    with pytest.raises(TypeError, match="secret|pickle"):
        pickle.dumps(KEY)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a public key"),
        ("{", "is not a public key"),
        ("[]", "no Ed25519 public key"),
        ('{"keys": []}', "has no key"),
        ('{"kty": "OKP", "crv": "Ed25519", "x": "AA"}', "not 32 bytes"),
        ('{"kty": "RSA"}', "no Ed25519 public key"),
    ],
)
def test_a_file_that_is_no_public_key_is_reported(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "k").write_text(content)
    with pytest.raises(KeyFileError, match=message):
        load_signers(tmp_path / "k")


def test_a_wrong_thumbprint_and_a_foreign_key_are_reported(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="thumbprint"):
        VerifyingKey.from_jwk({**JWK, "kid": "wrong"})
    for other in ({"crv": "X25519"}, {"kty": "EC"}):
        with pytest.raises(KeyFileError, match="no Ed25519 public key"):
            VerifyingKey.from_jwk({**JWK, **other})
    (tmp_path / "k.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    with pytest.raises(KeyFileError, match="not an unencrypted Ed25519 key"):
        SigningKey.load(tmp_path / "k.pem")
    with pytest.raises(KeyFileError, match="dewmark report key"):
        SigningKey.load(tmp_path / "none.pem")


@pytest.mark.parametrize("value", [float("nan"), "\ud800"])
def test_a_document_that_json_cannot_hold_is_not_signed(value: object) -> None:
    with pytest.raises(InputError, match="finite numbers only"):
        KEY.sign({"a": value}, kind="x")
