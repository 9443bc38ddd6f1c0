"""The text of documents: plain text, Word (.docx), OpenDocument (.odt) and Rich Text (.rtf).

A document may be hostile: an archive may unpack to terabytes, and XML may declare entities that expand
without end. So unpacked bytes and characters are counted while reading, and document type declarations are
rejected.

Boundary: pure functions from bytes to text. Unreadable files raise `InputError`; `uploads` limits time and
memory.
"""

from __future__ import annotations

import abc
import codecs
import io
import re
import zipfile
import zlib
from dataclasses import dataclass
from xml.parsers import expat

from dewmark.errors import InputError


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
    """How long a child process may run, and how much processor time it may use."""
    memory: int = 512 << 20
    """The most address space of a child process."""


_MAX_DEPTH = 1_000  # groups inside groups of a .rtf file
_BLOCK = 1 << 16

_BOMS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_UTF8_SEQUENCE = re.compile(rb"[\xc2-\xf4][\x80-\xbf]{1,3}")
_HIGH = re.compile(rb"[\x80-\xff]")
# its five unassigned bytes are control characters of Latin-1
_WINDOWS_1252 = "".join(
    bytes([byte]).decode("cp1252" if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else "latin-1")
    for byte in range(256)
)
_MAX_ACCENTED = 0.25  # share of non-ASCII letters in Western European text; real text has less than 0.15


def too_long(limits: Limits) -> InputError:
    """The error for a file with too much text."""
    return InputError(
        f"the file contains more than {limits.characters:,} characters: paste the relevant part"
    )


