"""Text extraction from uploaded files: .txt, .md, .pdf, .docx, .odt and .rtf, within limits.

An upload may be hostile, and any parser may be kept busy for hours. So documents are parsed in a child
process (this module, run as a program) with limited time and memory and a low priority, which is killed when
its time is up; only plain text is decoded here. `documents` has the parsers, except that of .pdf.

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
from collections.abc import Callable
from pathlib import PurePath

from dewmark.errors import InputError, MissingExtraError, UnknownNameError
from dewmark_desk.documents import Limits, docx_text, odt_text, plain_text, rtf_text, too_long

LIMITS = Limits()

_NICENESS = 10  # requests go before uploads
_REJECTED = 3  # exit code of a child process that wrote a message for the user
_FULL_LINE = 0.7  # of the usual width: a shorter line ends its paragraph


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
    text = _parse(suffix, data, limits) if suffix in _DOCUMENTS else plain_text(data)
    if len(text) > limits.characters:
        raise too_long(limits)
    if not text.strip():
        scan = ": scanned pages need text recognition first" if suffix == ".pdf" else ""
        raise InputError(f"the file contains no text{scan}")
    return text


def _parse(suffix: str, data: bytes, limits: Limits) -> str:
    """The text of a document, read by a child process."""
    given = json.dumps(dataclasses.asdict(limits))
    command = [sys.executable, "-P", "-m", "dewmark_desk.uploads", suffix, given]
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


_DOCUMENTS: dict[str, Callable[[bytes, Limits], str]] = {
    ".pdf": _pdf,
    ".docx": docx_text,
    ".odt": odt_text,
    ".rtf": rtf_text,
}
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
