"""Signed documents: compact JWS (RFC 7515) with Ed25519 signatures (RFC 8037).

A document is a JSON object in one fixed encoding: UTF-8, sorted names, no spaces. Its header has three
fields: ``alg`` is always ``EdDSA``, ``kid`` is the RFC 7638 thumbprint of the signer's public key, and
``typ`` says what the document is, so that one kind cannot pass for another. Any JOSE library can verify it;
`verify` is stricter than most, and accepts only the bytes that `SigningKey.sign` would have written.

A signing key is an unencrypted PKCS #8 PEM file with mode 0600. Public keys are JWK files or JWK sets.
Boundary: bytes and signatures; `detection_report` and `compliance` decide what documents say.
"""

from __future__ import annotations

import copy
import json
import stat
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from joserfc.util import json_b64encode

from dewmark.errors import InputError, KeyFileError, SignatureError
from dewmark.storage import atomic_write, read_json, read_small

_TYPE = "dewmark-{kind}+jws"
_PUBLIC = ("crv", "kty", "x")  # the members of a public key
_DAMAGED = (JoseError, ValueError, TypeError, KeyError, RecursionError)  # what joserfc raises for bad input

# EdDSA only, without the warning that RFC 9864 gives it another name; and documents may be long.
_EDDSA = copy.copy(jws.JWSRegistry.algorithms["EdDSA"])
_EDDSA.security_warning = None
_REGISTRY = jws.JWSRegistry(algorithms=[_EDDSA.name])
_REGISTRY.algorithms = {_EDDSA.name: _EDDSA}
_REGISTRY.max_payload_length = 64 << 20


@dataclass(frozen=True, slots=True)
class Signed:
    """A document whose signature is valid: what it is, what it says, and who signed it."""

    kind: str
    payload: dict[str, Any]
    signer: str


class VerifyingKey:
    """A public key."""

    __slots__ = ("_key", "id")

    def __init__(self, key: OKPKey) -> None:
        self._key = key
        self.id: str = key.thumbprint()

    @classmethod
    def from_jwk(cls, jwk: object) -> VerifyingKey:
        """The key of a JWK; its ``kid``, if it has one, must be the key's thumbprint."""
        if not isinstance(jwk, Mapping) or jwk.get("kty") != "OKP" or jwk.get("crv") != "Ed25519":
            raise KeyFileError('no Ed25519 public key: expected a JWK with "kty": "OKP", "crv": "Ed25519"')
        try:
            key = cls(OKPKey.import_key({name: jwk[name] for name in _PUBLIC}))
        except _DAMAGED:
            raise KeyFileError('the JWK\'s "x" is not 32 bytes of base64url') from None
        if jwk.get("kid", key.id) != key.id:
            raise KeyFileError(f'the JWK\'s "kid" is not the thumbprint of its key, {key.id}')
        return key

    def to_jwk(self) -> dict[str, Any]:
        """The key as a JWK."""
        return {**self._key.as_dict(), "kid": self.id, "alg": _EDDSA.name, "use": "sig"}

    def save(self, path: Path) -> None:
        """Write the key as a JWK file."""
        with atomic_write(path) as stream:
            stream.write(json.dumps(self.to_jwk(), indent=1).encode() + b"\n")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerifyingKey) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"VerifyingKey({self.id!r})"


class SigningKey:
    """A secret key that signs documents."""

    __slots__ = ("_key", "public")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = OKPKey.import_key(key)
        self.public = VerifyingKey(OKPKey.import_key(key.public_key()))

    @classmethod
    def generate(cls) -> SigningKey:
        """A new key from the operating system's secure random source."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: str | Path) -> SigningKey:
        """Read a PEM file."""
        path = Path(path)
        try:
            data, mode = read_small(path), path.stat().st_mode
        except FileNotFoundError:
            raise KeyFileError(f"no signing key {path}; make it: dewmark report key --out {path}") from None
        except OSError as error:
            raise KeyFileError(f"cannot read signing key {path}: {error.strerror}") from None
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyFileError(
                f"{path} is not an unencrypted Ed25519 key in PEM format: make one with dewmark report key"
            )
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            warnings.warn(f"signing key {path} is readable by others; run: chmod 600 {path}", stacklevel=2)
        return cls(key)

    def save(self, path: str | Path) -> None:
        """Write the key to a new file with mode 0600; an existing file is never overwritten."""
        with atomic_write(Path(path), private=True, overwrite=False) as stream:
            stream.write(self._key.as_pem(private=True))

    def sign(self, payload: Mapping[str, Any], *, kind: str) -> str:
        """A document as compact JWS."""
        header = {"alg": _EDDSA.name, "kid": self.public.id, "typ": _TYPE.format(kind=kind)}
        return jws.serialize_compact(header, canonical_json(payload), self._key, registry=_REGISTRY)

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public.id!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SigningKey cannot be pickled: save it to a file and pass the path")


def canonical_json(value: object) -> bytes:
    """JSON with sorted names and without spaces, as UTF-8."""
    try:
        return json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()
    except (UnicodeEncodeError, ValueError):
        raise InputError("a signed document holds Unicode text and finite numbers only") from None


def load_signers(path: str | Path) -> list[VerifyingKey]:
    """The public keys of a JWK file or a JWK set."""
    path = Path(path)
    try:
        value = read_json(path)
    except OSError as error:
        raise KeyFileError(f"cannot read public key {path}: {error.strerror}") from None
    except ValueError:
        raise KeyFileError(f"{path} is not a public key: expected a JWK or a JWK set") from None
    # a set, as a service publishes it, or one key
    keys = value.get("keys") if isinstance(value, dict) else None
    found = [VerifyingKey.from_jwk(jwk) for jwk in (keys if isinstance(keys, list) else [value])]
    if not found:
        raise KeyFileError(f"{path} has no key")
    return found


def verify(document: str, signers: Sequence[VerifyingKey], *, kind: str | None = None) -> Signed:
    """The contents of a document (of a ``kind``) that a signer signed; else raises `SignatureError`."""
    try:
        found = jws.extract_compact(document.strip().encode(), registry=_REGISTRY)
        fields: object = found.headers()
    except _DAMAGED:
        raise SignatureError(
            "not a signed document: expected three base64url parts separated by dots, and none damaged"
        ) from None
    if not isinstance(fields, dict) or fields.keys() != {"alg", "kid", "typ"}:
        raise SignatureError("the document's header must have alg, kid and typ, and nothing else")
    if fields["alg"] != _EDDSA.name:
        raise SignatureError(f"the document must be signed with {_EDDSA.name}")
    before, after = _TYPE.split("{kind}")
    typ = str(fields["typ"])
    if not (typ.startswith(before) and typ.endswith(after)):
        raise SignatureError("the document is not one of dewmark's: its typ is unknown")
    is_kind = typ[len(before) : -len(after)]
    if kind is not None and is_kind != kind:
        raise SignatureError(f"the document is a {is_kind}, not a {kind}")
    signer = next((key for key in signers if key.id == fields["kid"]), None)
    if signer is None:
        raise SignatureError(f"the document names a signer that is not trusted here: {fields['kid']}")
    if not jws.validate_compact(found, signer._key, registry=_REGISTRY):
        raise SignatureError("the signature is wrong: the document was changed, or somebody else signed it")
    try:
        value = json.loads(found.payload)
        same = canonical_json(value) == found.payload and json_b64encode(fields) == found.segments["header"]
    except (ValueError, RecursionError):
        same, value = False, None
    if not same or not isinstance(value, dict):
        raise SignatureError("the document is signed but not in canonical form")
    return Signed(is_kind, value, signer.id)
