"""Text extraction from uploaded files: .txt, .md, .pdf, .docx and .odt, within limits.

An upload may be hostile: an archive may unpack to terabytes, XML may declare entities that expand without
end, and any parser may be kept busy for hours. So documents are parsed in a `limited_child`; only plain text
is decoded here, in a few passes of the interpreter's own over bytes. Unpacked bytes and characters are
counted while reading, and document type declarations are rejected.

Boundary: bytes in, text out. Unreadable files raise `InputError`, unknown file types `UnknownNameError`. It
blocks: call it in a thread.
"""

from __future__ import annotations

import abc
import codecs
import dataclasses
import io
import json
import logging
import re
import unicodedata
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from xml.parsers import expat

from dewmark.errors import InputError, UnknownNameError
from dewmark_desk.limited_child import Bounds, run


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one extraction; the child process gets them as JSON."""

    file_bytes: int = 10_000_000
    characters: int = 1_000_000
    """The most text per file."""
    unpacked_bytes: int = 50_000_000
    """The most unpacked bytes of a document's main part."""
    parts: int = 10_000
    """The most files in a document."""
    pages: int = 2_000
    """The most pages of a .pdf."""
    seconds: float = 10.0
    """How much processor time a child process may use."""
    patience: float = 60.0
    """How many seconds a child process may take on a machine that is busy with other work."""
    memory: int = 512 << 20
    """The most memory of a child process."""


LIMITS = Limits()

_FULL_LINE = 0.7  # of the usual width: a shorter line ends its paragraph
_BLOCK = 1 << 16

_BOMS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_CLASSES = (
    bytes(  # white space, other ASCII; first bytes of UTF-8 sequences, those that continue them, others
        (b"s" if byte in b" \t\r\n" else b"a")[0]
        if byte < 0x80
        else (b"c" if byte < 0xC0 else b"f" if 0xC2 <= byte <= 0xF4 else b"o")[0]
        for byte in range(256)
    )
)
# its five unassigned bytes are control characters of Latin-1
_WINDOWS_1252 = "".join(
    bytes([byte]).decode("cp1252" if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else "latin-1")
    for byte in range(256)
)
_MAX_ACCENTED = 0.25  # share of non-ASCII letters in Western European text; real text has less than 0.15


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
    if suffix in _DOCUMENTS:
        text = _parse(suffix, data, limits)
    elif len(data) > 4 * limits.characters:  # a character has four bytes at most
        raise too_long(limits)
    else:
        text = plain_text(data)
    if len(text) > limits.characters:
        raise too_long(limits)
    if not text.strip():
        scan = ": scanned pages need text recognition first" if suffix == ".pdf" else ""
        raise InputError(f"the file contains no text{scan}")
    return text


def _parse(suffix: str, data: bytes, limits: Limits) -> str:
    """The text of a document, read by a child process."""
    given = json.dumps(dataclasses.asdict(limits))
    bounds = Bounds(limits.seconds, limits.memory, limits.patience)
    try:
        made = run("dewmark_desk.documents:read", suffix, given, data=data, bounds=bounds)
    except TimeoutError:
        raise InputError(
            f"the {suffix} file could not be read within {limits.seconds:g} s: paste its text"
        ) from None
    except ChildProcessError:
        raise InputError(f"the {suffix} file is damaged or too complex to read: paste its text") from None
    return made.decode("utf-8", "replace")


def read(data: bytes, suffix: str, limits: str) -> bytes:
    """The text of a document; ``limits`` as JSON. For the child process."""
    return _DOCUMENTS[suffix](data, Limits(**json.loads(limits))).encode("utf-8", "replace")


def too_long(limits: Limits) -> InputError:
    """The error for a file with too much text."""
    return InputError(f"the file has more than {limits.characters:,} characters: paste the relevant part")


