"""Scoring a foreign text twice, as it is and translated into English, with both attempts counted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tests.batch.many import export_kgw

from dewmark import Key
from dewmark.batch import DetectorSpec, Document
from dewmark.cli.app import main
from dewmark.detect import score_texts
from dewmark.errors import ConfigError
from dewmark.types import Verdict
from dewmark_lab.attacks.translation import chat_translator
from dewmark_lab.attacks.translation.back_translation import BackTranslation
from dewmark_lab.attacks.translation.machine_translation import NeuralEngine

FRENCH = (
    "Le conseil municipal a voté jeudi la transformation de l'ancien dépôt de tramways en marché couvert."
)
ENGLISH = "The town council voted on Thursday to turn the old tram depot into a market hall for many traders."
GERMAN = "Der Stadtrat beschloss am Donnerstag, das alte Straßenbahndepot in eine Markthalle umzubauen."


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_kgw(tmp_path_factory.mktemp("kgw") / "detector")


def test_only_languages_with_a_translator_are_brought_back(monkeypatch):
    asked = []

    def translate(self, texts, *, task, progress):
        asked.append((self.source, self.target, list(texts)))
        return [f"en: {text}" for text in texts]

    monkeypatch.setattr(NeuralEngine, "translate", translate)
    back = BackTranslation()
    made = back.versions([ENGLISH, FRENCH, GERMAN, "12 34", FRENCH])
    assert made == [[], [f"en: {FRENCH}"], [], [], [f"en: {FRENCH}"]]
    assert asked == [("fr", "en", [FRENCH, FRENCH])]
    assert set(back.identity()) == {"fr-en", "pt-en", "into"}


class Echo:
    """A chat model that names the languages of the request and repeats the last word."""

    def complete(self, conversations, *, seeds, max_new_tokens, on_answer):
        answers = []
        for system, user in conversations:
            source, target = system["content"].split(" from ")[1].split(" while")[0].split(" to ")
            answers.append(f"{source}>{target} {user['content'].split()[-1]}")
            on_answer(len(answers) - 1, answers[-1])
        return answers


def test_chat_models_translate_any_pair(monkeypatch):
    opened = []
    monkeypatch.setattr(chat_translator, "_open_chat", lambda *which: opened.append(which) or Echo())
    monkeypatch.setattr(NeuralEngine, "translate", lambda self, texts, **_: [f"{self.source}>{self.target}"])
    back = BackTranslation(("en", "fr", "de"), hosts=("first", "second"))
    german, english, unclear = back.versions([f"{GERMAN} Jeder Händler zahlt.", ENGLISH, "12 34"])
    in_english, in_french = (f"German>{name} zahlt." for name in ("English", "French"))
    assert german == [in_english, in_english, in_french, in_french]
    assert english == ["en>fr", *["English>French traders."] * 2, *["English>German traders."] * 2]
    assert unclear == []
    assert {host for host, _ in opened} == {"first", "second"}


def test_chat_models_get_long_texts_in_parts_that_end_with_a_sentence():
    asked = []

    class Shouting:
        def complete(self, conversations, **_):
            asked.extend(user["content"] for _, user in conversations)
            return [user["content"].upper() for _, user in conversations]

    sentence = "Das ist ein Satz, der weder lang noch kurz ist. "
    long = "  Eins.\n\n" + sentence * 40 + "\nEnde.  "
    made = chat_translator._ChatTexts(Shouting(), "p").translate([long, " "], on_progress=lambda *_: None)
    assert made == [long.upper(), " "]
    assert len(asked) == 2
    assert all(part.endswith(".") and len(part) < 1600 for part in asked)


def test_every_version_counts(monkeypatch, detector):
    values = [(0.5, 0.002, 0.3), (0.5,), (0.004, 0.3)]
    found = scored_with(monkeypatch, detector, values)
    assert [each.detection.p_value for each in found] == pytest.approx([0.006, 0.5, 0.008])
    assert [each.row["versions"] for each in found] == [3, 1, 2]


@pytest.mark.parametrize(
    ("codes", "said"), [("en,xx", "'xx' is the code of no known language"), ("", "'' is the code of no")]
)
def test_unknown_languages_are_rejected_at_once(capsys, tmp_path, codes, said):
    file, key = tmp_path / "text.txt", tmp_path / "my.key"
    file.write_text(FRENCH, encoding="utf-8")
    Key(bytes(32)).save(key)
    base = ["detect", "--key", str(key), str(file), "--written-in", codes]
    assert main([*base, "--translate-back"]) == 2
    assert said in capsys.readouterr().err
    assert main(base) == 2
    assert "add --translate-back" in capsys.readouterr().err
    assert main([*base[:-1], "en", "--translate-back", "--translator", "no-such-host"]) == 2
    assert "no-such-host" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "hints"), [(FRENCH, True), (ENGLISH, False), (GERMAN, False)])
def test_the_command_says_that_a_text_can_be_translated_back(capsys, tmp_path, text, hints) -> None:
    file, key = tmp_path / "text.txt", tmp_path / "my.key"
    file.write_text(text, encoding="utf-8")
    Key(bytes(32)).save(key)
    assert main(["detect", "--key", str(key), str(file)]) == 0
    assert ("--translate-back" in capsys.readouterr().out) == hints


def scored_with(monkeypatch, detector, values, *, fpr=0.01):
    """Score rows of (p of the text, p of its translations …) with a scorer that reads p from the text."""
    back = BackTranslation()
    scorer = DetectorSpec(detector=detector, translate_back=back, fpr=fpr, coverage=False).open()
    (template,) = score_texts(scorer.bound, ["the old bridge over a river was built by people who came"])

    def whole(readings, **_):
        for each in readings:
            text, prompt = each.text.text, each.prompt.text
            assert text.startswith("en:") == (prompt == "")
            p = float(text.removeprefix("en:"))
            verdict = Verdict.TOO_SHORT if p > 1 else Verdict.MARKED if p < fpr else Verdict.NOT_MARKED
            yield dataclasses.replace(template, p_value=p, verdict=verdict)

    made = [[f"en:{each}" for each in row[1:]] for row in values]
    monkeypatch.setattr(BackTranslation, "versions", lambda self, texts, **_: made)
    monkeypatch.setattr(scorer.bound, "whole", whole)
    return scorer([Document(str(row[0]), i, "a prompt") for i, row in enumerate(values)])


def test_both_attempts_count(monkeypatch, detector):
    values = [(0.004, 0.3), (0.3, 0.004), (0.3, 0.006), (0.9, 0.8), (0.006,), (2.0, 0.006), (0.02, 2.0)]
    found = scored_with(monkeypatch, detector, values)
    assert [each.detection.p_value for each in found] == [0.008, 0.008, 0.012, 1.0, 0.006, 0.006, 0.02]
    marked = [each.detection.is_marked for each in found]
    assert marked == [True, True, False, False, True, True, False]
    assert [each.row["versions"] for each in found] == [2, 2, 2, 2, 1, 1, 1]
    assert [each.row["translated_back"] for each in found] == [False, True, True, False, False, True, False]
    assert found[1].text == "en:0.004"  # token scores belong to the translation
    assert found[1].row["p_value"] == 0.008


def test_the_level_holds_for_independent_and_for_equal_attempts(monkeypatch, detector):
    draws = np.random.default_rng(0).random((4000, 2)).tolist()
    for pairs in (draws, [(a, a) for a, _ in draws]):
        p = np.array([each.detection.p_value for each in scored_with(monkeypatch, detector, pairs, fpr=0.05)])
        rate = np.mean(p < 0.05)
        # 1 - (1 - 0.025)^2 = 0.0494 if independent, 0.025 if equal; four errors are 0.0137 and 0.0099
        assert rate < 0.0632
        assert rate > 0.015


def test_the_identity_names_the_translators(detector):
    back = BackTranslation()
    plain, twice = (DetectorSpec(detector=detector, translate_back=b).open() for b in (None, back))
    assert twice.identity == {**plain.identity, "translate_back": back.identity()}
    with pytest.raises(ConfigError, match="leave out translating back"):
        DetectorSpec(detector=detector, translate_back=back, calibration=Path("c.json"))
