"""Files to rewrite: plain text, Markdown and HTML as they are, and Word documents by their runs.

Markup stays where it is because changes replace words only: everything else of the file is copied. In a Word
document the text is that of its paragraphs; a word that lies in two runs, because half of it is bold, stays.
"""

from __future__ import annotations

import html
import io
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dewmark.errors import InputError
from dewmark_rewrite.sentences import TextSpan
from dewmark_rewrite.thesaurus import Candidate, apply

_PART = "word/document.xml"
_LARGEST = 64 << 20  # bytes of XML
_XML = re.compile(
    r"<mc:Fallback\b.*?</mc:Fallback>|<w:t(?:\s[^>]*)?>(?P<text>[^<]*)</w:t>|(?P<paragraph></w:p>)"
    r"|(?P<break><w:(?:tab|br|cr)\b[^>]*/>)",
    re.DOTALL,
)


@dataclass(frozen=True)
class TextRun:
    """A piece of a Word document's text: its place in the text, and in the XML."""

    place: TextSpan
    source: TextSpan


@dataclass(frozen=True)
class RewritableDocument:
    """A file's ``text``, and the places of it that must stay because its format cannot change them."""

    text: str
    fixed: tuple[TextSpan, ...] = ()
    data: bytes = field(default=b"", repr=False)
    runs: tuple[TextRun, ...] = field(default=(), repr=False)

    def with_changes(self, changes: Sequence[Candidate]) -> bytes:
        """The file with changes of its text."""
        if not self.runs:
            return apply(self.text, changes).encode("utf-8")
        with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
            xml = archive.read(_PART).decode("utf-8")
            edits: list[Candidate] = []
            for run in self.runs:
                inside = [
                    change for change in changes
                    if run.place.start <= change.start and change.end <= run.place.end
                ]  # fmt: skip
                if inside:
                    old = self.text[run.place.start : run.place.end]
                    new = html.escape(apply(self.text, inside, run.place), quote=False)
                    edits.append(Candidate(*run.source, old, new))
            written = io.BytesIO()
            with zipfile.ZipFile(written, "w") as copy:
                for entry in archive.infolist():
                    content = apply(xml, edits).encode() if entry.filename == _PART else archive.read(entry)
                    copy.writestr(entry, content, compress_type=entry.compress_type)
        return written.getvalue()


def read_document(data: bytes, name: str) -> RewritableDocument:
    """The document in a file's bytes; its name tells Word documents from text."""
    if Path(name).suffix.lower() == ".docx":
        return _word(data, name)
    try:
        return RewritableDocument(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8 text (byte {error.start}): save it as UTF-8, or as .docx"
        ) from None


def _word(data: bytes, name: str) -> RewritableDocument:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if archive.getinfo(_PART).file_size > _LARGEST:
                raise InputError(f"{name} unpacks to more than {_LARGEST >> 20} MB: split it")
            xml = archive.read(_PART).decode("utf-8")
    except (zipfile.BadZipFile, KeyError, UnicodeDecodeError):
        raise InputError(f"{name} is not a .docx document, or it is damaged or encrypted") from None
    pieces: list[str] = []
    runs: list[TextRun] = []
    length = 0
    for match in _XML.finditer(xml):
        if match["text"] is not None:
            piece = html.unescape(match["text"])
            runs.append(TextRun(TextSpan(length, length + len(piece)), TextSpan(*match.span("text"))))
        else:
            piece = "\n" if match["paragraph"] else " " if match["break"] else ""
        pieces.append(piece)
        length += len(piece)
    text = "".join(pieces)
    if not text.strip():
        raise InputError(f"{name} contains no text")
    joints = (run.place.end for run in runs if text[run.place.end - 1 : run.place.end + 1].isalnum())
    return RewritableDocument(text, tuple(TextSpan(at - 1, at + 1) for at in joints), data, tuple(runs))
