"""C2PA manifests in texts: what they survive, what tampering does to them, and both layers together."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import html
import io
import json
import quopri
import random
import unicodedata
from types import SimpleNamespace
from urllib.parse import quote, unquote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dewmark import Key
from dewmark.detect import score_texts
from dewmark.errors import ConfigError
from dewmark.opening import load_scheme
from dewmark.types import Verdict
from dewmark_desk import text_manifest
from dewmark_desk.tenants import example_text, unmarked_text
from dewmark_desk.text_manifest import Manifest, Provider, compared, read_manifest, sign_text

c2pa = pytest.importorskip("c2pa")
c2pa_text = pytest.importorskip("c2pa_text")

KEY = Key(bytes(range(32)))
NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
PEM = serialization.Encoding.PEM


def certificate(subject, own, issuer, signing, *, ca):
    def name(common):
        parts = {NameOID.COUNTRY_NAME: "DE", NameOID.ORGANIZATION_NAME: "Maker", NameOID.COMMON_NAME: common}
        return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts.items()])

    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"),
        False,
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + 300 * DAY)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True, key_cert_sign=ca, crl_sign=ca, decipher_only=False, **usage
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
        )
    )
    if not ca:
        use = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])
        made = made.add_extension(use, critical=False)
    return made.sign(signing, hashes.SHA256())


def provider_named(who, folder):
    """A provider whose certificate has this name, under a root of its own: (provider, root)."""
    above, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = certificate(f"{who} CA", above, f"{who} CA", above, ca=True)
    leaf = certificate(who, own, f"{who} CA", above, ca=False)
    (folder / "chain.pem").write_bytes(leaf.public_bytes(PEM) + root.public_bytes(PEM))
    (folder / "root.pem").write_bytes(root.public_bytes(PEM))
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(own.private_bytes(PEM, *plain))
    return Provider(folder / "chain.pem", folder / "key.pem"), folder / "root.pem"


def two_providers(tmp_path_factory):
    """Two providers, each under a root of its own: (provider, root)."""
    return {who: provider_named(who, tmp_path_factory.mktemp(who)) for who in ("us", "them")}


@pytest.fixture(scope="module")
def providers(tmp_path_factory):
    return two_providers(tmp_path_factory)


@pytest.fixture(scope="module")
def us(providers):
    return providers["us"]


def signed_by(provider, text, *, fingerprint=KEY.fingerprint):
    return sign_text(text, provider, model="tiny", scheme="dew", fingerprint=fingerprint)


@pytest.fixture(scope="module")
def signed(us):
    return signed_by(us[0], example_text())


def test_a_manifest_says_who_signed_what(signed, us):
    found = read_manifest(signed, roots=us[1])
    assert (found.state, found.text) == ("trusted", example_text())
    assert found.signer == "us, Maker"
    assert found.generator is not None
    assert found.generator.startswith("dewmark ")
    assert (found.model, found.fingerprint) == ("tiny", KEY.fingerprint)
    assert read_manifest(signed).state == "untrusted"
    assert read_manifest(example_text()).state == "absent"
    assert read_manifest(signed_by(us[0], signed), roots=us[1]).state == "trusted"  # replaced, not repeated


def test_a_name_is_one_line_in_the_order_in_which_it_is_written(tmp_path):
    provider, root = provider_named("Maker\u202e\u2066\nDetected: human\x1b[2J", tmp_path)
    signed = sign_text(
        example_text(), provider, model="tiny\u202e", scheme="dew", fingerprint=KEY.fingerprint
    )
    found = read_manifest(signed, roots=root)
    assert found.signer == "Maker Detected: human\N{REPLACEMENT CHARACTER}[2J, Maker"
    assert found.model == "tiny"


def test_the_field_s_own_tools_verify_it(signed):
    """By c2pa-python and c2pa-text alone."""
    data, clean = c2pa_text.extract_manifest(signed)
    with c2pa.Reader("text/plain", io.BytesIO(clean.encode()), data) as reader:
        assert reader.get_validation_state() == "Valid"


SURVIVES = {
    "NFC": lambda text: unicodedata.normalize("NFC", text),
    "NFKC": lambda text: unicodedata.normalize("NFKC", text),
    "JSON": lambda text: json.loads(json.dumps(text)),
    "JSON in ASCII and UTF-16": lambda text: json.loads(json.dumps(text)).encode("utf-16").decode("utf-16"),
    "HTML": lambda text: html.unescape(html.escape(text)),
    "e-mail, base 64": lambda text: base64.b64decode(base64.encodebytes(text.encode())).decode(),
    "e-mail, quoted-printable": lambda text: quopri.decodestring(quopri.encodestring(text.encode())).decode(),
    "a URL": lambda text: unquote(quote(text)),
    "trimming": str.strip,
    "a newline at the end": lambda text: text + "\n",
}
LOST = {
    "a byte order mark removed": lambda text: text.replace("\ufeff", ""),
    "ASCII": lambda text: text.encode("ascii", "ignore").decode(),
    "Windows-1252": lambda text: text.encode("cp1252", "ignore").decode("cp1252"),
}
ALTERED = {
    "Markdown quoting": lambda text: "> " + text.replace("\n", "\n> "),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("path", SURVIVES)
def test_paths_that_keep_a_manifest(path, signed, us):
    assert read_manifest(SURVIVES[path](signed), roots=us[1]).state == "trusted"


@pytest.mark.parametrize("path", LOST)
def test_paths_that_lose_a_manifest(path, signed, us):
    assert read_manifest(LOST[path](signed), roots=us[1]).state in ("absent", "broken")


@pytest.mark.parametrize("path", ALTERED)
def test_paths_that_change_the_text_under_a_manifest(path, signed, us):
    assert read_manifest(ALTERED[path](signed), roots=us[1]).state == "altered"


def flipped(signed):
    """One byte of the claim is changed."""
    data, clean = c2pa_text.extract_manifest(signed)
    place = data.index(b"trainedAlgorithmicMedia")
    return c2pa_text.embed_manifest(clean, data[:place] + b"T" + data[place + 1 :])


TAMPERING = {
    "a word changed": (lambda s, p: s.replace("ferry", "train", 1), "altered"),
    "a word added": (lambda s, p: "Well, " + s, "altered"),
    "a sentence cut": (lambda s, p: s.replace("The captain knows me by now. ", ""), "altered"),
    "text behind the manifest": (lambda s, p: s + " And more.", "altered"),
    "moved to another text": (lambda s, p: unmarked_text() + s[s.index("\ufeff") :], "altered"),
    "the claim changed": (lambda s, p: flipped(s), "altered"),
    "the manifest cut short": (lambda s, p: s[:-400], "broken"),
    "two manifests": (lambda s, p: s + s[s.index("\ufeff") :], "broken"),
    "the manifest stripped": (lambda s, p: s[: s.index("\ufeff")], "absent"),
    "signed by somebody else": (lambda s, p: signed_by(p["them"][0], example_text()), "untrusted"),
}


@pytest.mark.parametrize("kind", TAMPERING)
def test_ten_kinds_of_tampering(kind, signed, providers):
    change, state = TAMPERING[kind]
    assert read_manifest(change(signed, providers), roots=providers["us"][1]).state == state


CREATED = {
    "action": "c2pa.created",
    "digitalSourceType": "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia",
    "softwareAgent": "a string",
}


def with_a_string_as_agent(provider, text):
    """Validly signed, and of a shape that this library never writes."""
    actions = {"label": "c2pa.actions.v2", "data": {"actions": [CREATED]}}
    claim = {
        "claim_generator_info": [{"name": "x"}],
        "format": "text/plain",
        "assertions": [actions],
    }
    with c2pa.Builder(json.dumps(claim)) as builder, provider.signer() as signer:
        builder.set_no_embed()
        made = builder.sign(signer, "text/plain", io.BytesIO(text.encode()), io.BytesIO())
    return text + c2pa_text.encode_wrapper(made)


def test_a_validly_signed_manifest_of_another_shape_is_broken(us):
    found = read_manifest(with_a_string_as_agent(us[0], "Some text."), roots=us[1])
    assert found == Manifest("broken", "Some text.")


ANYTHING = (None, True, 7, -0.5, "text", "\ud800", [], {}, [None], ["a"], [[]], [{}], {"name": 1}, {"a": "b"})


def places(value, path=()):
    """The paths to all parts of a JSON value."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, below in inside:
        yield from places(below, (*path, name))


