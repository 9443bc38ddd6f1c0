"""The whole attack on the tiny host: does the victim's detector accept forged and scrubbed texts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.attacks.tiny import PROMPTS, texts_of

import dewmark
from dewmark.detect import score_texts
from dewmark.errors import ConfigError, InputError
from dewmark_lab.attacks.stealing.steal import STRENGTHS, ForgeryJudge, StealSettings, steal
from dewmark_lab.testing.fake_host import FakeHost


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(512)


def corpus_of(host, scheme, number, *, seed):
    return texts_of(host, scheme, number, seed=seed, tokens=80)


@pytest.fixture(scope="module")
def unigram(host):
    """A unigram victim with a corpus: 200 marked, 200 base and 60 "human" texts (of another model)."""
    victim = dewmark.load_scheme(dewmark.Key(bytes(range(32))), host=host.info, scheme="unigram")
    humans = corpus_of(FakeHost(512, seed=5), None, 60, seed=0)
    return (victim, corpus_of(host, victim, 200, seed=0), corpus_of(host, None, 200, seed=1000), humans)


SMALL = {"texts": 20, "tokens": 80, "batch_size": 20}


def test_unigram_mark_is_forged_but_not_at_strength_zero(host, unigram, tmp_path):
    victim, *corpus = unigram
    result = steal(
        victim,
        host,
        *corpus,
        settings=StealSettings(strength=10.0, **SMALL),
        prompts=PROMPTS,
        resume_dir=tmp_path,
    )
    assert result.genuine_found > 0.9
    assert result.found > 0.8
    assert result.above > 0.8
    # at a true level of 1%, five of 20 control texts are found with probability 1e-6
    assert result.control_found < 0.25
    assert (result.written, result.observed, result.base, result.humans) == (20, 200, 200, 60)
    assert result.cosine is None is result.kept
    row = json.loads(json.dumps(result.to_dict()))
    assert "texts" not in row
    assert row["victim"] == "unigram"
    idle = steal(
        victim,
        host,
        *corpus,
        settings=StealSettings(strength=0.0, **SMALL),
        prompts=PROMPTS,
        resume_dir=tmp_path,
    )
    assert idle.found == idle.control_found == result.control_found
    assert idle.perplexity == result.control_perplexity


def test_unigram_mark_is_scrubbed(host, unigram):
    victim, marked, base, humans = unigram
    settings = StealSettings(mode="scrub", strength=8.0, fidelity=9.0, empty_weight=100.0, **SMALL)
    result = steal(
        victim, host, marked[20:], base, humans, settings=settings, prompts=PROMPTS, targets=marked[:20]
    )
    assert result.genuine_found > 0.9
    assert result.found < result.control_found - 0.3
    assert 0.0 < result.kept < result.control_kept < 1.0


def test_a_ring_is_forged_by_who_is_told_its_members(host, bag_encoder):
    """Of 16 texts of one key and 16 of another, those of the first teach its mark, and all together less."""
    keys = [dewmark.Key(bytes(range(i, 32 + i))) for i in (0, 1)]
    victims = [dewmark.load_scheme(key, host=host.info, settings={"alpha": 0.7}) for key in keys]
    marked = [text for i, v in enumerate(victims) for text in corpus_of(host, v, 16, seed=100 * i)]
    base, humans = corpus_of(host, None, 16, seed=1000), corpus_of(FakeHost(512, seed=5), None, 12, seed=0)
    found = {}
    for grouping in ("pooled", "told"):
        settings = StealSettings(method="embedding", grouping=grouping, strength=0.0, texts=2, tokens=20)
        found[grouping] = [
            steal(
                victim,
                host,
                marked,
                base,
                humans,
                settings=settings,
                prompts=PROMPTS,
                members=[0] * 16 + [1] * 16,
            )
            for victim in victims
        ]
    assert [row.grouped for row in found["told"]] == [16, 16]
    assert [row.grouped for row in found["pooled"]] == [32, 32]
    # one of the two victims is the one whose texts were learned from
    assert max(row.cosine for row in found["told"]) > max(row.cosine for row in found["pooled"])
    with pytest.raises(InputError, match="member"):
        steal(victims[0], host, marked, base, humans, settings=settings, prompts=PROMPTS)


def test_the_best_strength_is_searched(host, unigram):
    victim, *corpus = unigram
    result = steal(victim, host, *corpus, settings=StealSettings(**SMALL), prompts=PROMPTS)
    assert result.strength in STRENGTHS["counts"]
    assert result.found > 0.5


def test_judge_counts_blank_texts_as_unmarked_and_needs_humans(host, unigram):
    victim, marked, _, humans = unigram
    judge = ForgeryJudge.of(victim, humans)
    found = judge.judge(["", "a\0b the sea", *marked[:8]])
    assert (found.p_values[0], found.z[0]) == (1.0, 0.0)
    assert found.found >= 0.7
    assert np.mean([d.p_value < 0.01 for d in score_texts(victim, humans)]) == judge.human_found
    with pytest.raises(InputError, match="human"):
        ForgeryJudge.of(victim, [])


def test_invalid_inputs_and_settings_are_rejected(host, unigram):
    victim, marked, base, humans = unigram
    with pytest.raises(InputError, match="20 prompts and 1 texts"):
        steal(
            victim,
            host,
            marked,
            base,
            humans,
            settings=StealSettings(mode="scrub"),
            prompts=PROMPTS,
            targets=["a"],
        )
    with pytest.raises(InputError, match="got 0 and 200"):
        steal(victim, host, [], base, humans, settings=StealSettings(), prompts=PROMPTS)
    with pytest.raises(ConfigError, match="use counts"):
        steal(victim, host, marked, base, humans, settings=StealSettings(method="embedding"), prompts=PROMPTS)
    for name, wrong in (("method", "guess"), ("mode", "x"), ("grouping", "told")):
        with pytest.raises(ConfigError, match=f"{name}.*{wrong}"):
            StealSettings(**{name: wrong})
