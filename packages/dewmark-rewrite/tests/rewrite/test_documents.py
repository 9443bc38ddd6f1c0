"""Files keep their structure: only words change."""

from __future__ import annotations

import io
import zipfile

import pytest

from dewmark.errors import InputError
from dewmark_rewrite.documents import read_document
from dewmark_rewrite.thesaurus import Candidate, Thesaurus

XML = (
    '<?xml version="1.0"?><w:document xmlns:w="w" xmlns:mc="mc"><w:body>'
    '<w:p><w:r><w:rPr><w:b/></w:rPr><w:t xml:space="preserve">A huge mis</w:t></w:r>'
    "<w:r><w:t>take &amp; more</w:t></w:r></w:p>"
    "<mc:Fallback><w:p><w:r><w:t>old program</w:t></w:r></w:p></mc:Fallback>"
    "<w:p><w:r><w:t>They buy land.</w:t></w:r></w:p></w:body></w:document>"
)


def word(xml: str = XML) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", xml)
    return made.getvalue()


def test_a_word_document_s_text_is_that_of_its_paragraphs():
    assert read_document(word(), "a.docx").text == "A huge mistake & more\nThey buy land.\n"


def test_a_change_leaves_every_other_byte_of_the_xml():
    document = read_document(word(), "a.docx")
    at = document.text.index("buy")
    written = document.with_changes([Candidate(at, at + 3, "buy", "purchase <&>")])
    with zipfile.ZipFile(io.BytesIO(written)) as archive:
        assert archive.read("[Content_Types].xml") == b"<Types/>"
        assert archive.read("word/document.xml").decode() == XML.replace(
            "They buy land", "They purchase &lt;&amp;&gt; land"
        )


def test_a_word_in_two_runs_stays():
    document = read_document(word(), "a.docx")
    found = Thesaurus.load().candidates(document.text, protected=document.fixed)
    assert "buy" in {each.old for each in found}
    assert "mistake" not in {each.old for each in found}


def test_text_comes_back_with_its_changes():
    document = read_document(b"They buy land.\r\n", "a.md")
    assert document.with_changes([Candidate(5, 8, "buy", "purchase")]) == b"They purchase land.\r\n"


@pytest.mark.parametrize(
    ("data", "name", "said"),
    [
        (b"\xff\xfe\x00", "a.txt", "is not UTF-8 text"),
        (b"no archive", "a.docx", "is not a .docx document"),
        (word("<w:document/>"), "a.docx", "contains no text"),
    ],
)
def test_unreadable_files_are_named(data, name, said):
    with pytest.raises(InputError, match=said):
        read_document(data, name)