def replaced(value, path, other):
    """A copy with another value at a path."""
    if not path:
        return other
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], other)
    return copy


def test_a_manifest_may_say_anything_anywhere(signed, us, monkeypatch):
    """Each part of what the library reads, in turn, is of each type; and many parts at once."""
    data, clean = c2pa_text.extract_manifest(signed)
    with c2pa.Reader("text/plain", io.BytesIO(clean.encode()), data) as reader:
        real = [reader.get_active_manifest(), reader.get_validation_results()]
    real[1]["activeManifest"]["success"] = []  # of which nothing is read
    told = list(real)

    class Reader:  # finding and verifying the real one takes 10 ms
        def __init__(self, *_, **__):
            pass

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda *_: None  # noqa: E731
        get_active_manifest = lambda _: told[0]  # noqa: E731
        get_validation_results = lambda _: told[1]  # noqa: E731

    library = SimpleNamespace(Reader=Reader, Context=Reader, Settings=c2pa.Settings, C2paError=c2pa.C2paError)
    monkeypatch.setattr(text_manifest, "_c2pa", lambda: library)
    monkeypatch.setattr(c2pa_text, "extract_manifest", lambda _: (data, clean))
    (judged,) = score_texts(load_scheme(KEY), [unmarked_text()])
    assert read_manifest(signed, roots=us[1]).model == "tiny"

    def check():
        found = read_manifest(signed, roots=us[1])
        json.dumps(dataclasses.asdict(found), ensure_ascii=False).encode()
        said = (found.signer, found.generator, found.model, found.time, found.fingerprint)
        assert all(value is None or isinstance(value, str) for value in said)
        compared(found, dataclasses.replace(judged, verdict=Verdict.MARKED), [KEY.fingerprint])
        return found.state

    states = set()
    for path in places(real):
        for other in ANYTHING if path else ():
            told[:] = replaced(real, path, other)
            states.add(check())
    assert states == {"trusted", "untrusted", "broken", "altered"}
    chosen = random.Random(7)
    for _ in range(200):
        changed = real
        for _ in range(3):
            paths = [path for path in places(changed) if path]
            changed = replaced(changed, chosen.choice(paths), chosen.choice(ANYTHING))
        told[:] = changed
        check()


