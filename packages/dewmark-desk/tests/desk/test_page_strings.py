"""The page's strings: every language has every string, and the page uses each of them."""

from __future__ import annotations

import json
import re
from importlib import resources

import pytest

STATIC = resources.files("dewmark_desk") / "static"
TABLE = json.loads((STATIC / "strings.json").read_text(encoding="utf-8"))
STRINGS: dict[str, list[str]] = TABLE["strings"]
SOURCES = {
    file.name: file.read_text(encoding="utf-8")
    for file in STATIC.iterdir()
    if file.name.endswith((".js", ".html")) and not file.name.startswith("docs.")
}


def test_every_language_has_every_string():
    assert TABLE["languages"] == ["en", "de", "fr"]
    for key, row in STRINGS.items():
        assert len(row) == len(TABLE["languages"]), key
        assert all(text.strip() for text in row), key


@pytest.mark.parametrize("column", [1, 2])
def test_translations_have_the_same_placeholders(column):
    for key, row in STRINGS.items():
        wanted, given = (set(re.findall(r"\{(\w+)\}", text)) for text in (row[0], row[column]))
        assert wanted == given, key


def test_strings_are_used_and_exist():
    whole = "".join(SOURCES.values())
    calls = re.findall(r"\bt\(((?:[^()\"]|\"[^\"]*\")*)", whole)
    named = {key for call in calls for key in re.findall(r'"([a-z_.0-9]+)"', call.partition("{")[0])}
    named = {key for key in named if "." in key or key in STRINGS}
    named |= set(re.findall(r'data-t(?:-label)?="([^"]+)"', whole))
    assert named <= STRINGS.keys(), named - STRINGS.keys()
    nouns = set(re.findall(r'\btn\("([^"]+)"', whole)) | set(re.findall(r'\bcount\([^"]*?, "([^"]+)"', whole))
    plural = {f"{noun}_{form}" for noun in nouns for form in ("one", "other")}
    assert plural <= STRINGS.keys(), plural - STRINGS.keys()
    whose_keys = {"intro.key_other"}  # the number is of keys
    prefixes = tuple(re.findall(r"\bt\(`([a-z_.]+)\$\{", whole))  # t(`share.${name}`)
    assert {"layers.", "share.", "verdict.", "meaning.", "audit.", "error.", "example."} == set(prefixes)
    unused = STRINGS.keys() - named - plural - whose_keys
    assert not {key for key in unused if not key.startswith(prefixes)}


@pytest.mark.parametrize("page", ["index.html", "rewrite.html"])
def test_no_text_is_written_into_the_page_itself(page):
    body = SOURCES[page].partition("<body>")[2]
    body = re.sub(r"<noscript>.*?</noscript>", "", body, flags=re.DOTALL)
    said = {text.strip() for text in re.findall(r">([^<]+)<", body)} - {""}
    assert said <= {"dewmark", "desk", "abc", "·"}
