"""A signed C2PA manifest inside a plain text, beside the mark: two layers, and what they say together.

A `Provider` signs a manifest (claim generator, model, AI as the source, the mark as a soft binding that names
the key's fingerprint) with its certificate, as variation selectors to append, which no reader sees.
`read_manifest` finds and verifies it, and `read_layers` compares it with the mark. The library c2pa-python
signs and verifies, c2pa-text embeds and extracts.

The signature covers the NFC text without the manifest and without white space at the end. The specification
would rather have the file hashed with an exclusion for the manifest, but c2pa-python (0.38) knows no text
files and refuses exclusions there; a validator has to take the manifest out first, as
`c2pa_text.extract_manifest` does.

A manifest proves who signed, and is lost in any edit. A mark survives edits, and proves less. dewmark's
detection removes the selectors, so a manifest changes no verdict.
"""

from __future__ import annotations

import contextlib
import io
import json
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dewmark.errors import ConfigError, InputError
from dewmark.extras import require
from dewmark.manifests import FIELDS
from dewmark.storage import read_small
from dewmark.text.printing import one_line
from dewmark.types import Detection, Verdict
from dewmark.version import __version__

__all__ = [
    "Manifest",
    "Provider",
    "SignedAnswers",
    "compared",
    "is_read_by_programs",
    "open_provider",
    "read_layers",
    "read_manifest",
    "sign_text",
]

_SOURCE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
_ALGORITHMS = {"secp256r1": b"es256", "secp384r1": b"es384", "secp521r1": b"es512", "ed25519": b"ed25519"}

Json = dict[str, Any]
State = Literal["absent", "trusted", "untrusted", "altered", "broken"]
Layers = (
    Literal["agree", "other_key", "mark_missing", "manifest_alone"]
    | Literal["altered_marked", "altered", "mark_alone", "neither"]
)


