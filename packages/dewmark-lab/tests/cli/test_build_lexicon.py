"""Lists of frequent forms, with a stand-in for the package of word lists, and the lexicon built from them."""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest
from tests.fakes import BagEncoder

from dewmark import encoders
from dewmark.encoders.lexicon import load_lexicon
from dewmark.errors import ConfigError
from dewmark.text.words import words
from dewmark.workspace import Workspace
from dewmark_lab.word_lists import frequent_forms, parse_sizes


@pytest.fixture
def wordfreq(monkeypatch) -> None:
    elided = {"d": 1e-2, "qu": 1e-2}
    lists = {
        "en": {"the": 5e-2, "don't": 1e-3, "bridge": 1e-5, "mother-in-law": 1e-5, "00": 1e-3, "die": 1e-4},
        "de": {"die": 3e-2, "Brücke": 2e-5, "00": 1e-2},
        "fr": {"le": 2e-2, "l": 2e-2, "est": 1e-2, "c": 7e-3, "eau": 2e-4, "été": 2e-4} | elided,
        "ko": {"은": 2e-2, "는": 2e-2, "사람": 1e-3, "다리": 1e-4},
        "zh": {"的": 5e-2, "電腦": 1e-4, "的電腦": 1e-5},
        "eu": {"00": 1e-2},
    }
    module = types.SimpleNamespace(
        available_languages=lambda wordlist: lists, get_frequency_dict=lambda code, wordlist: lists[code]
    )
    monkeypatch.setitem(sys.modules, "wordfreq", module)


def test_forms_are_single_words_without_digits(wordfreq) -> None:
    listed = frequent_forms({"en": 10, "de": 10})
    assert listed.forms == ("the", "die", "don't", "brücke", "bridge")
    assert listed.languages == ("en", "de", "en", "de", "en")  # "die" is mostly German
    assert listed.frequency[1] == 3e-2
    assert frequent_forms({"en": 2}).forms == ("the", "don't")


def test_chinese_forms_are_units_and_characters(wordfreq) -> None:
    assert frequent_forms({"zh": 10}).forms == ("的", "电脑")


def test_joined_forms_are_added(wordfreq) -> None:
    french = frequent_forms({"fr": 1000}).forms
    assert {"l'eau", "d'eau", "qu'été", "c'est", "le", "eau"} <= set(french)
    assert "l'est" in french
    assert "j'eau" not in french
    korean = frequent_forms({"ko": 1000}).forms
    assert {"사람은", "다리는"} <= set(korean)
    assert not {"사람는", "다리은"} & set(korean)
    assert all(len(words(form)) == 1 for form in (*french, *korean))


@pytest.mark.parametrize(
    ("sizes", "said"), [({"eu": 5}, "'eu' has no whole words"), ({"tlh": 5}, "no word list for 'tlh'")]
)
def test_languages_that_a_lexicon_cannot_serve(wordfreq, sizes, said) -> None:
    with pytest.raises(ConfigError, match=said):
        frequent_forms(sizes)


def test_sizes_on_the_command_line() -> None:
    assert parse_sizes("en:500, de,sv") == {"en": 500, "de": 14_000, "sv": 10_000}
    assert parse_sizes(None)["en"] == 45_000
    for wrong in ("", "en:", "en:x", "en:0", "en,,de"):
        with pytest.raises(ConfigError, match="--languages"):
            parse_sizes(wrong)


def test_lexicon_build(run, monkeypatch, tmp_path):
    monkeypatch.setitem(
        sys.modules,
        "wordfreq",
        types.SimpleNamespace(
            available_languages=lambda _: ["en"],
            get_frequency_dict=lambda *_: {
                f"w{'abcdefghij'[i // 10]}{'klmnopqrst'[i % 10]}": 1e-4 for i in range(99)
            },
        ),
    )
    monkeypatch.setattr(encoders, "load_encoder", lambda *_, **__: BagEncoder())
    out = str(tmp_path / "lexicon")
    build = ("build-lexicon", "--encoder", "bag", "--languages", "en:90")
    assert "90 forms; use it with: --set lexicon=" in run(*build, "--out", out).out
    assert run(*build, "--out", out).code == 2
    assert json.loads(run(*build, "--json").out)["forms"] == 90
    more = str(tmp_path / "more")
    assert "99 forms" in run(*build[:-1], "en:99", "--extend", out, "--out", more).out
    first, both = (load_lexicon(each, workspace=Workspace(cache=tmp_path)) for each in (out, more))
    assert [*both.forms[:90]] == [*first.forms]
    rows = np.arange(1, 91)
    np.testing.assert_array_equal(both.tokens(rows), first.tokens(rows))
    assert run(*build, "--extend", "nowhere/", "--out", str(tmp_path / "x")).code == 2
    shipped = run("build-lexicon", "--encoder", "use-m3")
    assert shipped.code == 2
    assert "ships with dewmark" in shipped.err
