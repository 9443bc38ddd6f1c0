"""A detector that runs in a browser: a folder of static files that anyone may host, or open from a disk.

The folder holds the page (``browser/`` beside this file), ``detector.json`` (the public detector's
description with test vectors, docs/public-detector.md), ``data.js``: the description and tables of
characters, and ``arrays.js``: all arrays, deflated, as a text in UTF-16 with 15 bits in each character, a
fifth smaller than base 64. Browsers load scripts from a disk, but fetch no other files from there. The page
sends nothing anywhere, which its Content-Security-Policy enforces.

Boundary: a bound public scheme in, files out. The arithmetic is in ``words.js`` and ``detector.js``, which
tests hold to Python.
"""

from __future__ import annotations

import functools
import hashlib
import html.entities
import itertools
import json
import unicodedata
import zlib
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray

from dewmark.detect import score_texts
from dewmark.dew.matrix import start_columns
from dewmark.dew.packaged_reader import PackagedReader
from dewmark.dew.reading import READ
from dewmark.dew.scheme import BoundDEW
from dewmark.encoders.lexicon import FREQUENT, MOST_TIMES, SIF, lexicon_folder
from dewmark.errors import ConfigError, StorageError
from dewmark.scheme import BoundScheme, reader_name
from dewmark.storage import atomic_write, load_bundle
from dewmark.text.cleaning import alphabets, styles
from dewmark.text.words import VERSION, class_letter, spelling
from dewmark.verdict import least_length
from dewmark.version import __version__
from dewmark_desk.signpost import PUBLIC_FORMAT
from dewmark_desk.tenants import example_text, unmarked_text

__all__ = ["FORMAT", "write_page"]

FORMAT = PUBLIC_FORMAT
_FILES = ("index.html", "page.css", "words.js", "detector.js", "page.js")
_LEXICON = ("forms", "centibels", "codes", "levels", "scales", "running_centre", "context_centre")
_MOST_DIRECTIONS = 64
# Code points that can be characters of a text: private and unassigned planes belong to no word.
_PLANES = (range(0xD800), range(0xF900, 0x33480), range(0xE0000, 0xE0200))
_UNSPACED = regex.compile(r"\p{LB=SA}")


