"""The contract of every registered attack, on tiny models and engines, and of the base class."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.attacks.tiny import fake_neural, tiny_bert, tiny_t5, tiny_wordnet
from tests.hosts.chat_server import Reply, serving

from dewmark.errors import ConfigError, InputError, UnknownNameError
from dewmark_lab.attacks.base import ATTACKS, Attack, load_attack, text_seed

TEXTS = [
    "  The old house is over the river. People walk slowly, and it was a new day!\n\nThe city is old.",
    "walk",
    "",
    " \n\t",
    "Das Haus war naïve – 古い家 \U0001f600 e\u0301\u2028 [x] <b> {y} ^z$ \\ / @ *",
    "house house house house house house house house",
    "12 34 ... ?!",
    "the water of the river was light and the people of the city were new " * 4,
]
SEEDS = [11 * i for i in range(len(TEXTS))]
OWN = """
from dataclasses import dataclass
from typing import ClassVar

from dewmark_lab.attacks import Attack


@dataclass(frozen=True)
class Shout(Attack):
    name: ClassVar[str] = "shout"
    summary: ClassVar[str] = "writes in capitals"
    marks: int = 1

    def rewrite(self, texts, *, seeds, progress):
        return [text.upper() + "!" * self.marks for text in texts]
"""

# Every registered name once, and methods or engines that have their own code.
CASES = {
    "copy-paste": {"human": "{human}", "share": 0.5, "segments": 2},
    "delete": {"r": 0.4},
    "dipper": {"model": "{t5}", "tokenizer": None, "max_new_tokens": 5, "device": "cpu"},
    "none": {},
    "paraphrase": {"base_url": "{url}", "model": "m"},
    "round-trip": {},
    "summarise": {"base_url": "{url}", "model": "m", "target": "de"},
    "synonym": {"model": "{bert}", "wordnet": "{wordnet}", "device": "cpu"},
    "translate": {},
    "truncate": {"n": 4},
    "translate llm": {"engine": "llm", "base_url": "{url}", "model": "m", "target": "fr"},
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("attacks")
    (folder / "human.txt").write_text("somebody wrote this long ago " * 30, encoding="utf-8")
    with serving(lambda body, _: Reply(body["messages"][1]["content"].upper())) as server:
        yield {
            "human": str(folder / "human.txt"),
            "t5": str(tiny_t5(folder / "t5")),
            "bert": str(tiny_bert(folder / "bert")),
            "wordnet": str(tiny_wordnet(folder / "wordnet")),
            "url": server.url,
        }


@pytest.fixture(params=CASES)
def settings(request, places, tmp_path, monkeypatch):
    """The name and settings of one case, with everything that it needs."""
    fake_neural(monkeypatch)
    given = {k: v.format(**places) if isinstance(v, str) else v for k, v in CASES[request.param].items()}
    return request.param.split()[0], given


@pytest.fixture
def attack(settings: tuple[str, dict[str, object]]) -> Attack:
    name, given = settings
    return load_attack(name, **given)


def test_every_registered_attack_has_a_case():
    assert {case.split()[0] for case in CASES} == set(ATTACKS)


def test_one_reproducible_output_per_text(settings, attack: Attack):
    made = attack.apply(TEXTS, seeds=SEEDS)
    assert len(made) == len(TEXTS)
    assert made[2:4] == TEXTS[2:4]  # blank texts are returned unchanged
    assert all(isinstance(text, str) and text.encode() is not None for text in made)
    assert attack.apply(TEXTS, seeds=SEEDS) == made
    assert load_attack(settings[0], **settings[1]).apply(TEXTS, seeds=SEEDS) == made


def test_text_is_independent_of_the_batch(attack: Attack):
    made = attack.apply(TEXTS, seeds=SEEDS)
    assert [attack.apply([text], seeds=[seed])[0] for text, seed in zip(TEXTS, SEEDS, strict=True)] == made
    assert attack.apply(TEXTS[::-1], seeds=SEEDS[::-1]) == made[::-1]


def test_empty_input_and_single_words(attack: Attack):
    assert attack.apply([], seeds=[]) == []
    assert attack.apply(["", "  "], seeds=[1, 2]) == ["", "  "]
    assert all(text.strip() for text in attack.apply(["house", "."], seeds=[1, 2]))


def test_identity_is_plain_data(settings, attack: Attack):
    identity = attack.identity()
    assert json.loads(json.dumps(identity)) == identity
    assert identity["name"] == attack.name == settings[0]
    assert load_attack(settings[0], **settings[1]).identity() == identity
    assert str(Path(__file__).parent) not in json.dumps(identity)  # contents count, not paths


def test_run_options_do_not_change_identity_or_output(settings, attack: Attack):
    name, given = settings
    how = {f.name for f in dataclasses.fields(attack) if f.name in ("batch_size", "jobs", "concurrency")}
    other = load_attack(name, **{**given, **dict.fromkeys(how, 3)})
    assert other.identity() == attack.identity()
    assert other.apply(TEXTS, seeds=SEEDS) == attack.apply(TEXTS, seeds=SEEDS)


def test_unknown_settings_are_rejected(settings):
    name, given = settings
    with pytest.raises(UnknownNameError, match=f"unknown setting of {name} 'colour'") as told:
        load_attack(name, **given, colour="red")
    assert "\n" not in str(told.value)


def test_unknown_names_are_rejected():
    with pytest.raises(UnknownNameError, match="unknown attack 'delte'; did you mean 'delete'"):
        load_attack("delte")
    with pytest.raises(ConfigError, match="engine must be one of neural, got 'llmm'"):
        load_attack("translate", engine="llmm")


def test_apply_checks_texts_and_seeds():
    with pytest.raises(InputError, match="2 texts but 1 seeds"):
        load_attack("none").apply(["a", "b"], seeds=[1])
    with pytest.raises(InputError, match="put it in a list"):
        load_attack("none").apply("text", seeds=[1] * 4)


def test_an_attack_that_loses_a_text_raises():
    class Loses(Attack):
        name, summary = "loses", "a text"

        def rewrite(self, texts, *, seeds, progress):
            return list(texts)[1:]

    with pytest.raises(ValueError, match="zip"):
        Loses().apply(["a", "b"], seeds=[1, 2])


def test_text_seeds_depend_on_run_and_id_only():
    seeds = {text_seed(seed, name) for seed in range(20) for name in ("a", "b", 1, 2)}
    assert len(seeds) == 80
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert text_seed(3, 7) == text_seed(3, "7")  # JSON files disagree on the type of ids


def test_an_attack_in_a_file_of_one_s_own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    own = f"{tmp_path}/own.py:Shout"
    assert load_attack(own, marks=2).apply(["no"], seeds=[1]) == ["NO!!"]
    assert ATTACKS[own] is ATTACKS["shout"]  # results carry its name
