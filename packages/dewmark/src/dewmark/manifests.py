"""Signed manifests beside the mark: the core hands texts over, and a companion signs and reads them.

dewmark-desk publishes C2PA under the entry points ``dewmark.manifests``. A manifest is a run of characters
that no reader sees, at the end of a text; detection of the mark removes it first.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

from dewmark.errors import MissingExtraError
from dewmark.registry import Registry
from dewmark.scheme import BoundScheme
from dewmark.types import Detection, Generation

__all__ = ["FIELDS", "MANIFESTS", "Signs", "layers"]

# ``sign`` takes certificate chain and private key and gives a `Signs`; ``read`` is called by `layers`
MANIFESTS = Registry("kind of manifest", {}, group="dewmark.manifests", companion="dewmark-desk")
FIELDS = ("state", "signer", "generator", "model", "time", "key_fingerprint", "layers", "sentence")
_SELECTORS = re.compile("[\U000e0100-\U000e01ef]{8}")  # more in a row than any writing system uses
_UNREAD = "The text has a manifest, which is not read here: pip install 'dewmark-desk[c2pa]'."


class Signs(Protocol):
    """A provider who signs texts."""

    def manifest(self, text: str, *, model: str, scheme: str | None, fingerprint: str | None) -> str:
        """The characters to append to a text: who wrote it, and with which key's mark, if any."""


def append_manifest(made: Generation, by: Signs | None, model: str, mark: BoundScheme | None) -> Generation:
    """The text with its manifest, if somebody signs; that of an unmarked text names no mark."""
    text = "".join(with_manifest(iter([made.text]), by, model, mark if made.marked else None))
    return made if by is None else dataclasses.replace(made, text=text)


def with_manifest(
    pieces: Iterator[str], by: Signs | None, model: str, mark: BoundScheme | None
) -> Generator[str, None, str | None]:
    """The pieces of a text, and its manifest as the last one, if somebody signs.

    Returns what ``pieces`` return: why the text counts as unmarked. Its manifest then names no mark.
    """
    text = ""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            unmarked: str | None = end.value
            break
        text += piece
        yield piece
    if by is not None and text.strip():
        named = (None, None) if mark is None or unmarked else (mark.scheme.name, mark.fingerprint)
        yield by.manifest(text, model=model, scheme=named[0], fingerprint=named[1])
    return unmarked


def layers(
    text: str, found: Detection, keys: Collection[str], *, roots: Path | None = None
) -> dict[str, Any] | None:
    """What a text's manifest says and what it says beside the mark under ``keys``, by `FIELDS`.

    None for a text without a manifest, unless ``roots`` (certificates that are trusted) ask for one.
    """
    if roots is None and not _SELECTORS.search(text):
        return None
    try:
        if roots is not None or "read" in MANIFESTS:
            said: dict[str, Any] = MANIFESTS["read"](text, found, keys, roots=roots)
            return said
    except MissingExtraError:
        if roots is not None:
            raise
    return {**dict.fromkeys(FIELDS), "state": "unread", "sentence": _UNREAD}