def write_page(bound: BoundScheme, folder: Path) -> dict[str, Any]:
    """Write the page of a public detector into a new or empty folder; returns its description."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StorageError(f"{folder} is not empty and is not overwritten: name a new or empty folder")
    if not isinstance(bound, BoundDEW) or bound.uses is None or not bound.uses.is_public:
        raise ConfigError("only a public detector of dew may be on a page: add --public")
    if reader_name(bound) not in (None, "none"):
        raise ConfigError("a page has no language model that reads: leave --reader out, or give none")
    blob, index = _packed(_arrays(bound))
    about = _description(bound) | {"arrays": index, "test_vectors": _test_vectors(bound)}
    source = resources.files("dewmark_desk") / "browser"
    data = {
        "about": about,
        "tables": character_tables(),
        "strings": json.loads((source / "strings.json").read_text(encoding="utf-8")),
    }
    files = {name: (source / name).read_text(encoding="utf-8") for name in _FILES}
    files["detector.json"] = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
    compact = json.dumps(data, separators=(",", ":"))
    files["data.js"] = f'"use strict";\nconst DATA = {compact};\n'
    files["arrays.js"] = _script(zlib.compress(blob, 9))
    for name, text in files.items():
        with atomic_write(folder / name) as stream:
            stream.write(text.encode("utf-16-le" if name == "arrays.js" else "utf-8"))
    return about


def _description(bound: BoundDEW) -> dict[str, Any]:
    """The public detector without its arrays and test vectors."""
    scheme, reader = bound.scheme, _reader(bound)
    assert bound.uses is not None
    return {
        "format": FORMAT,
        "software": f"dewmark {__version__}",
        "scheme": scheme.name,
        "key_fingerprint": bound.fingerprint,
        "words": VERSION,
        "unicode": unicodedata.unidata_version,
        "languages": sorted(scheme.languages or ()),
        "lexicon": bound.reader.lexicon.identity,
        "reader": None if reader is None else reader.identity,
        "words_read": READ,
        "k": scheme.k,
        "flatten": scheme.flatten,
        "sif": SIF,
        "frequent": {"above": FREQUENT, "times": MOST_TIMES},
        "least_length": least_length(reader_name(bound)),
        "matrices": sum(len(each.W) for each in bound.uses.epochs),
    }


def _reader(bound: BoundDEW) -> PackagedReader | None:
    return None if reader_name(bound) == "none" else bound.reader.packaged


def _arrays(bound: BoundDEW) -> dict[str, NDArray[Any]]:
    """Everything that detection reads, by name."""
    lexicon = load_bundle(lexicon_folder(bound.scheme.lexicon, bound.workspace)).arrays
    found = {name: np.asarray(lexicon[name]) for name in _LEXICON}
    units = (resources.files("dewmark") / "data" / "units.txt").read_bytes()
    found["units"] = np.frombuffer(units, dtype=np.uint8)
    state, dim = bound.state().arrays, bound.reader.lexicon.dim
    rings = [state[f"ring_{i}"] for i in range(len(state)) if f"ring_{i}" in state]
    found["W"] = np.concatenate(rings)
    found["start"] = start_columns(dim, _MOST_DIRECTIONS)
    if _reader(bound) is not None:
        packaged = load_bundle(Path(str(resources.files("dewmark") / "data" / "reader"))).arrays
        found |= {f"reader/{name}": np.asarray(array) for name, array in packaged.items()}
    return found


def _packed(arrays: Mapping[str, NDArray[Any]]) -> tuple[bytes, list[dict[str, Any]]]:
    """The arrays one after another, each at a multiple of 8 bytes, and where each is."""
    index: list[dict[str, Any]] = []
    blob = bytearray()
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
        index.append(
            {
                "name": name,
                "dtype": array.dtype.name,
                "shape": list(array.shape),
                "offset": len(blob),
                "size": array.size,
                "sha256": hashlib.sha256(raw).hexdigest(),
            }
        )
        blob += raw + bytes(-len(raw) % 8)
    return bytes(blob), index


def _script(packed: bytes) -> str:
    """A script that holds these bytes; its byte order mark tells browsers that it is UTF-16."""
    bits = np.unpackbits(np.frombuffer(packed + bytes(-len(packed) % 15), dtype=np.uint8))
    values = np.packbits(np.pad(bits.reshape(-1, 15), ((0, 0), (1, 0))), axis=1).view(">u2")
    text = (values + 0x4000).astype("<u2").tobytes().decode("utf-16-le")  # no quotes, no halves of pairs
    return f'\ufeff"use strict";\nconst BLOB = {{size: {len(packed)}, text: "{text}"}};\n'


def _test_vectors(bound: BoundDEW) -> list[dict[str, Any]]:
    """Texts with what this detector says of them, for other implementations."""
    texts = [example_text(), unmarked_text(), unmarked_text()[:60]]
    return [
        {"text": text, "verdict": found.verdict.value, "z": found.z, "p_value": found.p_value}
        | {"effective_length": found.effective_length, "words_scored": found.tokens_scored}
        for text, found in zip(texts, score_texts(bound, texts), strict=True)
    ]


# Tables of characters, so that every browser reads them alike


@functools.cache
def character_tables() -> dict[str, Any]:
    """What ``words.js`` needs: classes of characters, look-alikes, styles, entities."""
    known = alphabets()
    return {
        "classes": _ranges(class_letter, nothing=" "),
        "letters": _ranges(lambda each: int(spelling(each)[0] >= 0), nothing=0),  # of spellings
        "combining": _ranges(lambda each: int(unicodedata.combining(each) > 0), nothing=0),
        "unspaced": _ranges(lambda each: int(_UNSPACED.match(each) is not None), nothing=0),
        "styles": [[chr(code), plain] for code, plain in styles().items()],
        "lookalikes": {
            "latin": [*known.latin.items()],
            "other": {name: [*table.items()] for name, table in known.other.items()},
        },
        "entities": [[name, text] for name, text in html.entities.html5.items() if name.endswith(";")],
        "charrefs": {code: html.unescape(f"&#{code};") for code in (0, *range(0x80, 0xA0), 0x0D)},
    }


def _ranges(value: Callable[[str], Any], *, nothing: object) -> list[tuple[int, int, Any]]:
    """Ranges [first, last] of code points with one value, except for ``nothing``."""
    found: list[tuple[int, int, Any]] = []
    codes = (code for part in _PLANES for code in part)
    for each, run in itertools.groupby(codes, key=lambda code: value(chr(code))):
        if each != nothing:
            inside = [*run]
            found.append((inside[0], inside[-1], each))
    return found
