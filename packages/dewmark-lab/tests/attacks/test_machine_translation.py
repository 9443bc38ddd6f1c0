"""Translation engines: the choice of engine, batches and threads, and missing engines."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest
from tests.attacks.tiny import fake_neural, no_neural
from tests.attacks.tiny_bergamot import tiny_bergamot

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
        assert (attack.language, attack.label) == ("pt", "translate-neural-pt")
        package = PACKAGED["bergamot-pt"]
        assert attack.identity() == {
            "name": "translate",
            "engine": "neural",
            "target": "pt",
            "translators": [f"{package.identity} en-pt torch-1"],
        }
        assert package.version in package.identity
        assert load_attack("translate", target="pt").identity() == attack.identity()

    def test_missing_engines_name_the_remedy(self, nothing: None):
        with pytest.raises(ModelError, match="DEWMARK_WHEELS"):
            load_attack("translate").apply(["a"], seeds=[0])

    def test_unsupported_languages_are_rejected(self):
        with pytest.raises(ConfigError, match="target must be one of pt, fr, got 'de'; or set engine=llm"):
            load_attack("translate", target="de")
        with pytest.raises(ConfigError, match="engine must be one of"):
            load_attack("round-trip", engine="llm")


class TestNeural:
    def test_round_trip(self, monkeypatch: pytest.MonkeyPatch):
        fake_neural(monkeypatch)
        assert load_attack("translate").apply(["a b c"], seeds=[0]) == ["enpt c b a"]
        assert load_attack("round-trip").apply(["a b c"], seeds=[0]) == ["pten a b c enpt"]

    def test_french(self, monkeypatch: pytest.MonkeyPatch):
        fake_neural(monkeypatch)
        translate, back = load_attack("translate", target="fr"), load_attack("round-trip", target="fr")
        assert translate.apply(["a b c"], seeds=[0]) == ["enfr c b a"]
        assert (translate.label, back.label) == ("translate-neural-fr", "round-trip-neural-fr")
        assert (translate.language, back.language) == ("fr", "en")

    def test_all_texts_go_in_one_call(self, monkeypatch: pytest.MonkeyPatch):
        fake_neural(monkeypatch)
        told: list[tuple[str, int, int]] = []
        attack = load_attack("translate", device="cpu")
        attack.apply(["a"] * 40, seeds=range(40), progress=lambda *of: told.append(of))
        assert told == [("translating into pt, sentences", 40, 40)]
        assert attack.at_once > 100
        assert attack.identity() == load_attack("translate").identity()

    def test_packaged_translator(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        models = tmp_path / PACKAGED["bergamot-pt"].entry
        tiny_bergamot(models / "enpt-1")
        tiny_bergamot(models / "pten-2", seed=1)
        monkeypatch.setattr(machine_translation, "fetch", lambda name, **_: tmp_path)
        attack = load_attack("round-trip", device="cpu")
        made = attack.apply(TEXTS, seeds=SEEDS)
        assert made[1] == TEXTS[1]
        assert [attack.apply([text], seeds=[0])[0] for text in TEXTS] == made
        (models / "pten-2").rename(models / "other")
        machine_translation._translator.cache_clear()
        with pytest.raises(ModelError, match="has no single pten"):
            attack.apply(["a"], seeds=[0])
        with pytest.raises(ConfigError, match="unknown device 'gpu7'"):
            load_attack("translate", device="gpu7").apply(["a"], seeds=[0])

    @pytest.mark.models
    def test_the_real_one(self):
        texts = [
            "The old house is very big. She read the book in one night!\n\n1. Good morning, dear friends.",
            "In 1969, the first man walked on the Moon.",
        ]
        portuguese = load_attack("translate", device="cpu").apply(texts, seeds=[0, 0])
        assert "casa é muito grande. Ela leu o livro" in portuguese[0]
        assert "\n\n1. Bom dia" in portuguese[0]
        assert portuguese[1] == "Em 1969, o primeiro homem andou na Lua."
        english = load_attack("round-trip", device="cpu").apply(texts, seeds=[0, 0])
        assert all(SequenceMatcher(None, a, b).ratio() > 0.8 for a, b in zip(texts, english, strict=True))


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
        there = load_attack("translate", target="fr", device="cpu").apply(list(self.FRENCH), seeds=[0] * 4)
        assert _likeness(there, self.FRENCH.values()) > 0.85
        back = machine_translation.NeuralEngine("fr", "en", device="cpu").translate(
            list(self.FRENCH.values()), task="", progress=lambda *_: None
        )
        assert _likeness(back, self.FRENCH) > 0.85
        text = "The book is on the table.\n\nThe book is on the table. The weather is nice today."
        (made,) = load_attack("translate", target="fr", device="cpu").apply([text], seeds=[0])
        assert made == f"{there[2]}\n\n{there[2]} {there[0]}"  # whatever else is in the batch


def _likeness(found: Iterable[str], expected: Iterable[str]) -> float:
    pairs = zip(found, expected, strict=True)
    return float(np.mean([SequenceMatcher(None, a.lower(), b.lower()).ratio() for a, b in pairs]))
