"""Readers of documents: Latin-1 text, OpenDocument and Rich Text; Word and .pdf are in test_uploads."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.desk.test_uploads import packed

from dewmark.errors import InputError
from dewmark_desk.documents import Limits, odt_text, plain_text, rtf_text
from dewmark_desk.uploads import LIMITS, extract_text

FEW = Limits(characters=1000)
NAMES = (
    'xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" '
    'xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0"'
)


def odt(body: str, *, head: str = "") -> bytes:
    """An OpenDocument text with this body."""
    xml = (
        f"<?xml version='1.0'?>{head}<office:document-content {NAMES}>"
        f"<office:body><office:text>{body}</office:text></office:body></office:document-content>"
    )
    return packed("content.xml", xml.encode())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("Ein Käfer über Bäumen, naïve façade".encode("latin-1"), "Ein Käfer über Bäumen, naïve façade"),
        (
            "“L’été” — 5 €".encode("cp1252") + b" and a few more words than that",
            "“L’été” — 5 € and a few more words than that",
        ),
        (b"one caf\xe9\r\ntwo \x81", "one café\ntwo \x81"),
    ],
)
def test_western_text_that_is_not_utf8(data, text):
    assert plain_text(data) == text
    assert extract_text("a.txt", data) == text


@pytest.mark.parametrize(
    "data",
    [
        "Привет, мир, это русский текст".encode("cp1251"),
        "これは日本語の文章です。".encode("cp932"),
        "Grüße aus Köln und Zürich über Österreich".encode()[:-30] + b"\xe9",
        bytes(range(128, 256)) * 4,
    ],
)
def test_text_in_other_encodings_is_refused_not_garbled(data):
    with pytest.raises(InputError, match="save it as UTF-8"):
        plain_text(data)


def test_open_document_is_read_in_order():
    body = (
        "<text:tracked-changes><text:deletion><text:p>deleted</text:p></text:deletion></text:tracked-changes>"
        "<text:h>Title</text:h>"
        "<text:p>One  two\n   three<text:s text:c='3'/>four<text:tab/>five<text:line-break/>six"
        "<text:note><text:note-body><text:p>footnote</text:p></text:note-body></text:note>"
        "<office:annotation><text:p>comment</text:p></office:annotation> end.</text:p>"
        "<text:list><text:list-item><text:p>item &lt;b&gt;</text:p></text:list-item></text:list>"
    )
    assert odt_text(odt(body), LIMITS) == "Title\nOne two three   four\tfive\nsix end.\nitem <b>"
    assert extract_text("a.ODT", odt("<text:p>word</text:p>")) == "word"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (odt("<text:p>&a;</text:p>", head='<!DOCTYPE d [<!ENTITY a "ha">]>'), "declares a document type"),
        (packed("word/document.xml", b"<a/>"), "not a .odt document"),
        (packed("content.xml", b"\x93\x01 encrypted"), "damaged or encrypted"),
        (b"PK broken", "not a .odt document"),
    ],
)
def test_bad_open_documents_give_a_one_line_error(data, said):
    with pytest.raises(InputError, match=said) as caught:
        odt_text(data, LIMITS)
    assert "\n" not in str(caught.value)


def test_repeated_spaces_are_counted():
    with pytest.raises(InputError, match="more than 1,000 characters"):
        odt_text(odt("<text:p>a<text:s text:c='99999999999999'/>b</text:p>"), FEW)


RTF = rb"""{\rtf1\ansi\ansicpg1252\deff0{\fonttbl{\f0\froman Times;}{\f1\fswiss\fcharset204 Arial Cyr;}
{\f2\fcharset128 MS Mincho;}}{\colortbl;\red0\green0\blue0;}{\stylesheet{\s0 Normal;}}
{\*\generator Writer 1;}{\info{\title Secret}{\author A}}{\header Page header\par}
\pard The caf\'e9 \u8212?\u8220\'93quoted\u8221\'94 \{x\} a\~b\par
{\b bold} {\v hidden}{\deleted gone}kept{\footnote note}\line next\tab col
umn\par \f1\'cf\'f0\'e8\'e2\'e5\'f2\f0  \f2\'93\'fa\'96\'7b\f0\par
\uc2\u-10179\'3f\'3f\u-8430\'3f\'3f{\field{\*\fldinst HYPERLINK "x"}{\fldrslt link}}{\pict 0102}
\bin5 }}}}}end.\par}trailing garbage"""


def test_rich_text_is_read_in_order():
    assert rtf_text(RTF, LIMITS) == (
        "The café —“quoted” {x} a\u00a0b\nbold kept\nnext\tcolumn\nПривет 日本\n🜒linkend."
    )


@pytest.mark.parametrize("data", [b"no rtf", b"", b"{\\ansi text}"])
def test_other_files_are_not_rich_text(data):
    with pytest.raises(InputError, match="not a .rtf document"):
        rtf_text(data, LIMITS)


def test_rich_text_limits():
    with pytest.raises(InputError, match="nested too deeply"):
        rtf_text(b"{\\rtf1" + b"{" * 5000, LIMITS)
    start = time.perf_counter()
    assert rtf_text(b"{\\rtf1 " + b"\\" * 2_000_001, LIMITS) == "\\" * 1_000_000
    assert rtf_text(b"{\\rtf1" + b"\\bin-5\\bin" * 100_000 + b" x}", LIMITS) == "x"
    assert time.perf_counter() - start < 10.0
    with pytest.raises(InputError, match="more than 1,000 characters"):
        rtf_text(b"{\\rtf1 " + b"\\tab" * 2001 + b"}", FEW)


@given(st.binary(max_size=300))
def test_any_bytes_give_text_or_an_input_error(data):
    with contextlib.suppress(InputError):
        plain_text(data).encode()
    for read, content in [(odt_text, packed("content.xml", data)), (rtf_text, b"{\\rtf1" + data)]:
        with contextlib.suppress(InputError):
            read(content, LIMITS).encode()
