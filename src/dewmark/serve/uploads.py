"""Text extraction from uploaded files: .txt, .md, .docx and .pdf, within limits.

An upload may be hostile: a .docx may unpack to terabytes or declare entities that expand without end, and any
parser may be kept busy for hours. So documents are parsed in a child process (this module, run as a program)
with limited time and memory and a low priority, which is killed when its time is up; only plain text is
decoded here. Sizes are also counted while reading, and document type declarations are rejected.

Boundary: bytes in, text out. Unreadable files raise `InputError`, unknown file types `UnknownNameError`. It
blocks: call it in a thread.
"""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
import subprocess
import sys
import unicodedata
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from xml.parsers import expat

from dewmark.errors import InputError, MissingExtraError, UnknownNameError

__all__ = ["LIMITS", "SUFFIXES", "Limits", "extract_text"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one extraction; the child process gets them as JSON."""

    file_bytes: int = 10_000_000
    characters: int = 1_000_000
    """The most text per file."""
    unpacked_bytes: int = 50_000_000
    """The most unpacked bytes of a .docx's main part."""
    parts: int = 10_000
    """The most files in a .docx."""
    pages: int = 2_000
    """The most pages of a .pdf."""
    seconds: float = 10.0
    """How long a child process may run, and how much processor time it may use."""
    memory: int = 512 << 20
    """The most address space of a child process."""


LIMITS = Limits()

_BLOCK = 1 << 16
_NICENESS = 10  # requests go before uploads
_REJECTED = 3  # exit code of a child process that wrote a message for the user
_FULL_LINE = 0.7  # of the usual width: a shorter line ends its paragraph

_BOMS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main "
_BREAKS = {f"{_WORD}tab": "\t", f"{_WORD}br": "\n", f"{_WORD}cr": "\n", f"{_WORD}noBreakHyphen": "-"}
# Repeats content for older programs.
_FALLBACK = "http://schemas.openxmlformats.org/markup-compatibility/2006 Fallback"


def extract_text(name: str, data: bytes) -> str:
    """Extract the text of a file; its name's suffix gives its type."""
    suffix = PurePath(name).suffix.lower()
    if suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise UnknownNameError(f"unsupported file type {suffix[:20]!r}: use {known}, or paste the text")
    limits = LIMITS
    if len(data) > limits.file_bytes:
        raise InputError(
            f"the file has {len(data):,} bytes, more than {limits.file_bytes:,}: paste the relevant part"
        )
    text = _parse(suffix, data, limits) if suffix in _DOCUMENTS else _plain(data)
    if len(text) > limits.characters:
        raise _too_long(limits)
    if not text.strip():
        scan = ": scanned pages need text recognition first" if suffix == ".pdf" else ""
        raise InputError(f"the file contains no text{scan}")
    return text


def _plain(data: bytes) -> str:
    encoding = next((name for bom, name in _BOMS if data.startswith(bom)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(f"the file is not {encoding} text (byte {error.start}): save it as UTF-8") from None
    if "\x00" in text:
        raise InputError("the file contains NUL characters: save it as UTF-8 text")
    return text.replace("\r\n", "\n")


def _parse(suffix: str, data: bytes, limits: Limits) -> str:
    """The text of a document, read by a child process."""
    given = json.dumps(dataclasses.asdict(limits))
    command = [sys.executable, "-P", "-m", "dewmark.serve.uploads", suffix, given]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=limits.seconds, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(
            f"the {suffix} file could not be read within {limits.seconds:g} s: paste its text"
        ) from None
    if done.returncode == _REJECTED:
        raise InputError(done.stderr.decode("utf-8", "replace").strip())
    if done.returncode != 0:
        raise InputError(f"the {suffix} file is damaged or too complex to read: paste its text")
    return done.stdout.decode("utf-8", "replace")


def _docx(data: bytes, limits: Limits) -> str:
    """The body of a Word document: paragraphs and tables in order, without tracked deletions.

    Headers, footers, notes and comments are in other parts of the file, which are not read.
    """
    reader = _WordReader(limits)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if len(archive.infolist()) > limits.parts:
                raise InputError(f"the .docx file has more than {limits.parts:,} parts: paste its text")
            part = archive.getinfo("word/document.xml")
            if part.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or part.flag_bits & 1:
                raise InputError("the .docx file is encrypted or unusually compressed: paste its text")
            with archive.open(part) as stream:
                # the declared size may be wrong: count while unpacking
                size = 0
                while block := stream.read(_BLOCK):
                    size += len(block)
                    if size > limits.unpacked_bytes:
                        raise InputError(
                            f"the .docx file unpacks to more than {limits.unpacked_bytes:,} bytes: "
                            "paste its text"
                        )
                    reader.feed(block)
        return reader.close()
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error):
        raise InputError("the file is not a .docx document, or it is damaged or encrypted") from None
    except expat.ExpatError:
        raise InputError("the .docx file is damaged: its XML is not well-formed") from None


class _WordReader:
    """Collects the text of WordprocessingML from a stream."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._reject_doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._pieces: list[str] = []
        self._length = 0
        self._in_text = False
        self._fallbacks = 0

    def feed(self, block: bytes) -> None:
        self._parser.Parse(block, False)

    def close(self) -> str:
        self._parser.Parse(b"", True)
        return "".join(self._pieces).strip("\n")

    def _reject_doctype(self, *_: object) -> None:
        raise InputError("the .docx file declares a document type, which Word never does: paste its text")

    def _start(self, tag: str, _: dict[str, str]) -> None:
        if tag == _FALLBACK:
            self._fallbacks += 1
        elif tag == f"{_WORD}t":
            self._in_text = True
        elif tag in _BREAKS:
            self._add(_BREAKS[tag])

    def _end(self, tag: str) -> None:
        if tag == _FALLBACK:
            self._fallbacks -= 1
        elif tag == f"{_WORD}t":
            self._in_text = False
        elif tag == f"{_WORD}p":
            self._add("\n")

    def _characters(self, characters: str) -> None:
        if self._in_text:
            self._add(characters)

    def _add(self, characters: str) -> None:
        if self._fallbacks:
            return
        self._length += len(characters)
        if self._length > 2 * self._limits.characters:  # trailing line breaks are removed later
            raise _too_long(self._limits)
        self._pieces.append(characters)


def _pdf(data: bytes, limits: Limits) -> str:
    """The text of a PDF, as paragraphs."""
    from dewmark.extras import require

    try:
        pypdf = require("pypdf", extra="serve")
    except MissingExtraError as error:
        raise InputError(str(error)) from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise InputError("the .pdf file is protected by a password: paste its text")
    if len(reader.pages) > limits.pages:
        raise InputError(f"the .pdf file has more than {limits.pages:,} pages: paste the relevant part")
    lines: list[str] = []
    written = 0
    for page in reader.pages:
        text = page.extract_text().strip("\n")
        written += len(text)
        if written > 2 * limits.characters:
            raise _too_long(limits)
        lines += text.split("\n")
    return _reflow(lines)


def _reflow(lines: list[str]) -> str:
    """Join the lines of a page layout into paragraphs, because the mark is in running text.

    A line of about the usual width continues in the next one; words hyphenated there are joined.
    """
    lines = [line.strip() for line in lines]
    lengths = sorted(len(line) for line in lines if line)
    width = lengths[int(0.9 * len(lengths))] if lengths else 0
    parts: list[str] = []
    for line in lines:
        last = parts[-1] if parts else ""
        goes_on = bool(last) and bool(line) and len(last) >= _FULL_LINE * width
        if goes_on and last.endswith("-") and last[-2:-1].isalpha() and line[0].islower():
            parts[-1] = last[:-1]
            parts.append(line)
        elif goes_on:
            wide = unicodedata.east_asian_width(last[-1]) in "WF" and line[0] > "\u2e7f"
            parts += ["" if wide else " ", line]
        else:
            parts += ["\n", line]
    text = "".join(parts).strip("\n")
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text


def _too_long(limits: Limits) -> InputError:
    return InputError(
        f"the file contains more than {limits.characters:,} characters: paste the relevant part"
    )


_DOCUMENTS: dict[str, Callable[[bytes, Limits], str]] = {".pdf": _pdf, ".docx": _docx}
SUFFIXES = (".txt", ".md", *_DOCUMENTS)


def _child(suffix: str, limits: Limits) -> int:
    """The child process: read a document from stdin, write its text to stdout.

    It limits its own CPU time and memory. Exit code 3 comes with a message for the user on stderr.
    """
    import resource

    os.nice(_NICENESS)
    seconds = max(1, round(limits.seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        text = _DOCUMENTS[suffix](sys.stdin.buffer.read(), limits)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return _REJECTED
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    return 0


if __name__ == "__main__":
    sys.exit(_child(sys.argv[1], Limits(**json.loads(sys.argv[2]))))