def plain_text(data: bytes) -> str:
    """UTF-8, UTF-16 with a byte order mark, or Windows-1252, which includes Latin-1."""
    encoding = next((name for bom, name in _BOMS if data.startswith(bom)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8" or not _is_western(data):
            raise InputError(
                f"the file is not {encoding} text (byte {error.start}): save it as UTF-8"
            ) from None
        text, _ = codecs.charmap_decode(data, "strict", _WINDOWS_1252)
    if "\x00" in text:
        raise InputError("the file contains NUL characters: save it as UTF-8 text")
    return text.replace("\r\n", "\n")


def _is_western(data: bytes) -> bool:
    """Whether text that is not UTF-8 may be Latin-1: few accented letters, and not damaged UTF-8."""
    high = len(_HIGH.findall(data))
    sequences = sum(len(found) for found in _UTF8_SEQUENCE.findall(data))
    return high <= _MAX_ACCENTED * len(data.translate(None, b" \t\r\n")) and sequences <= high / 2


class _Pieces:
    """Collected text, up to the limit."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pieces: list[str] = []
        self._length = 0

    def add(self, characters: str) -> None:
        self._length += len(characters)
        if self._length > 2 * self._limits.characters:  # trailing line breaks are removed later
            raise too_long(self._limits)
        self._pieces.append(characters)

    def joined(self) -> str:
        return "".join(self._pieces).strip("\n")


def docx_text(data: bytes, limits: Limits) -> str:
    """The body of a Word document: paragraphs and tables in order, without tracked deletions.

    Headers, footers, notes and comments are in other parts of the file, which are not read.
    """
    return _read_archive(data, "word/document.xml", _WordReader(".docx", limits))


def odt_text(data: bytes, limits: Limits) -> str:
    """The body of an OpenDocument text, without tracked deletions, notes and comments."""
    return _read_archive(data, "content.xml", _OpenDocumentReader(".odt", limits))


class _XmlReader(abc.ABC):
    """Collects text from a stream of XML; subclasses know the tags."""

    def __init__(self, kind: str, limits: Limits) -> None:
        self.kind, self.limits = kind, limits
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._reject_doctype
        self._parser.StartElementHandler = self.start
        self._parser.EndElementHandler = self.end
        self._parser.CharacterDataHandler = self.characters
        self.pieces = _Pieces(limits)

    def feed(self, block: bytes) -> None:
        self._parser.Parse(block, False)

    def close(self) -> str:
        self._parser.Parse(b"", True)
        return self.pieces.joined()

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


def _read_archive(data: bytes, part: str, reader: _XmlReader) -> str:
    kind, limits = reader.kind, reader.limits
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
                    reader.feed(block)
        return reader.close()
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error):
        raise InputError(f"the file is not a {kind} document, or it is damaged or encrypted") from None
    except expat.ExpatError:
        raise InputError(f"the {kind} file is damaged or encrypted: its XML is not well-formed") from None


_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main "
_WORD_BREAKS = {f"{_WORD}tab": "\t", f"{_WORD}br": "\n", f"{_WORD}cr": "\n", f"{_WORD}noBreakHyphen": "-"}
# Repeats content for older programs.
_FALLBACK = "http://schemas.openxmlformats.org/markup-compatibility/2006 Fallback"


class _WordReader(_XmlReader):
    _in_text = False
    _fallbacks = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == _FALLBACK:
            self._fallbacks += 1
        elif tag == f"{_WORD}t":
            self._in_text = True
        elif tag in _WORD_BREAKS:
            self._add(_WORD_BREAKS[tag])

    def end(self, tag: str) -> None:
        if tag == _FALLBACK:
            self._fallbacks -= 1
        elif tag == f"{_WORD}t":
            self._in_text = False
        elif tag == f"{_WORD}p":
            self._add("\n")

    def characters(self, characters: str) -> None:
        if self._in_text:
            self._add(characters)

    def _add(self, characters: str) -> None:
        if not self._fallbacks:
            self.pieces.add(characters)


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


class _OpenDocumentReader(_XmlReader):
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
            self.pieces.add(
                " " * (min(int(count[:9]), 2 * self.limits.characters + 1) if count.isdecimal() else 1)
            )
        elif tag == f"{_TEXT}tab":
            self.pieces.add("\t")
        elif tag == f"{_TEXT}line-break":
            self.pieces.add("\n")

    def end(self, tag: str) -> None:
        if tag in _LEFT_OUT:
            self._left_out -= 1
        elif tag in _PARAGRAPHS and not self._left_out:
            self._paragraphs -= 1
            self.pieces.add("\n")

    def characters(self, characters: str) -> None:
        if self._left_out or not self._paragraphs:
            return
        text = _SPACES.sub(" ", characters)
        if self._after_space:
            text = text.removeprefix(" ")
        if text:
            self._after_space = text.endswith(" ")
            self.pieces.add(text)


_RTF_TOKEN = re.compile(
    r"\\(?P<word>[a-zA-Z]{1,32})(?P<number>-?\d{1,10})? ?"
    r"|\\'(?P<hex>[0-9a-fA-F]{2})"
    r"|\\(?P<symbol>[^a-zA-Z])"
    r"|(?P<brace>[{}])"
    r"|(?P<plain>[^\\{}\r\n]+)"
    r"|[\r\n]+|\\",
    re.DOTALL,
)
_RTF_CHARACTERS = {
    "par": "\n", "line": "\n", "sect": "\n", "page": "\n", "row": "\n", "cell": "\t", "tab": "\t",
    "emdash": "—", "endash": "–", "emspace": "\u2003", "enspace": "\u2002", "bullet": "•",
    "lquote": "‘", "rquote": "’", "ldblquote": "“", "rdblquote": "”",
}  # fmt: skip
_RTF_SYMBOLS = {
    "~": "\u00a0",
    "_": "\u2011",
    "{": "{",
    "}": "}",
    "\\": "\\",
    "\n": "\n",
    "\r": "\n",
    "\t": "\t",
}
_RTF_LEFT_OUT = {
    "annotation", "colortbl", "datafield", "fldinst", "footer", "footerf", "footerl", "footerr", "footnote",
    "header", "headerf", "headerl", "headerr", "info", "listtext", "object", "pict", "pntext", "stylesheet",
    "tc", "xe",
}  # fmt: skip
_RTF_CODE_PAGES = {"ansi": "cp1252", "mac": "mac_roman", "pc": "cp437", "pca": "cp850"}
_RTF_CHARSETS = {
    77: "mac_roman", 128: "cp932", 129: "cp949", 134: "gbk", 136: "big5", 161: "cp1253", 162: "cp1254",
    163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874", 238: "cp1250",
}  # fmt: skip


class _RtfState:
    """What a group inherits from the group around it."""

    __slots__ = ("fallback", "font", "fonts", "hidden", "skip")

    def __init__(self) -> None:
        self.skip = self.fonts = self.hidden = False
        self.font = 0
        self.fallback = 1  # characters that stand for a \u in old programs

    def copy(self) -> _RtfState:
        made = _RtfState()
        for name in self.__slots__:
            setattr(made, name, getattr(self, name))
        return made


def rtf_text(data: bytes, limits: Limits) -> str:
    """The body of a Rich Text file, without headers, notes, hidden and deleted text."""
    if not data.lstrip().startswith(b"{\\rtf"):
        raise InputError("the file is not a .rtf document, or it is damaged")
    return _RtfReader(limits).read(data.decode("latin-1"))


class _RtfReader:
    def __init__(self, limits: Limits) -> None:
        self._pieces = _Pieces(limits)
        self._code_page = "cp1252"
        self._fonts: dict[int, str] = {}  # code pages
        self._state = _RtfState()
        self._bytes = bytearray()  # of \'hh, decoded together because a character may have two
        self._units: list[int] = []  # UTF-16, because \u gives surrogates one by one
        self._to_skip = 0  # fallback characters after a \u
        self._starts = False  # whether a group has just begun

    def read(self, source: str) -> str:
        around: list[_RtfState] = []
        at = 0
        while (found := _RTF_TOKEN.match(source, at)) is not None:
            at = found.end()
            if (brace := found["brace"]) is not None:
                self._flush()
                self._to_skip = 0
                if brace == "{":
                    around.append(self._state)
                    if len(around) > _MAX_DEPTH:
                        raise InputError("the .rtf file is nested too deeply: paste its text")
                    self._state = self._state.copy()
                    self._starts = True
                    continue
                if not around:
                    break
                self._state = around.pop()
                if not around:
                    break  # the document ends with its group
            elif (word := found["word"]) is not None:
                number = None if found["number"] is None else int(found["number"])
                if word == "bin":
                    at += max(0, number or 0)
                else:
                    self._control(word, number)
            elif found["hex"] is not None:
                self._byte(int(found["hex"], 16))
            elif (symbol := found["symbol"]) is not None:
                if symbol == "*":
                    self._state.skip = self._state.skip or self._starts
                elif symbol in _RTF_SYMBOLS:
                    self._write(_RTF_SYMBOLS[symbol])
            elif (plain := found["plain"]) is not None:
                self._plain(plain)
            self._starts = False
        self._flush()
        return self._pieces.joined()

    def _control(self, word: str, number: int | None) -> None:
        state = self._state
        if word in _RTF_LEFT_OUT and self._starts:
            state.skip = True
        elif word == "fonttbl":
            state.fonts = state.skip = True
        elif word == "fcharset" and state.fonts:
            self._fonts[state.font] = _RTF_CHARSETS.get(number or 0, "")
        elif word in ("f", "deff"):
            self._flush()
            state.font = number or 0
        elif word in _RTF_CODE_PAGES:
            self._code_page = _RTF_CODE_PAGES[word]
        elif word == "ansicpg":
            self._code_page = _known_code_page(number) or self._code_page
        elif word == "uc":
            state.fallback = min(max(0, number or 0), 10)
        elif word == "u":
            self._unit((number or 0) & 0xFFFF)
        elif word in ("v", "deleted"):
            self._flush()
            state.hidden = number != 0
        elif word == "plain":
            self._flush()
            state.hidden = False
        elif word in _RTF_CHARACTERS:
            self._write(_RTF_CHARACTERS[word])

    def _unit(self, unit: int) -> None:
        self._decode_bytes()
        if not self._silent():
            self._units.append(unit)
        self._to_skip = self._state.fallback

    def _byte(self, byte: int) -> None:
        if self._to_skip:
            self._to_skip -= 1
        elif not self._silent():
            self._decode_units()
            self._bytes.append(byte)

    def _plain(self, text: str) -> None:
        dropped = min(self._to_skip, len(text))
        self._to_skip -= dropped
        self._bytes_or_text(text[dropped:])

    def _bytes_or_text(self, text: str) -> None:
        if not text or self._silent():
            return
        if text.isascii() and not self._bytes:
            self._flush()
            self._pieces.add(text)
        else:  # the second byte of a character may be written as a letter
            self._decode_units()
            self._bytes += text.encode("latin-1")

    def _write(self, characters: str) -> None:
        self._flush()
        self._to_skip = 0
        if not self._silent():
            self._pieces.add(characters)

    def _silent(self) -> bool:
        return self._state.skip or self._state.hidden

    def _flush(self) -> None:
        self._decode_bytes()
        self._decode_units()

    def _decode_bytes(self) -> None:
        if self._bytes:
            code_page = self._fonts.get(self._state.font) or self._code_page
            text, self._bytes = bytes(self._bytes).decode(code_page, "replace"), bytearray()
            self._pieces.add(text)

    def _decode_units(self) -> None:
        if self._units:
            data = b"".join(unit.to_bytes(2, "little") for unit in self._units)
            self._units = []
            self._pieces.add(data.decode("utf-16-le", "replace"))


def _known_code_page(number: int | None) -> str | None:
    name = {65001: "utf-8", 10000: "mac_roman"}.get(number or 0, f"cp{number}")
    try:
        return codecs.lookup(name).name
    except LookupError:
        return None
