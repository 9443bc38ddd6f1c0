"""TS: every token has its own green share and bias, which detection recomputes from the text."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.schemes.toy_host import HOST, VOCAB, key, numbers

from dewmark.detect import score_text
from dewmark.errors import ArtifactError, ConfigError
from dewmark.workspace import Workspace
from dewmark_lab.artifacts import load_artifact, save_artifact
from dewmark_lab.schemes.independent_sums import convolved
from dewmark_lab.schemes.learned.ts import ARRAYS, TS, BoundTS, TokenParameters, inputs_of, token_parameters
from dewmark_lab.testing.fake_host import FakeHost

GAMMA = np.linspace(0.1, 0.9, VOCAB + 1)
DELTA = np.linspace(1.0, 3.0, VOCAB + 1)


def green_law(shares: np.ndarray) -> np.ndarray:
    return convolved([np.array([1.0 - share, share]) for share in shares])


def bound(index: int = 0, *, strength: float = 1.0) -> BoundTS:
    """TS on the toy vocabulary, with γ and δ that grow with the id."""
    scheme = TS(strength=strength)
    secret = scheme.secret_of(key(index))
    return BoundTS(
        scheme, HOST, "test", secret=secret, parameters=TokenParameters(GAMMA, DELTA), artifact="test"
    )


def test_each_token_has_its_own_share_and_bias() -> None:
    """Over 100 keys the share of green tokens after an id is its γ: 29,700 coins, within 4.5 sigma."""
    ids = torch.tensor([[5], [150], [310]])
    logits = torch.zeros(3, VOCAB)
    shifts = torch.stack([bound(i).session(ids)(ids, logits) for i in range(100)])
    for row, token in enumerate(ids[:, 0].tolist()):
        assert shifts[:, row].unique().tolist() == pytest.approx([0.0, DELTA[token]])
        share = float((shifts[:, row] > 0).double().sum() / (297 * 100))
        margin = 4.5 * math.sqrt(GAMMA[token] * (1.0 - GAMMA[token]) / (297 * 100))
        assert share == pytest.approx(GAMMA[token], abs=margin)
    assert not shifts[:, :, [0, 1, 2, 300, 319]].any()  # special and unknown ids
    stronger = bound(strength=2.0).session(ids)(ids, logits)
    torch.testing.assert_close(stronger, 2.0 * bound().session(ids)(ids, logits))


def test_statistic_is_the_excess_of_green_pairs() -> None:
    """z = (G − Σγ) / √Σγ(1−γ) over distinct pairs, with γ of the preceding token."""
    text = numbers(60)
    ids = list(map(int, text.split()))
    pairs = sorted(set(itertools.pairwise(ids)))
    scheme = bound()
    green = scheme.pair_hash.words(np.array([[a] for a, _ in pairs]), np.array([b for _, b in pairs]))
    before = np.array([a for a, _ in pairs])
    gamma = GAMMA[before]
    G = int((green < np.rint(gamma * 2.0**32)).sum())
    found = score_text(scheme, text)
    assert found.z == pytest.approx((G - gamma.sum()) / math.sqrt((gamma * (1.0 - gamma)).sum()))
    assert found.p_value == pytest.approx(green_law(gamma)[G:].sum())
    assert found.tokens_scored == 59  # the first token has no known context
    assert score_text(scheme, text, prompt="7 8").tokens_scored == 60


def test_pair_counts_once() -> None:
    text = numbers(50)
    once, thrice = score_text(bound(), text), score_text(bound(), " ".join([text] * 3))
    assert abs(thrice.effective_length - once.effective_length) < 1.5  # one more pair where copies meet


def test_long_texts_use_the_normal_approximation() -> None:
    found = score_text(bound(), numbers(6000))
    assert found.p_value == pytest.approx(score_text(bound(), numbers(6000), test="z").p_value)


def _artifact(folder: Path, host: FakeHost) -> Path:
    rng, width = np.random.default_rng(0), host.info.embeddings().shape[1]
    shapes = {"A": (width, 6), "a": (6,), "B": (6, 1), "b": (1,)}
    arrays = {name: rng.normal(size=shapes[name[-1]]).astype(np.float32) for name in ARRAYS}
    info = host.info
    made_for = {
        "name": info.name,
        "identity": info.identity,
        "tokenizer": info.tokenizer.identity,
        "vocab_size": info.vocab_size,
    }
    encoder = {"name": "none", "identity": "none", "dim": 1}
    card = {"scheme": "ts", "host": made_for, "encoder": encoder, "parameters": {}, "training": {}}
    save_artifact(folder, card, arrays)
    return folder


def test_parameters_come_from_the_networks_and_are_cached(tmp_path: Path) -> None:
    host = FakeHost(64)
    folder = _artifact(tmp_path / "artifact", host)
    artifact, workspace = load_artifact(str(folder), scheme="ts"), Workspace(cache=tmp_path / "cache")
    tables = token_parameters(artifact, host.info, workspace)
    x = torch.from_numpy(inputs_of(host.info.embeddings()))
    assert x.shape == (65, 32)
    assert not x[-1].any()
    for net, table, squash in (
        ("gamma", tables.gamma, torch.sigmoid),
        ("delta", tables.delta, torch.nn.Softplus()),
    ):
        A, a, B, b = (torch.from_numpy(artifact.arrays[f"{net}.{part}"].copy()) for part in "AaBb")
        expected = squash(torch.relu(x @ A + a) @ B + b)[:, 0]
        expected = 0.1 + 0.8 * expected if net == "gamma" else expected
        np.testing.assert_allclose(table, expected.numpy(), rtol=1e-4)
    unreadable = dataclasses.replace(host.info, embeddings=lambda: pytest.fail("the table was not cached"))
    again = token_parameters(artifact, unreadable, workspace)
    np.testing.assert_array_equal(again.gamma, tables.gamma)


def test_another_host_or_incomplete_artifact_is_rejected(tmp_path: Path) -> None:
    folder, workspace = _artifact(tmp_path / "artifact", FakeHost(64)), Workspace(cache=tmp_path / "cache")
    scheme = TS(artifact=str(folder))
    scheme.bind(key(0), FakeHost(64).info, workspace)
    with pytest.raises(ConfigError, match="dewmark train ts"):
        scheme.bind(key(0), FakeHost(64, seed=1).info, workspace)
    artifact = load_artifact(str(folder), scheme="ts")
    torn = dataclasses.replace(artifact, identity="torn", arrays={"gamma.A": artifact.arrays["gamma.A"]})
    with pytest.raises(ArtifactError, match="train it again"):
        token_parameters(torn, FakeHost(64).info, workspace)
    with pytest.raises(ConfigError, match="strength"):
        TS(strength=0.0)
