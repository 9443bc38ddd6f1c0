"""The cache of encoded windows, on a CUDA device with a stand-in for the encoder."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest
import torch
from tests.fakes import BagEncoder

from dewmark.core.whitening import Whitening, normalize_rows
from dewmark.cuda import window_contexts as module
from dewmark.cuda.window_contexts import WindowCache
from dewmark.encoders.contexts import WindowContexts
from dewmark.testing.trial import tiny_host
from dewmark.text.windows import ABSENT, window_texts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = torch.device("cuda")


class GraphedStandIn:
    """Has the interface of `GraphedEncoder`, and encodes on the CPU."""

    def __init__(self, encoder):
        self.stream, self.lock = torch.cuda.Stream(DEVICE), threading.Lock()
        self._encoder = encoder

    def encode(self, windows, tokenize):
        return torch.from_numpy(self._encoder.encode(tokenize(windows))).to(DEVICE)


@pytest.fixture
def host():
    return tiny_host().info


def cache_of(host, encoder, whitening=None):
    parts = None if whitening is None else tuple(map(torch.from_numpy, (whitening.mean, whitening.matrix)))
    return WindowCache(
        GraphedStandIn(encoder),
        functools.partial(window_texts, host.tokenizer),
        dim=24,
        absent=ABSENT,
        whitening=parts,
        device=DEVICE,
    )


@pytest.mark.parametrize("whitened", [True, False])
def test_rows_are_the_contexts_up_to_their_norm(host, monkeypatch, whitened):
    monkeypatch.setattr(module, "_FIRST", 8)  # so that the rows grow
    encoder = BagEncoder()
    random = np.random.default_rng(1)
    whitening = None
    if whitened:
        mean, matrix = (random.normal(size=s).astype(np.float32) for s in (24, (24, 24)))
        whitening = Whitening(mean=mean, matrix=matrix)
    contexts = WindowContexts(encoder, host.tokenizer, whitening)
    cache = cache_of(host, encoder, whitening)
    for seed in range(4):
        windows = np.random.default_rng(seed).integers(5, host.vocab_size, (9, 3))
        windows[0] = ABSENT
        windows[1, 0] = ABSENT
        with torch.inference_mode(seed % 2 == 0):
            found = cache.ready(cache.begin([tuple(row) for row in windows.tolist()])).cpu().numpy()
        np.testing.assert_allclose(normalize_rows(found), contexts.vectors(windows), atol=1e-4)
        assert not found[0].any()


def test_known_windows_are_not_encoded_again(host):
    encoder = BagEncoder()
    cache = cache_of(host, encoder)
    first = [(5, 6, 7), (8, 9, 10), (5, 6, 7), (ABSENT,) * 3]
    before = cache.begin(first)
    encoder.calls.clear()
    assert torch.equal(cache.begin(first), before)
    assert encoder.calls == []
    some = cache.begin([(5, 6, 7), (8, 9, 10), (11, 12, 13)])
    assert encoder.calls == [1]
    assert torch.equal(some[:2], before[:2])
    most = cache.begin([(14, 15, 16), (5, 6, 7)])  # half of them new: all are encoded
    assert encoder.calls == [1, 2]
    assert torch.equal(most[1], before[0])


def test_rows_already_returned_survive_a_full_cache(host, monkeypatch):
    monkeypatch.setattr(module, "_MOST", 4)
    cache = cache_of(host, BagEncoder())
    first = cache.begin([(5, 6, 7), (8, 9, 10)])
    kept = first.clone()
    cache.begin([(20, 21, 22), (23, 24, 25), (26, 27, 28)])
    assert torch.equal(first, kept)


@pytest.mark.parametrize("known", [0, 3])
def test_windows_whose_encoding_failed_are_encoded_again(host, known):
    class Broken(BagEncoder):
        broken = False

        def encode(self, texts):
            if self.broken:
                raise RuntimeError("out of memory")
            return super().encode(texts)

    encoder = Broken()
    cache = cache_of(host, encoder)
    old = [(20 + i, 21, 22) for i in range(known)]
    if old:
        cache.begin(old)
    encoder.broken = True
    with pytest.raises(RuntimeError, match="out of memory"):
        cache.begin([*old, (5, 6, 7), (8, 9, 10)])
    encoder.broken = False
    again = [(8, 9, 10), (5, 6, 7)]  # in another order, so that their former rows cannot fit by chance
    assert torch.equal(cache.begin(again), cache_of(host, encoder).begin(again))
