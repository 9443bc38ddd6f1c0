"""SIR's losses and training on synthetic contexts."""

from __future__ import annotations

import numpy as np
import torch

from dewmark_lab.schemes.learned.sir import Transform
from dewmark_lab.training.sir import CHUNK, PREFIXES, SIRLearner, TransformNetwork, contexts_of


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_training_aligns_similar_contexts_only():
    rng = np.random.default_rng(0)
    topics = rng.normal(size=(60, 20))
    groups = np.repeat(np.arange(60), 3)
    contexts = unit(topics[groups] + 0.4 * rng.normal(size=(180, 20))).astype(np.float32)
    network = TransformNetwork(20, 0, hidden=32, outputs=60)
    learner = SIRLearner(network, contexts, groups, seed=0)
    for index in range(400):
        learner.step(index)
    found = learner.judge()
    assert found["same_text"] > 0.55
    assert abs(found["other_texts"]) < 0.1


def test_the_stored_network_takes_unit_embeddings():
    """The scheme's float64 network with the stored arrays gives the trained network's signs."""
    network = TransformNetwork(20, 0, hidden=32, outputs=60)
    e = unit(np.random.default_rng(1).normal(size=(50, 20)))
    T = network(torch.from_numpy(e.astype(np.float32))).detach().numpy()
    above = T - T.mean(axis=1, keepdims=True)
    signs = Transform(None, {"mean": np.zeros(20), **network.arrays()}).of_vectors(e)
    clear = np.abs(above) > 0.05  # the arrays are stored in half precision
    assert clear.mean() > 0.5
    np.testing.assert_array_equal(signs[clear], np.sign(above[clear]))


def test_contexts_are_whole_chunks_in_many_languages():
    texts = [" ".join(f"w{i}" for i in range(10 * n + 7)) for n in range(1, 41)]
    contexts, groups = contexts_of(texts, seed=0)
    assert len(contexts) == len(groups)
    mine = [context for context, group in zip(contexts, groups, strict=True) if group < len(texts)]
    assert len(mine) == sum(min(n, PREFIXES) for n in range(1, 41))
    assert all(len(context.split()) % CHUNK == 0 for context in mine)
    assert len(contexts) > len(mine) + 200
    assert contexts_of(texts, seed=0)[0] == contexts
    assert contexts_of(texts, seed=1)[0] != contexts
