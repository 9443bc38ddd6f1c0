"""SIR's network as trained, and X-SIR's clusters of tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dewmark.errors import InputError
from dewmark_lab.schemes.learned.sir import Transform
from dewmark_lab.training.sir import CHUNK, PREFIXES, SIRLearner, TransformNetwork, contexts_of
from dewmark_lab.training.xsir import _LARGEST_CLUSTER, cluster, forms_of, near_pairs, read_lexicon


def test_forms_are_lower_case_words():
    pieces = [" The", " the", "the", "ing", " a1", " I", "你", " dog", "  cat", "", "\ufffd", " don't"]
    assert forms_of(pieces) == {"the": [0, 1], "你": [6], "dog": [7], "cat": [8]}


class TestLexicon:
    def test_pairs_in_lower_case(self, tmp_path):
        file = tmp_path / "en-de.tsv"
        file.write_text("# English, German\nDog\tHund\n\n cat \tKatze\n", encoding="utf-8")
        assert read_lexicon(file) == [("dog", "hund"), ("cat", "katze")]

    @pytest.mark.parametrize("line", ["dog Hund", "dog\tHund\tchien", "dog\t", "dog"])
    def test_an_invalid_line_is_named(self, tmp_path, line):
        file = tmp_path / "l.tsv"
        file.write_text(f"cat\tKatze\n{line}\n")
        with pytest.raises(InputError, match="line 2"):
            read_lexicon(file)

    def test_an_empty_lexicon_is_rejected(self, tmp_path):
        file = tmp_path / "l.tsv"
        file.write_text("# nothing\n")
        with pytest.raises(InputError, match="has no word pairs"):
            read_lexicon(file)


def test_near_pairs_are_mutual_and_close():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 30)).astype(np.float32)
    rows[1], rows[3] = rows[0] + 0.1 * rows[1], rows[2] + 0.1 * rows[3]
    found = near_pairs(rows)
    assert set(found) == {(0, 1), (2, 3)}
    assert all(0.95 < cosine <= 1.0 for cosine in found.values())


FORMS = {"dog": [5, 3], "hund": [8], "cat": [2], "fish": [9]}


class TestClusters:
    def test_joined_forms_share_the_lowest_id(self):
        labels = cluster(FORMS, {(0, 1): 1.0}, vocab_size=12, seed=0)
        assert labels.tolist() == [0, 1, 2, 3, 4, 3, 6, 7, 3, 9, 10, 11]

    def test_without_edges_only_tokens_of_a_form_are_joined(self):
        labels = cluster(FORMS, {}, vocab_size=12, seed=0)
        assert labels.tolist() == [0, 1, 2, 3, 4, 3, 6, 7, 8, 9, 10, 11]

    def test_a_large_cluster_is_split(self):
        """Two cliques that one edge connects become two clusters."""
        size = _LARGEST_CLUSTER
        forms = {str(i): [i] for i in range(2 * size)}
        cliques = {(i, j): 1.0 for i in range(size) for j in range(i)}
        both = {**cliques, **{(i + size, j + size): 1.0 for i, j in cliques}, (0, size): 1.0}
        edges = {tuple(sorted(pair)): weight for pair, weight in both.items()}
        labels = cluster(forms, edges, vocab_size=2 * size, seed=0)
        assert labels.tolist() == [0] * size + [size] * size
        assert cluster(forms, edges, vocab_size=2 * size, seed=0).tolist() == labels.tolist()


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