@dataclass(frozen=True)
class Provider:
    """Who signs: the certificate chain and its private key, PEM files."""

    chain: Path
    private_key: Path

    def signer(self) -> Any:  # noqa: ANN401 - a signer of c2pa-python, which has few types
        """A signer for c2pa-python."""
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        c2pa = require("c2pa", extra="c2pa", package="dewmark-desk")
        try:
            chain, secret = read_small(self.chain), read_small(self.private_key)
            key = load_pem_private_key(secret, password=None)
        except OSError as error:
            raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from None
        except (ValueError, TypeError):
            raise ConfigError(f"{self.private_key} is no private key in PEM: give a plain one") from None
        name = (
            key.curve.name
            if isinstance(key, ec.EllipticCurvePrivateKey)
            else "ed25519"
            if isinstance(key, ed25519.Ed25519PrivateKey)
            else type(key).__name__
        )
        if name not in _ALGORITHMS:
            raise ConfigError(f"{self.private_key} is a {name} key: give one of {', '.join(_ALGORITHMS)}")
        with _errors():
            return c2pa.Signer.from_info(c2pa.C2paSignerInfo(_ALGORITHMS[name], chain, secret, None))

    def manifest(self, text: str, *, model: str, scheme: str | None, fingerprint: str | None) -> str:
        """The characters to append to a text, which has no manifest yet; without a key it names no mark."""
        c2pa, wrapper = _c2pa(), require("c2pa_text", extra="c2pa", package="dewmark-desk")
        clean = unicodedata.normalize("NFC", text).rstrip()
        if not clean.strip():
            raise InputError("the text is empty: there is nothing to sign")
        created = {"action": "c2pa.created", "digitalSourceType": _SOURCE, "softwareAgent": {"name": model}}
        assertions: list[Json] = [{"label": "c2pa.actions.v2", "data": {"actions": [created]}}]
        if fingerprint is not None:
            mark = {"alg": f"dewmark.{scheme or 'dew'}", "blocks": [{"scope": {}, "value": fingerprint}]}
            assertions.append({"label": "c2pa.soft-binding", "data": mark})
        claim = {
            "claim_generator_info": [{"name": "dewmark", "version": __version__}],
            "format": "text/plain",
            "assertions": assertions,
        }
        with _errors(), c2pa.Builder(json.dumps(claim)) as builder, self.signer() as signer:
            builder.set_no_embed()
            signed: bytes = builder.sign(signer, "text/plain", io.BytesIO(clean.encode()), io.BytesIO())
        wrapped: str = wrapper.encode_wrapper(signed)
        return wrapped


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the manifest of a text says, and whether it holds.

    ``state`` is ``absent``, ``trusted`` (intact, and signed under a given root), ``untrusted`` (intact, but
    signed by anybody), ``altered`` (the signature does not fit the text) or ``broken``.
    """

    state: State
    text: str
    """The text without the manifest."""
    signer: str | None = None
    generator: str | None = None
    model: str | None = None
    time: str | None = None
    fingerprint: str | None = None
    """Of the key whose mark the manifest names."""


def open_provider(chain: Path, private_key: Path) -> Provider:
    """Who signs; `ConfigError` if the certificate or its key cannot sign."""
    provider = Provider(chain, private_key)
    provider.manifest("A trial.", model="none", scheme=None, fingerprint=None)
    return provider


def sign_text(text: str, provider: Provider, *, model: str, scheme: str, fingerprint: str) -> str:
    """The text in NFC with a signed manifest at its end; a manifest that it has already is replaced."""
    clean = read_manifest(text).text
    return clean + provider.manifest(clean, model=model, scheme=scheme, fingerprint=fingerprint)


def read_manifest(text: str, *, roots: Path | None = None) -> Manifest:
    """The manifest of a text, verified; ``roots`` are certificates (PEM) under which signers are trusted."""
    c2pa, wrapper = _c2pa(), require("c2pa_text", extra="c2pa", package="dewmark-desk")
    try:
        data, clean = wrapper.extract_manifest(text)
    except ValueError:  # several manifests
        return Manifest("broken", text)
    clean = clean.rstrip()
    if data is None:
        return Manifest("broken" if _has_selectors(text) else "absent", clean)
    trust = {} if roots is None else {"trust": {"trust_anchors": read_small(roots).decode()}}
    settings = {**trust, "verify": {"verify_trust": True}}
    try:
        with (
            c2pa.Context(c2pa.Settings.from_dict(settings)) as context,
            c2pa.Reader("text/plain", io.BytesIO(clean.encode()), data, context=context) as reader,
        ):
            found = reader.get_active_manifest() or {}
            results = (reader.get_validation_results() or {}).get("activeManifest", {})
            return _described(found, {each["code"] for each in results.get("failure", ())}, clean)
    except Exception:  # noqa: BLE001 - a stranger wrote it, and signed what no library expects
        return Manifest("broken", clean)


def read_layers(
    text: str, found: Detection, keys: Collection[str], *, roots: Path | None = None
) -> dict[str, Any]:
    """The values of `dewmark.manifests.FIELDS`; ``keys`` are those under which the text was tested."""
    read = read_manifest(text, roots=roots)
    layers, sentence = compared(read, found, keys)
    said = [read.state, read.signer, read.generator, read.model, read.time, read.fingerprint]
    return dict(zip(FIELDS, [*said, layers, sentence], strict=True))


def compared(manifest: Manifest, found: Detection, keys: Collection[str]) -> tuple[Layers, str]:
    """What both layers say together, as a word and as a sentence."""
    marked = found.verdict is Verdict.MARKED
    if manifest.state in ("altered", "broken"):
        changed = "The manifest does not fit the text: text or manifest were changed after signing"
        if marked:
            return "altered_marked", f"{changed}, and the mark is still there."
        return "altered", f"{changed}, and no mark is found."
    if manifest.state == "absent":
        if marked:
            return "mark_alone", "The mark is there, and no manifest: it was stripped, or never added."
        return "neither", "Neither a manifest nor a mark is there."
    named = manifest.fingerprint
    who = f"Intact, signed by {manifest.signer}"
    if manifest.state == "untrusted":
        who += ", whose certificate is under no given root"
    if marked and named == found.key_fingerprint:
        return "agree", f"Both layers agree. {who}, with the mark of key {named}."
    if marked:
        return "other_key", f"{who}, but the manifest does not name the key whose mark was found."
    if named in keys and found.verdict is Verdict.NOT_MARKED:
        return "mark_missing", (
            f"{who}, but the mark that it names is not found: the text may leave little choice, or somebody "
            "signed a text that this key did not mark."
        )
    why = (
        "it names no mark"
        if named is None
        else "the text allows no verdict on the mark"
        if named in keys
        else f"it names key {named}, which was not tried"
    )
    return "manifest_alone", f"{who}; {why}."


def _described(found: dict[str, Any], failures: set[str], clean: str) -> Manifest:
    """What a manifest says; raises any exception for one of another shape."""
    data = {each["label"]: each["data"] for each in found.get("assertions", ())}
    (action, *_) = data.get("c2pa.actions.v2", {}).get("actions", []) or [{}]
    (block, *_) = data.get("c2pa.soft-binding", {}).get("blocks", []) or [{}]
    generator = (found.get("claim_generator_info") or [{}])[0]
    signed = found.get("signature_info") or {}
    state: State = "trusted"
    if failures - {"signingCredential.untrusted"}:
        state = "altered"
    elif failures:
        state = "untrusted"
    said = {
        "signer": ", ".join(filter(None, (signed.get("common_name"), signed.get("issuer")))) or None,
        "generator": " ".join(filter(None, (generator.get("name"), generator.get("version")))) or None,
        "model": action.get("softwareAgent", {}).get("name"),
        "time": signed.get("time"),
        "fingerprint": block.get("value"),
    }
    for value in said.values():
        if value is not None:
            str.encode(value)  # raises for what is no text, or no Unicode
    # a certificate may call itself anything
    return Manifest(state, clean, **{name: value and one_line(value) for name, value in said.items()})


def _has_selectors(text: str) -> bool:
    """Whether a text has a run of variation selectors that no writing system uses."""
    return sum(0xE0100 <= ord(each) <= 0xE01EF for each in unicodedata.normalize("NFC", text)) >= 8


def _c2pa() -> Any:  # noqa: ANN401 - a module with few types
    return require("c2pa", extra="c2pa", package="dewmark-desk")


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """One clear line where the library refuses a certificate or a key."""
    try:
        yield
    except _c2pa().C2paError as error:
        raise ConfigError(f"c2pa refuses the certificate or its key: {error}") from None


def is_read_by_programs(request: Json) -> bool:
    """Whether a request asks for JSON or offers tools: the characters of a manifest would not parse."""
    named = request.get("response_format") or {}
    asked = ("tools", "json_schema", "regex", "ebnf", "structured_outputs")
    return named.get("type", "text") != "text" or any(request.get(name) for name in asked)


class SignedAnswers:
    """Appends what ``manifest`` makes of a text to the texts of one answer of OpenAI's format, or nothing.

    In a stream the manifest is a piece of its own, before the one that says how the choice ended. Choices
    that say ``"marked": false`` get what ``unmarked`` makes of their texts, if it is given.
    """

    def __init__(
        self, manifest: Callable[[str], str] | None, unmarked: Callable[[str], str] | None = None
    ) -> None:
        self._manifest, self._unmarked = manifest, unmarked or manifest
        self._texts: dict[int, str] = defaultdict(str)

    def whole(self, answer: Json) -> Json:
        """A finished answer, with manifests."""
        for choice in answer.get("choices", ()):
            holder, name = (choice["message"], "content") if "message" in choice else (choice, "text")
            holder[name] = self._signed(holder.get(name), choice)
        return answer

    def piece(self, chunk: Json) -> Iterator[Json]:
        """A piece of a streamed answer; what ends a choice comes after its manifest."""
        for choice in chunk.get("choices", ()):
            delta, index = choice.get("delta"), choice["index"]
            said = (choice.get("text") if delta is None else delta.get("content")) or ""
            self._texts[index] += said
            if choice.get("finish_reason") is None:
                continue
            text = self._texts.pop(index)
            if appended := (self._signed(text, choice) or "")[len(text) :]:
                more = said + appended
                words = {"text": more} if delta is None else {"delta": {**delta, "content": more}}
                yield {**chunk, "choices": [{**choice, **words, "finish_reason": None}]}
                ended: Json = {"text": ""} if delta is None else {"delta": {}}
                choice |= ended
        yield chunk

    def _signed(self, text: str | None, choice: Json) -> str | None:
        manifest = self._unmarked if choice.get("marked") is False else self._manifest
        if manifest is None or text is None or not text.strip():
            return text
        return text + manifest(text)
