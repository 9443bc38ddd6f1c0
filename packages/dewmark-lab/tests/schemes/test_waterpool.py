"""WaterPool: a key per output, found by meaning, and p-values corrected for every key tried."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kstest
from tests.fakes import BagEncoder

from dewmark.core.keys import Key
from dewmark.core.whitening import normalize_rows
from dewmark.decoding import Decoding
from dewmark.detect import score_text, score_texts
from dewmark.errors import ArtifactError, ConfigError, UnknownNameError
from dewmark.scheme import State
from dewmark.types import Verdict
from dewmark.workspace import Workspace
from dewmark_lab.schemes.retrieval.waterpool import WaterPool
from dewmark_lab.testing.checks import expect_valid
from dewmark_lab.testing.fake_host import FakeHost

KEY = Key(bytes(range(32)))
PROMPTS = [" the old bridge", " rain over the sea", " one day in town", " a story of ships"]


@pytest.fixture(autouse=True)
def _encoder(bag_encoder: object) -> None:
    pass


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(256)


def bind(host: FakeHost, cache: Path, key: Key = KEY, **settings):
    workspace = Workspace(cache=cache, open_host=lambda name: host)
    return WaterPool(**settings).bind(key, host.info, workspace)


def write(host: FakeHost, scheme, prompts: list[str] = PROMPTS, *, first_seed: int = 0) -> list[str]:
    seeds = range(first_seed, first_seed + len(prompts))
    decoding = Decoding(max_new_tokens=80, min_new_tokens=80)
    made = host.generate(prompts, scheme=scheme, seeds=seeds, decoding=decoding, batch_size=len(prompts))
    return [generation.text for generation in made]


def words(host: FakeHost, count: int, *, seed: int) -> str:
    ids = np.random.default_rng(seed).integers(4, 256, count).tolist()
    return host.info.tokenizer.decode([ids])[0]


@pytest.mark.parametrize("inner", ["exp", "kgw:delta=4"])
def test_its_outputs_are_detected(host, tmp_path, inner) -> None:
    bound = bind(host, tmp_path, inner=inner, pool="memory")
    texts = write(host, bound)
    assert len(bound.pool) == len(PROMPTS)
    found = score_texts(bound, texts)
    assert all(d.verdict is Verdict.MARKED for d in found), [d.p_value for d in found]
    assert not any(d.is_marked for d in score_texts(bound, write(host, None), fpr=1e-4))


def test_needs_follow_the_inner_scheme(host, tmp_path) -> None:
    assert bind(host, tmp_path, pool="memory").needs.final_distribution
    assert not bind(host, tmp_path, pool="memory", inner="kgw").needs.final_distribution
    assert bind(host, tmp_path, pool="memory", inner="kgw").tests == ("binomial", "z")


def test_outputs_have_keys_of_their_own(host, tmp_path) -> None:
    """The keys of other outputs do not detect a text."""
    bound = bind(host, tmp_path, pool="memory", retrieved=1)
    texts = write(host, bound)
    others = bind(host, tmp_path, pool="memory", retrieved=3)
    others.finished(texts[1:], seeds=range(1, len(texts)))
    assert score_text(bound, texts[0]).p_value < 1e-6
    assert score_text(others, texts[0]).p_value > 1e-3


@pytest.mark.parametrize("retrieved", [1, 5])
def test_p_values_are_uniform_over_keys(host, tmp_path, retrieved) -> None:
    """With fresh keys that are independent of the text, Šidák's correction is exact."""
    text = words(host, 70, seed=1)
    encoder, p_values = BagEncoder(), []
    vectors = normalize_rows(encoder.encode([words(host, 30, seed=i) for i in range(6)]))
    bound = bind(host, tmp_path, pool="memory", retrieved=retrieved)
    empty = bound.pool.stored()
    for trial in range(60):
        bound.pool.take(empty)
        keys = [hashlib.sha256(f"{trial} {i}".encode()).digest() for i in range(6)]
        bound.pool.add(keys, [f"{trial} {i}" for i in range(6)], vectors)
        p_values.append(score_text(bound, text).p_value)
    expect_valid(p_values, f"{retrieved} of 6")
    assert kstest(p_values, "uniform").pvalue > 1e-4


