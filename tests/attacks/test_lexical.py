"""Deletion, truncation and the attack that is none."""

from __future__ import annotations

import math

import pytest

from dewmark.attacks import load_attack, text_seed
from dewmark.attacks.base import Attack
from dewmark.errors import ConfigError, InputError
from dewmark.hosts.fake import FakeHost

TEXT = "  The old house,\n\nby the river – it is 200 years old. "


class TestDelete:
    def test_the_share_that_falls_is_r(self):
        words, r = 200, 0.3
        texts = [" ".join(f"w{i}" for i in range(words))] * 100
        made = load_attack("delete", r=r).apply(texts, seeds=range(100))
        deleted = 1 - sum(len(text.split()) for text in made) / (words * len(texts))
        # binomial: 20,000 words, standard deviation √(r(1−r)/20000) = 0.0032; five of them
        assert abs(deleted - r) < 5 * math.sqrt(r * (1 - r) / (words * len(texts)))

    def test_every_place_is_as_likely(self):
        text = " ".join(str(i) for i in range(10))
        made = load_attack("delete", r=0.5).apply([text] * 1000, seeds=range(1000))
        for i in range(10):
            kept = sum(str(i) in text.split() for text in made)
            assert abs(kept - 500) < 5 * math.sqrt(250)  # binomial again

    def test_words_that_stay_keep_their_order_and_space(self):
        made = load_attack("delete", r=0.4).apply([TEXT] * 50, seeds=range(50))
        assert len(set(made)) > 40
        for text in made:
            left = iter(TEXT.split())
            assert all(word in left for word in text.split())  # a subsequence
            assert text.startswith("  ")
            assert text.endswith(" ")
        assert any("\n\n" in text for text in made)

    def test_none_and_all(self):
        assert load_attack("delete", r=0).apply([TEXT], seeds=[1]) == [TEXT]
        made = load_attack("delete", r=1).apply([TEXT] * 20, seeds=range(20))
        assert all(len(text.split()) == 1 for text in made)
        assert len(set(made)) > 5  # which one stays is the seed's choice

    @pytest.mark.parametrize("r", [-0.1, 1.1, "many"])
    def test_r_is_a_probability(self, r):
        with pytest.raises(ConfigError, match="r must"):
            load_attack("delete", r=r)


class TestTruncate:
    def test_words(self):
        cut = load_attack("truncate", n=3).apply([TEXT, "one two"], seeds=[0, 0])
        assert cut == ["  The old house,", "one two"]

    def test_tokens_are_the_host_s(self, monkeypatch: pytest.MonkeyPatch):
        host = FakeHost()
        monkeypatch.setattr("dewmark.hosts.host_info", lambda name: host.info)
        attack = load_attack("truncate", n=2, unit="tokens")
        text = " the river is old"
        cut = attack.apply([text], seeds=[0])[0]
        assert text.startswith(cut)
        assert host.tokenizer.encode([cut])[0].ids == host.tokenizer.encode([text])[0].ids[:2]
        assert attack.identity()["host"] == host.tokenizer.identity

    def test_a_host_that_is_not_asked_does_not_count(self):
        assert load_attack("truncate", host="x").identity() == load_attack("truncate").identity()

    def test_something_must_remain(self):
        with pytest.raises(ConfigError, match="n must be at least 1"):
            load_attack("truncate", n=0)


class TestContractOfTheBase:
    def test_one_seed_a_text(self):
        with pytest.raises(InputError, match="2 texts but 1 seeds"):
            load_attack("none").apply(["a", "b"], seeds=[1])
        with pytest.raises(InputError, match="put it in a list"):
            load_attack("none").apply("text", seeds=[1] * 4)

    def test_an_attack_that_loses_a_text_is_told(self):
        class Loses(Attack):
            name, summary = "loses", "a text"

            def rewrite(self, texts, *, seeds, progress):
                return list(texts)[1:]

        with pytest.raises(ValueError, match="zip"):
            Loses().apply(["a", "b"], seeds=[1, 2])

    def test_seeds_depend_on_run_and_id_and_on_nothing_else(self):
        seeds = {text_seed(seed, name) for seed in range(20) for name in ("a", "b", 1, 2)}
        assert len(seeds) == 80
        assert all(0 <= seed < 2**63 for seed in seeds)
        assert text_seed(3, 7) == text_seed(3, "7")  # JSON files disagree on the type of ids
