"""Text extraction: files yield their text, and hostile files a one-line error."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import tracemalloc
import zipfile
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dewmark.errors import InputError, UnknownNameError
from dewmark_desk import documents
from dewmark_desk.documents import LIMITS, SUFFIXES, Limits, docx_text, extract_text, odt_text, plain_text

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
MC = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'


def docx(body: str, *, head: str = "", part: str = "word/document.xml") -> bytes:
    """A Word document with this body."""
    xml = f"<?xml version='1.0'?>{head}<w:document {W} {MC}><w:body>{body}</w:body></w:document>"
    return packed(part, xml.encode())


def packed(part: str, content: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr(part, content)
    return stream.getvalue()


def limit(monkeypatch, **changes: float) -> None:
    monkeypatch.setattr(documents, "LIMITS", dataclasses.replace(documents.LIMITS, **changes))


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine is slow, and no fault of a file."""
    limit(monkeypatch, patience=3600.0)


def pdf(pages: list[list[str]]) -> bytes:
    """A PDF with one line of Helvetica for each string."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b""]
    objects.append(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>")
    kids = []
    for lines in pages:
        shown = b"".join(b"(%s) Tj T* " % line.encode("cp1252") for line in lines)
        content = zlib.compress(b"BT /F 11 Tf 72 720 Td 14 TL %s ET" % shown)
        objects.append(
            b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(content), content)
        )
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R"
            b" /Resources << /Font << /F 3 0 R >> >> >>" % len(objects)
        )
        kids.append(b"%d 0 R" % len(objects))
    objects[1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (b" ".join(kids), len(kids))
    out, places = b"%PDF-1.7\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return (
        out
        + b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table)
        + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, len(out))
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_plain_text_in_the_usual_encodings(encoding):
    text = "Grüße, 世界\nשלום 🌧"
    assert extract_text("a.TXT", text.encode(encoding)) == text
    assert extract_text("notes.md", text.encode(encoding)) == text


def test_windows_line_ends_become_line_feeds():
    assert extract_text("a.txt", b"one\r\ntwo\r\n") == "one\ntwo\n"


@given(st.text(min_size=1).filter(lambda text: text.strip() and "\x00" not in text and "\r\n" not in text))
def test_any_text_survives(text):
    try:
        data = text.encode()
    except UnicodeEncodeError:  # no file contains a lone surrogate
        return
    if not data.startswith(b"\xef\xbb\xbf"):
        assert extract_text("a.txt", data) == text


def test_word_document_is_read_in_order():
    body = (
        "<w:p><w:r><w:t>One </w:t></w:r><w:ins><w:r><w:t>&lt;b&gt; two</w:t></w:r></w:ins>"
        "<w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:r><w:instrText>PAGE</w:instrText></w:r></w:p>"
        "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>left</w:t><w:tab/><w:t>right</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
        "<w:p><mc:AlternateContent><mc:Choice><w:r><w:t>box</w:t></w:r></mc:Choice>"
        "<mc:Fallback><w:r><w:t>box</w:t></w:r></mc:Fallback></mc:AlternateContent></w:p>"
    )
    assert extract_text("a.docx", docx(body)) == "One <b> two\nleft\tright\nbox"


def test_word_document_with_entities_is_rejected():
    laughs = '<!DOCTYPE d [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    with pytest.raises(InputError, match="document type"):
        extract_text("a.docx", docx("<w:p><w:r><w:t>&b;</w:t></w:r></w:p>", head=laughs))


def test_word_document_that_unpacks_without_end_is_rejected(monkeypatch):
    limit(monkeypatch, unpacked_bytes=1_000_000)
    bomb = docx("<w:p/>" + " " * 30_000_000)
    assert len(bomb) < 100_000
    with pytest.raises(InputError, match="unpacks to more than 1,000,000 bytes"):
        extract_text("a.docx", bomb)


def test_more_text_than_the_limit_is_rejected(monkeypatch):
    limit(monkeypatch, characters=1000)
    for name, data in {
        "a.txt": b"a" * 1001,
        "a.docx": docx(f"<w:p><w:r><w:t>{'a' * 1001}</w:t></w:r></w:p>"),
        "b.docx": docx("<w:p><w:r><w:t>aa</w:t></w:r></w:p>" * 1000),
    }.items():
        with pytest.raises(InputError, match="more than 1,000 characters"):
            extract_text(name, data)


def test_file_over_the_limit_is_not_read(monkeypatch):
    limit(monkeypatch, file_bytes=10)
    with pytest.raises(InputError, match="11 bytes, more than 10"):
        extract_text("a.pdf", b"%PDF" + b" " * 7)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.txt", b"\xcf\xf0\xe8\xe2\xe5\xf2 \xec\xe8\xf0", r"not utf-8 text \(byte 0\)"),
        ("a.txt", b"\xff\xfe\x00", "not utf-16 text"),
        ("a.md", b"a\x00b", "NUL"),
        ("a.txt", b" \n ", "contains no text"),
        ("a.docx", b"PK\x03\x04 broken", "not a .docx"),
        ("a.docx", packed("other.xml", b"<a/>"), "not a .docx"),
        ("a.docx", packed("word/document.xml", b"<a><b></a>"), "not well-formed"),
        ("a.docx", packed("word/document.xml", b"<a/>", zipfile.ZIP_LZMA), "unusually compressed"),
        ("a.docx", docx("<w:p/>"), "contains no text"),
        ("a.docx", docx("<w:p><w:r><w:t>a</w:t></w:r></w:p>")[:-30], "not a .docx"),
        ("a.pdf", b"not a pdf", "damaged"),
        ("a.pdf", pdf([[]]), "text recognition"),
    ],
)
def test_bad_files_give_a_one_line_error(name, data, said):
    with pytest.raises(InputError, match=said) as caught:
        extract_text(name, data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.exe", "noending", "a.doc", ".pdf"])
def test_unsupported_file_types_are_rejected(name):
    with pytest.raises(UnknownNameError, match=r"unsupported file type .*use \.txt"):
        extract_text(name, b"text")


@given(st.binary(max_size=400))
@settings(max_examples=60)
def test_any_bytes_give_text_or_an_input_error(data):
    with contextlib.suppress(InputError):
        assert extract_text("a.txt", data).strip()
    for content in (data, packed("word/document.xml", data), b"PK\x03\x04" + data):
        with contextlib.suppress(InputError):  # in this process: a child each would take minutes
            docx_text(content, documents.LIMITS)


@pytest.mark.parametrize("suffix", [each for each in SUFFIXES if each not in (".txt", ".md")])
def test_documents_are_parsed_in_a_limited_child(monkeypatch, suffix):
    def busy(*_: object) -> str:
        raise AssertionError("parsed in the service's own process")

    monkeypatch.setitem(documents._DOCUMENTS, suffix, busy)
    with pytest.raises(InputError):
        extract_text(f"a{suffix}", b"not a document")


def test_pdf_becomes_running_text():
    full = "The rain came down the hill before noon and the old bridge was slippery"
    data = pdf(
        [
            [full, "by the time we reached it, so everybody walked and nobody remem-"],
            ["bered why.", "The end."],
        ]
    )
    assert extract_text("a.pdf", data) == (
        f"{full} by the time we reached it, so everybody walked and nobody remembered why.\nThe end."
    )


def test_pdf_that_unpacks_without_end_is_rejected(monkeypatch):
    limit(monkeypatch, seconds=2.0)
    line = pdf([["A" * 100_000_000]])  # a hundred kilobytes
    assert len(line) < 200_000
    with pytest.raises(InputError, match=r"within 2 s|too complex to read"):
        extract_text("a.pdf", line)


def test_pdf_that_takes_too_long_is_rejected(monkeypatch):
    """Of processor time: its parser alone takes longer to import."""
    limit(monkeypatch, seconds=0.01)
    with pytest.raises(InputError, match=r"within 0\.01 s"):
        extract_text("a.pdf", pdf([["text"]]))


def test_a_document_that_needs_too_much_memory_is_rejected(monkeypatch):
    """As much text as the other limits allow, in less memory than it takes."""
    limit(monkeypatch, characters=40_000_000, memory=1 << 30)
    long = docx(f"<w:p><w:r><w:t>{'a' * 40_000_000}</w:t></w:r></w:p>")
    assert len(extract_text("a.docx", long)) == 40_000_000
    limit(monkeypatch, memory=64 << 20)
    with pytest.raises(InputError, match="too complex"):
        extract_text("a.docx", long)


def test_an_encrypted_archive_is_called_one():
    data = bytearray(docx("<w:p/>"))
    for place in (6, data.index(b"PK\x01\x02") + 8):  # the flags, here and in the directory
        data[place] |= 1
    with pytest.raises(InputError, match="is encrypted or unusually compressed"):
        docx_text(bytes(data), LIMITS)


def test_paragraphs_headings_and_east_asian_lines():
    wide = "x" * 60
    assert (
        documents._reflow(["Title", "", "", wide, "goes on.", "New one."])
        == f"Title\n\n{wide} goes on.\nNew one."
    )
    assert documents._reflow(["日本語の文章がここで", "続きます。"]) == "日本語の文章がここで続きます。"
    assert documents._reflow(["これはPDF版", "です。"]) == "これはPDF版です。"
    assert documents._reflow(["a word -", "and 10-12-", "14 more"]) == "a word - and 10-12- 14 more"


# Latin-1 text and OpenDocument

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


@pytest.mark.parametrize("data", [b"\xe9", b"\xc3\xa9", b"a\xe9", b"\xc3\xa9\xe9 "])
def test_a_long_file_is_looked_at_without_an_object_for_every_byte(data):
    """Which kept all other threads waiting for seconds."""
    data *= (1 << 20) // len(data)
    tracemalloc.start()
    try:
        documents._is_western(data)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data)
    finally:
        tracemalloc.stop()


def test_a_text_file_that_must_be_too_long_is_not_decoded(monkeypatch):
    limit(monkeypatch, characters=1000)
    assert len(extract_text("a.txt", "\U00020000".encode() * 1000)) == 1000
    monkeypatch.setattr(documents, "plain_text", None)
    with pytest.raises(InputError, match="more than 1,000 characters"):
        extract_text("a.txt", b"the old bridge \xe9" * 300)


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
    for around in ("a{}b", "{}"):
        spaces = around.format("<text:s text:c='99999999999999'/>")
        with pytest.raises(InputError, match="more than 1,000 characters"):
            odt_text(odt(f"<text:p>{spaces}</text:p>"), FEW)


@given(st.binary(max_size=300))
def test_any_bytes_of_an_open_document_give_text_or_an_input_error(data):
    with contextlib.suppress(InputError):
        plain_text(data).encode()
    with contextlib.suppress(InputError):
        odt_text(packed("content.xml", data), LIMITS).encode()
