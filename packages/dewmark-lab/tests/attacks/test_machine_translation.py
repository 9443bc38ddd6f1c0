"""Translation engines: the choice of engine, batches and threads, and missing engines."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest
from tests.attacks.tiny import fake_neural, no_neural

from dewmark.attack import load_attack
from dewmark.errors import ConfigError, ModelError
from dewmark.models.packaged import PACKAGED
from dewmark_lab.attacks.translation import machine_translation

TEXTS = ["one two [three]", " ", "four\nfive é", "six", "sève \0 eight"]
SEEDS = [0] * len(TEXTS)


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_neural(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))


class TestChoice:
    def test_auto_is_the_neural_engine_and_downloads_nothing(self, nothing: None):
        attack = load_attack("translate")
        assert (attack.language, attack.label) == ("fr", "translate-neural-fr")
        package = PACKAGED["opus-mt-fr"]
        assert attack.identity() == {
            "name": "translate",
            "engine": "neural",
            "target": "fr",
            "translators": [f"{package.identity} en-fr torch-1"],
        }
        assert package.version in package.identity
        assert load_attack("translate", target="fr").identity() == attack.identity()

    def test_missing_engines_name_the_remedy(self, nothing: None):
        with pytest.raises(ModelError, match="DEWMARK_WHEELS"):
            load_attack("translate").apply(["a"], seeds=[0])

    def test_unsupported_languages_are_rejected(self):
        with pytest.raises(ConfigError, match="target must be one of fr, got 'de'; or set engine=llm"):
            load_attack("translate", target="de")
        with pytest.raises(ConfigError, match="engine must be one of"):
            load_attack("round-trip", engine="llm")


class TestNeural:
    def test_round_trip(self, monkeypatch: pytest.MonkeyPatch):
        fake_neural(monkeypatch)
        assert load_attack("translate").apply(["a b c"], seeds=[0]) == ["enfr c b a"]
        assert load_attack("round-trip").apply(["a b c"], seeds=[0]) == ["fren a b c enfr"]

    def test_all_texts_go_in_one_call(self, monkeypatch: pytest.MonkeyPatch):
        fake_neural(monkeypatch)
        told: list[tuple[str, int, int]] = []
        attack = load_attack("translate", device="cpu")
        attack.apply(["a"] * 40, seeds=range(40), progress=lambda *of: told.append(of))
        assert told == [("translating into fr, sentences", 40, 40)]
        assert attack.at_once > 100
        assert attack.identity() == load_attack("translate").identity()

    def test_blank_texts_stay_and_devices_are_checked(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(machine_translation, "fetch", lambda name, **_: Path(name))
        with pytest.raises(ConfigError, match="unknown device 'gpu7'"):
            load_attack("translate", device="gpu7").apply(["a"], seeds=[0])
        fake_neural(monkeypatch)
        made = load_attack("round-trip", device="cpu").apply(TEXTS, seeds=SEEDS)
        assert made[1] == TEXTS[1]


@pytest.mark.models
class TestReferenceSentences:
    """Each direction against sentences whose translation leaves little choice."""

    FRENCH = {  # noqa: RUF012 - a table
        "The weather is nice today.": "Il fait beau aujourd'hui.",
        "My brother lives in Paris with his wife.": "Mon frère vit à Paris avec sa femme.",
        "The book is on the table.": "Le livre est sur la table.",
        "We will go to the beach tomorrow.": "Nous irons à la plage demain.",
    }

    def test_english_and_french(self):
        pytest.importorskip("sentencepiece")
        there = load_attack("translate", device="cpu").apply(list(self.FRENCH), seeds=[0] * 4)
        assert _likeness(there, self.FRENCH.values()) > 0.85
        back = machine_translation.NeuralEngine("fr", "en", "cpu").translate(
            list(self.FRENCH.values()), task="", progress=lambda *_: None
        )
        assert _likeness(back, self.FRENCH) > 0.85
        text = "The book is on the table.\n\nThe book is on the table. The weather is nice today."
        (made,) = load_attack("translate", device="cpu").apply([text], seeds=[0])
        assert made == f"{there[2]}\n\n{there[2]} {there[0]}"  # whatever else is in the batch

    def test_chinese_into_english(self):
        pytest.importorskip("ctranslate2")
        pytest.importorskip("sentencepiece")
        expected = {
            "我哥哥住在巴黎。": "My brother lives in Paris.",
            "这本书在桌子上。": "The book is on the table.",
            "我们明天去海滩。": "We're going to the beach tomorrow.",
        }
        engine = machine_translation.NeuralEngine("zh", "en", "cpu")
        made = engine.translate(list(expected), task="", progress=lambda *_: None)
        assert _likeness(made, expected.values()) > 0.8


def _likeness(found: Iterable[str], expected: Iterable[str]) -> float:
    pairs = zip(found, expected, strict=True)
    return float(np.mean([SequenceMatcher(None, a.lower(), b.lower()).ratio() for a, b in pairs]))
