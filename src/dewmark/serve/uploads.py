"""Text extraction from uploaded files: .txt, .md, .docx and .pdf, within limits.

An upload may be hostile: a .docx may unpack to terabytes or declare entities that expand without end, and a
.pdf may keep a parser busy for hours. So sizes are counted while reading, document type declarations are
rejected, and a .pdf is parsed in a child process (this module, run as a program) with limited time and
memory.

Boundary: bytes in, text out. Unreadable files raise `InputError`, unknown file types `UnknownNameError`. It
blocks: call it in a thread.
"""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import unicodedata
import zipfile
import zlib
from pathlib import PurePath
from xml.parsers import expat

from dewmark.errors import InputError, MissingExtraError, UnknownNameError

__all__ = ["MAX_BYTES", "MAX_CHARACTERS", "SUFFIXES", "extract_text"]

MAX_BYTES = 10_000_000  # per file
MAX_CHARACTERS = 1_000_000  # of text per file
SUFFIXES = (".txt", ".md", ".pdf", ".docx")

_MAX_XML = 50_000_000  # unpacked bytes of a .docx's main part
_MAX_PARTS = 10_000  # files in a .docx
_BLOCK = 1 << 16
_PDF_SECONDS = 15.0
_PDF_MEMORY = 1 << 30
_PDF_PAGES = 2_000
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
    if len(data) > MAX_BYTES:
        raise InputError(
            f"the file has {len(data):,} bytes, more than {MAX_BYTES:,}: paste the relevant part"
        )
    read = {".pdf": _pdf, ".docx": _docx}.get(suffix, _plain)
    text = read(data)
    if len(text) > MAX_CHARACTERS:
        raise _too_long()
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


def _docx(data: bytes) -> str:
    """The body of a Word document: paragraphs and tables in order, without tracked deletions.

    Headers, footers, notes and comments are in other parts of the file, which are not read.
    """
    reader = _WordReader()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if len(archive.infolist()) > _MAX_PARTS:
                raise InputError(f"the .docx file has more than {_MAX_PARTS:,} parts: paste its text")
            part = archive.getinfo("word/document.xml")
            if part.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or part.flag_bits & 1:
                raise InputError("the .docx file is encrypted or unusually compressed: paste its text")
            with archive.open(part) as stream:
                # the declared size may be wrong: count while unpacking
                size = 0
                while block := stream.read(_BLOCK):
                    size += len(block)
                    if size > _MAX_XML:
                        raise InputError(
                            f"the .docx file unpacks to more than {_MAX_XML:,} bytes: paste its text"
                        )
                    reader.feed(block)
        return reader.close()
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error):
        raise InputError("the file is not a .docx document, or it is damaged or encrypted") from None
    except expat.ExpatError:
        raise InputError("the .docx file is damaged: its XML is not well-formed") from None


class _WordReader:
    """Collects the text of WordprocessingML from a stream."""

    def __init__(self) -> None:
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
        if self._length > 2 * MAX_CHARACTERS:  # trailing line breaks are removed later
            raise _too_long()
        self._pieces.append(characters)


def _pdf(data: bytes) -> str:
    command = [sys.executable, "-P", "-m", "dewmark.serve.uploads", str(2 * MAX_CHARACTERS)]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=_PDF_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(
            f"the .pdf file could not be read within {_PDF_SECONDS:g} s: paste its text"
        ) from None
    if done.returncode == _REJECTED:
        raise InputError(done.stderr.decode("utf-8", "replace").strip())
    if done.returncode != 0:
        raise InputError("the .pdf file is damaged or too complex to read: paste its text")
    return _reflow(done.stdout.decode("utf-8", "replace").split("\n"))


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


def _too_long() -> InputError:
    return InputError(f"the file contains more than {MAX_CHARACTERS:,} characters: paste the relevant part")


def _pdf_child(limit: int) -> int:
    """The child process: read a PDF from stdin, write about ``limit`` characters of its text to stdout.

    It limits its own CPU time and memory. Exit code 3 comes with a message for the user on stderr.
    """
    import resource

    from dewmark.extras import require

    resource.setrlimit(resource.RLIMIT_CPU, (int(_PDF_SECONDS), int(_PDF_SECONDS)))
    resource.setrlimit(resource.RLIMIT_AS, (_PDF_MEMORY, _PDF_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        pypdf = require("pypdf", extra="serve")
    except MissingExtraError as error:
        return _reject(str(error))
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    reader = pypdf.PdfReader(io.BytesIO(sys.stdin.buffer.read()))
    if reader.is_encrypted and not reader.decrypt(""):
        return _reject("the .pdf file is protected by a password: paste its text")
    if len(reader.pages) > _PDF_PAGES:
        return _reject(f"the .pdf file has more than {_PDF_PAGES:,} pages: paste the relevant part")
    written = 0
    for page in reader.pages:
        text = page.extract_text().strip("\n") + "\n"
        written += len(text)
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        if written > limit:
            break
    return 0


def _reject(message: str) -> int:
    sys.stderr.write(message + "\n")
    return _REJECTED


if __name__ == "__main__":
    sys.exit(_pdf_child(int(sys.argv[1])))