def test_unmarked_text_on_the_same_prompts_has_valid_p_values(host, tmp_path) -> None:
    """Unmarked text of the same host is as similar to the pool's outputs as unmarked text can be."""
    bound = bind(host, tmp_path, pool="memory")
    write(host, bound, PROMPTS * 3)
    unmarked = write(host, None, PROMPTS * 3, first_seed=1000)
    expect_valid([d.p_value for d in score_texts(bound, unmarked)], "the host's own text")


def test_correction_for_the_whole_pool(host, tmp_path) -> None:
    some, all_ = (
        bind(host, tmp_path, pool="memory", correction=c, retrieved=2) for c in ("retrieved", "pool")
    )
    for bound in (some, all_):
        write(host, bound)
    text = words(host, 60, seed=3)
    p, q = score_text(some, text).p_value, score_text(all_, text).p_value
    assert q == pytest.approx(1.0 - (1.0 - p) ** 2)  # two keys, or four


def test_pool_on_disk_persists(host, tmp_path) -> None:
    """Another process with the same key, and a detector without the master key, detect the outputs."""
    folder = tmp_path / "mine"
    texts = write(host, bind(host, tmp_path, pool=str(folder)))
    assert (folder / "pool.sqlite").exists()
    fresh = bind(host, tmp_path, pool=str(folder))
    assert score_text(fresh, texts[0]).is_marked
    restored = WaterPool(pool=str(folder)).restore(
        fresh.state(), host.info, KEY.fingerprint, fresh._workspace
    )
    assert score_text(restored, texts[0]).p_value == score_text(fresh, texts[0]).p_value
    with pytest.raises(ConfigError, match="does not mark"):
        write(host, restored)
    with pytest.raises(ConfigError, match="key_fingerprint"):
        score_text(bind(host, tmp_path, Key(bytes(32)), pool=str(folder)), texts[0])


def test_default_pool_belongs_to_the_key(host, tmp_path) -> None:
    texts = write(host, bind(host, tmp_path))
    assert score_text(bind(host, tmp_path), texts[0]).is_marked
    stranger = score_text(bind(host, tmp_path, Key(bytes(32))), texts[0])
    assert (stranger.verdict, stranger.p_value) == (Verdict.NOT_MARKED, 1.0)


def test_stored_detector_contains_a_pool_in_memory(host, tmp_path) -> None:
    bound = bind(host, tmp_path, pool="memory")
    texts = write(host, bound)
    state = bound.state()
    copy = State(meta=dict(state.meta), arrays={name: array.copy() for name, array in state.arrays.items()})
    restored = WaterPool(pool="memory").restore(copy, host.info, KEY.fingerprint, bound._workspace)
    assert score_text(restored, texts[2]).p_value == score_text(bound, texts[2]).p_value < 1e-6


def test_writing_again_registers_nothing_new(host, tmp_path) -> None:
    bound = bind(host, tmp_path, pool="memory")
    assert write(host, bound) == write(host, bound)
    assert len(bound.pool) == len(PROMPTS)
    bound.finished(["", "  "], seeds=[1, 2])
    assert len(bound.pool) == len(PROMPTS)


def test_bad_settings_are_rejected(host, tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot contain a pool"):
        WaterPool(inner="waterpool")
    with pytest.raises(UnknownNameError, match="kgw"):
        WaterPool(inner="kgv")
    with pytest.raises(UnknownNameError, match="delta"):
        WaterPool(inner="kgw:delto=3")
    with pytest.raises(ArtifactError, match="contains no pool"):
        score_text(bind(host, tmp_path, pool=str(tmp_path / "nothing")), words(host, 40, seed=5))
