"""Translation engines: the choice of engine, batches and threads, and missing engines."""

from __future__ import annotations

from pathlib import Path

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