def plain_text(data: bytes) -> str:
    """UTF-8, UTF-16 with a byte order mark, or Windows-1252, which includes Latin-1."""
    encoding = next((name for bom, name in _BOMS if data.startswith(bom)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8" or not _is_western(data):
            said = f"the file is not {encoding} text (byte {error.start}): save it as UTF-8"
            raise InputError(said) from None
        text, _ = codecs.charmap_decode(data, "strict", _WINDOWS_1252)
    if "\x00" in text:
        raise InputError("the file contains NUL characters: save it as UTF-8 text")
    return text.replace("\r\n", "\n")


def _is_western(data: bytes) -> bool:
    """Whether text that is not UTF-8 may be Latin-1: few accented letters, and not damaged UTF-8."""
    classes = data.translate(_CLASSES)
    spaces = classes.count(b"s")
    high = len(data) - spaces - classes.count(b"a")
    # a sequence is its first byte and up to three that continue it
    sequences = 2 * classes.count(b"fc") + classes.count(b"fcc") + classes.count(b"fccc")
    return high <= _MAX_ACCENTED * (len(data) - spaces) and sequences <= high / 2


def docx_text(data: bytes, limits: Limits) -> str:
    """The body of a Word document: paragraphs and tables in order, without tracked deletions.

    Headers, footers, notes and comments are in other parts of the file, which are not read.
    """
    return _read_archive(data, "word/document.xml", _WordText(".docx", limits))


def odt_text(data: bytes, limits: Limits) -> str:
    """The body of an OpenDocument text, without tracked deletions, notes and comments."""
    return _read_archive(data, "content.xml", _OpenDocumentText(".odt", limits))


class _XmlText(abc.ABC):
    """Collects text from a stream of XML; subclasses know the tags."""

    def __init__(self, kind: str, limits: Limits) -> None:
        self.kind, self.limits = kind, limits
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._reject_doctype
        self._parser.StartElementHandler = self.start
        self._parser.EndElementHandler = self.end
        self._parser.CharacterDataHandler = self.characters
        self._pieces: list[str] = []
        self._length = 0

    def feed(self, block: bytes) -> None:
        self._parser.Parse(block, False)

    def close(self) -> str:
        self._parser.Parse(b"", True)
        return "".join(self._pieces).strip("\n")

    def write(self, characters: str) -> None:
        """Add text, up to the limit."""
        self._length += len(characters)
        if self._length > 2 * self.limits.characters:  # trailing line breaks are removed later
            raise too_long(self.limits)
        self._pieces.append(characters)

    def _reject_doctype(self, *_: object) -> None:
        raise InputError(
            f"the {self.kind} file declares a document type, which word processors never do: paste its text"
        )

    @abc.abstractmethod
    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins."""

    @abc.abstractmethod
    def end(self, tag: str) -> None:
        """An element ends."""

    @abc.abstractmethod
    def characters(self, characters: str) -> None:
        """Text between tags."""


def _read_archive(data: bytes, part: str, parser: _XmlText) -> str:
    kind, limits = parser.kind, parser.limits
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if len(archive.infolist()) > limits.parts:
                raise InputError(f"the {kind} file has more than {limits.parts:,} parts: paste its text")
            entry = archive.getinfo(part)
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & 1:
                raise InputError(f"the {kind} file is encrypted or unusually compressed: paste its text")
            with archive.open(entry) as stream:
                # the declared size may be wrong: count while unpacking
                size = 0
                while block := stream.read(_BLOCK):
                    size += len(block)
                    if size > limits.unpacked_bytes:
                        raise InputError(
                            f"the {kind} file unpacks to more than {limits.unpacked_bytes:,} bytes: "
                            "paste its text"
                        )
                    parser.feed(block)
        return parser.close()
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error):
        raise InputError(f"the file is not a {kind} document, or it is damaged or encrypted") from None
    except expat.ExpatError:
        raise InputError(f"the {kind} file is damaged or encrypted: its XML is not well-formed") from None


_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main "
_WORD_BREAKS = {f"{_WORD}tab": "\t", f"{_WORD}br": "\n", f"{_WORD}cr": "\n", f"{_WORD}noBreakHyphen": "-"}
# Repeats content for older programs.
_FALLBACK = "http://schemas.openxmlformats.org/markup-compatibility/2006 Fallback"


class _WordText(_XmlText):
    _in_text = False
    _fallbacks = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == _FALLBACK:
            self._fallbacks += 1
        elif tag == f"{_WORD}t":
            self._in_text = True
        elif tag in _WORD_BREAKS:
            self.write(_WORD_BREAKS[tag])

    def end(self, tag: str) -> None:
        if tag == _FALLBACK:
            self._fallbacks -= 1
        elif tag == f"{_WORD}t":
            self._in_text = False
        elif tag == f"{_WORD}p":
            self.write("\n")

    def characters(self, characters: str) -> None:
        if self._in_text:
            self.write(characters)

    def write(self, characters: str) -> None:
        if not self._fallbacks:
            super().write(characters)


_OASIS = "urn:oasis:names:tc:opendocument:xmlns:"
_TEXT, _OFFICE = f"{_OASIS}text:1.0 ", f"{_OASIS}office:1.0 "
_PARAGRAPHS = (f"{_TEXT}p", f"{_TEXT}h")
_LEFT_OUT = {
    f"{_OFFICE}annotation",
    f"{_OFFICE}forms",
    f"{_TEXT}note",
    f"{_TEXT}ruby-text",
    f"{_TEXT}tracked-changes",  # where deleted text is kept
    f"{_OASIS}svg-compatible:1.0 desc",
    f"{_OASIS}svg-compatible:1.0 title",
}
_SPACES = re.compile(r"[ \t\r\n]+")


class _OpenDocumentText(_XmlText):
    """White space collapses as in HTML; tabs, line breaks and repeated spaces are elements."""

    _paragraphs = 0  # open ones; a frame may hold a paragraph inside another
    _left_out = 0
    _after_space = True

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag in _LEFT_OUT:
            self._left_out += 1
        elif self._left_out:
            return
        elif tag in _PARAGRAPHS:
            self._paragraphs += 1
            self._after_space = True
        elif tag == f"{_TEXT}s":
            count = attributes.get(f"{_TEXT}c", "1")
            number = int(count[:9]) if count.isdecimal() else 1
            self.write(" " * min(number, 2 * self.limits.characters + 1))
        elif tag == f"{_TEXT}tab":
            self.write("\t")
        elif tag == f"{_TEXT}line-break":
            self.write("\n")

    def end(self, tag: str) -> None:
        if tag in _LEFT_OUT:
            self._left_out -= 1
        elif tag in _PARAGRAPHS and not self._left_out:
            self._paragraphs -= 1
            self.write("\n")

    def characters(self, characters: str) -> None:
        if self._left_out or not self._paragraphs:
            return
        text = _SPACES.sub(" ", characters)
        if self._after_space:
            text = text.removeprefix(" ")
        if text:
            self._after_space = text.endswith(" ")
            self.write(text)


def _pdf(data: bytes, limits: Limits) -> str:
    """The text of a PDF, as paragraphs."""
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    file = pypdf.PdfReader(io.BytesIO(data))
    if file.is_encrypted and not file.decrypt(""):
        raise InputError("the .pdf file is protected by a password: paste its text")
    if len(file.pages) > limits.pages:
        raise InputError(f"the .pdf file has more than {limits.pages:,} pages: paste the relevant part")
    lines: list[str] = []
    written = 0
    for page in file.pages:
        text = page.extract_text().strip("\n")
        written += len(text)
        if written > 2 * limits.characters:
            raise too_long(limits)
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


_DOCUMENTS: dict[str, Callable[[bytes, Limits], str]] = {".pdf": _pdf, ".docx": docx_text, ".odt": odt_text}
SUFFIXES = (".txt", ".md", *_DOCUMENTS)