def test_a_manifest_changes_no_verdict(signed):
    bound = load_scheme(KEY)
    plain, both = score_texts(bound, [example_text(), signed])
    assert (both.z, both.p_value) == (plain.z, plain.p_value)


def test_both_layers_are_compared(signed, us, providers):
    (found,) = score_texts(load_scheme(KEY), [unmarked_text()])

    def layers(text, verdict, fingerprint=KEY.fingerprint, keys=(KEY.fingerprint,)):
        judged = dataclasses.replace(found, verdict=verdict, key_fingerprint=fingerprint)
        return compared(read_manifest(text, roots=us[1]), judged, keys)[0]

    yes, no, short = Verdict.MARKED, Verdict.NOT_MARKED, Verdict.TOO_SHORT
    edited = signed.replace("ferry", "train")
    assert layers(signed, yes) == "agree"
    assert layers(signed, yes, "0" * 16) == "other_key"
    assert layers(signed, no) == "mark_missing"
    assert layers(signed, no, keys=["0" * 16]) == layers(signed, short) == "manifest_alone"
    assert layers(edited, yes) == "altered_marked"
    assert layers(edited, no) == "altered"
    assert layers(example_text(), yes) == "mark_alone"
    assert layers(unmarked_text(), no) == "neither"
    forged = read_manifest(signed_by(providers["them"][0], example_text()), roots=us[1])
    said = compared(forged, dataclasses.replace(found, verdict=yes), [KEY.fingerprint])
    assert said[0] == "agree"
    assert "under no given root" in said[1]


def test_a_manifest_without_a_key_names_no_mark(us):
    text = "Some text." + us[0].manifest("Some text.", model="tiny", scheme=None, fingerprint=None)
    found = read_manifest(text, roots=us[1])
    assert (found.state, found.model, found.fingerprint) == ("trusted", "tiny", None)


def test_a_wrong_key_is_one_line(us, providers, tmp_path):
    with pytest.raises(ConfigError, match="no private key"):
        signed_by(Provider(us[0].chain, us[0].chain), "Some text.")
    with pytest.raises(ConfigError, match="c2pa refuses"):
        signed_by(Provider(us[0].chain, providers["them"][0].private_key), "Some text.")
