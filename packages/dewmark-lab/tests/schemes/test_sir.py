"""SIR and X-SIR: chunks, the network, the distribution over keys, marking."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dewmark
from dewmark.capabilities import evidence_of
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import score_text, score_texts
from dewmark.errors import ArtifactError, ConfigError
from dewmark.registry import SCHEMES
from dewmark.workspace import Workspace
from dewmark_lab.schemes.learned.keyed_signs import LAYERS
from dewmark_lab.schemes.learned.sir import GrowingWords, Transform, _weights, chunks_before, context_of
from dewmark_lab.testing.fake_host import FakeHost
from dewmark_lab.testing.trial import tiny_host

REAL_PROMPTS = [
    "The old bridge over the river",
    "My grandmother kept a small shop at the end of the harbour, and every summer",
    "Dear editor, I have read your paper for thirty years, and",
    "To repair a bicycle tyre you need",
]
REAL_LENGTH = {"max_new_tokens": 150, "min_new_tokens": 150}
WORDS = st.text(alphabet="ab .\n\u4f60\u0e01é", max_size=60)


def key(number: int) -> Key:
    return Key(hashlib.sha256(f"sir {number}".encode()).digest())


@pytest.fixture
def bind(bag_encoder, tmp_path):
    def made(name="sir", number=0, **fields):
        scheme = SCHEMES[name]().with_settings(fields)
        return scheme.bind(key(number), tiny_host().info, Workspace(cache=tmp_path))

    return made


def unmarked(number: int, tokens: int = 120) -> str:
    return (
        tiny_host()
        .generate(
            [" the old"],
            scheme=None,
            seeds=[number],
            decoding=Decoding(max_new_tokens=tokens, min_new_tokens=tokens),
        )[0]
        .text
    )


class TestChunks:
    def test_the_last_word_before_a_token_does_not_count_yet(self):
        text = "a b c d e f"
        words, chunks = chunks_before(text, range(len(text) + 1), size=2)
        # the third word begins at 4: a token that starts later has two whole words behind it
        assert chunks.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
        assert context_of(words, 2, size=2, reach=1) == "c d"
        assert context_of(words, 2, size=2, reach=5) == "a b c d"

    @settings(max_examples=60, deadline=None)
    @given(text=WORDS, size=st.integers(1, 3), reach=st.integers(1, 3))
    def test_growing_text_has_the_same_contexts_as_the_finished_one(self, text, size, reach):
        """At every character, whatever follows."""
        words, chunks = chunks_before(text, range(len(text)), size=size)
        growing = GrowingWords()
        for character, count in zip(text, chunks.tolist(), strict=True):
            assert growing.chunks(size) == count
            assert growing.context(size=size, reach=reach) == context_of(words, count, size=size, reach=reach)
            growing.append(character)


class TestNetwork:
    def arrays(self, d=5, hidden=7, outputs=11):
        rng = np.random.default_rng(0)
        shapes = [(d, hidden), (hidden, hidden), (hidden, hidden), (hidden, outputs)]
        made = {"mean": rng.normal(size=d).astype(np.float32) / 9}
        for name, shape in zip(LAYERS, shapes, strict=True):
            made[f"{name}.W"] = rng.normal(size=shape).astype(np.float16)
            made[f"{name}.b"] = rng.normal(size=shape[1]).astype(np.float16)
        return made

    def test_numpy_network_agrees_with_torch(self, bag_encoder):
        """The signs of the network that training uses."""
        from dewmark_lab.training.sir import TransformNetwork

        network = TransformNetwork(5, 0, hidden=7, outputs=11)
        arrays = {"mean": np.zeros(5, dtype=np.float32), **network.arrays()}
        x = np.random.default_rng(1).normal(size=(40, 5))
        unit = torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True)).float()
        T = network.half().float()(unit).detach().numpy()
        expected = np.where(T - T.mean(axis=1, keepdims=True) >= 0.0, 1, -1)
        assert (Transform(bag_encoder, arrays).of_vectors(x) == expected).mean() > 0.99

    def test_context_is_encoded_once(self, bag_encoder):
        transform = Transform(bag_encoder, self.arrays(d=bag_encoder.dim))
        first = transform.signs(["one", "two", "one"])
        assert bag_encoder.calls == [2]
        np.testing.assert_array_equal(transform.signs(["two", "one"]), first[[1, 0]])
        assert bag_encoder.calls == [2]
        assert set(np.unique(first)) == {-1, 1}

    def test_missing_array_is_named(self, bag_encoder):
        arrays = self.arrays()
        del arrays["first.W"]
        with pytest.raises(ArtifactError, match=r"first\.W"):
            Transform(bag_encoder, arrays)


class TestLaw:
    def test_normal_approximation_is_close_to_the_exact_distribution(self, bind):
        bound, text = bind(), unmarked(3, 200)
        exact, normal = (score_text(bound, text, test=test) for test in ("exact", "key"))
        assert exact.z == normal.z
        assert exact.p_value == pytest.approx(normal.p_value, abs=0.05)

    def test_a_word_counts_once_in_equal_contexts(self):
        """1/2 each in two, 1/3 each in three; opposite contexts and other words take nothing from it."""
        signs = np.array([[1, 1, -1, 1], [-1, -1, 1, -1]], dtype=np.int8)
        contexts, labels = np.array([0, 0, 1, 0, 0, 0, 1]), np.array([5, 5, 5, 7, 7, 7, 8])
        found = _weights(contexts, labels, signs)
        assert found.tolist() == pytest.approx([1 / 2, 1 / 2, 1, 1 / 3, 1 / 3, 1 / 3, 1])

    def test_words_repeated_in_similar_contexts_weigh_little(self, bind):
        bound = bind()
        tokenizer = tiny_host().info.tokenizer
        often, empty = tokenizer.encode([" the old bridge over a river" * 30, ""])
        evidence = evidence_of(bound, [often], [empty])[0]
        # six words in nearly equal contexts
        assert evidence.weights.sum() < 0.35 * len(evidence)
        assert score_text(bound, often.text).effective_length < 16


class TestMarking:
    def test_marking_starts_after_a_whole_chunk(self, bind):
        bound = bind(delta=1.5)
        words = tiny_host().info.tokenizer.encode([unmarked(4, 40)])[0].ids
        logits = torch.zeros(1, tiny_host().info.vocab_size)
        session = bound.session(torch.tensor([words[:5]]))
        moved = []
        for end in range(5, 31):
            marked = session(torch.tensor([words[:end]]), logits)
            moved.append(float(marked.abs().max()))
            assert set(np.unique(marked.numpy().round(4))) <= {-1.5, 0.0, 1.5}
        assert moved[:6] == [0.0] * 6  # ten words and the one that may still grow
        assert moved[6:] == [1.5] * 20
        special = sorted(tiny_host().info.tokenizer.special_ids)
        assert not marked[0, special].any()

    def test_detection_scores_equal_the_marking_biases(self, bind):
        """Session and detector agree on every token of a text with its prompt."""
        bound = bind()
        tokenizer = tiny_host().info.tokenizer
        prompt, text = tokenizer.encode([unmarked(5, 13), unmarked(6, 60)])
        ids = prompt.ids + text.ids
        session = bound.session(torch.tensor([list(prompt.ids)]))
        logits = torch.zeros(1, tiny_host().info.vocab_size)
        given = [
            float(session(torch.tensor([ids[:i]]), logits)[0, ids[i]])
            for i in range(len(prompt.ids), len(ids))
        ]
        found = score_text(bound, text.text, prompt=prompt.text)
        assert [token.score for token in found.tokens] == given

    def test_characters_of_several_tokens_are_decoded_whole(self, bag_encoder, tmp_path):
        """On a byte-level host, with text in other scripts."""
        host = FakeHost(300, kind="bytes", context=1024)
        bound = SCHEMES["sir"]().bind(key(0), host.info, Workspace(cache=tmp_path))
        text = host.info.tokenizer.encode(["你好 世界 é à la carte, ça va 好好学习天天向上 bien " * 2])[0]
        session = bound.session(torch.tensor([list(text.ids[:1])]))
        logits = torch.zeros(1, host.info.vocab_size)
        given = [
            float(session(torch.tensor([text.ids[:i]]), logits)[0, text.ids[i]])
            for i in range(1, len(text.ids))
        ]
        found = score_text(bound, text.text)
        assert found.tokens_scored > 20
        assert [token.score for token in found.tokens[1:]] == given

    def test_tokens_of_a_cluster_share_their_bias(self, bind):
        bound = bind("xsir")
        words = tiny_host().info.tokenizer.encode([unmarked(7, 20)])[0].ids
        marked = bound.session(torch.tensor([words]))(
            torch.tensor([words]), torch.zeros(1, tiny_host().info.vocab_size)
        )[0]
        labels = bound.labels
        ids = np.flatnonzero(
            bound.host.markable & (labels != np.arange(len(labels))) & bound.host.markable[labels]
        )
        assert len(ids) > 50
        assert torch.equal(marked[ids], marked[labels[ids]])


class TestConfiguration:
    def test_another_artifact_is_another_configuration(self, bind, tiny_artifacts, tmp_path):
        from dewmark_lab.artifacts import load_artifact, save_artifact

        made = load_artifact(str(tiny_artifacts / "sir"), scheme="sir")
        card = {name: made.card[name] for name in ("scheme", "host", "encoder", "parameters", "training")}
        save_artifact(tmp_path / "other", card, {**made.arrays, "output.b": made.arrays["output.b"] + 1})
        assert bind(artifact=str(tmp_path / "other")).config_hash != bind().config_hash

    def test_clusters_of_another_vocabulary_are_rejected(self, bag_encoder, tmp_path):
        with pytest.raises(ConfigError, match="dewmark train xsir --host"):
            SCHEMES["xsir"]().bind(key(0), FakeHost(300, kind="bytes").info, Workspace(cache=tmp_path))


@pytest.mark.models
@pytest.mark.parametrize("scheme", ["sir", "xsir"])
def test_packaged_artifacts_mark_and_detect(scheme: str) -> None:
    """On SmolLM2-135M and USE-m v3."""
    watermark = dewmark.Watermark(dewmark.Key(bytes(range(32))), scheme=scheme)
    marked = [each.text for each in watermark.generate_batch(REAL_PROMPTS, seeds=range(4), **REAL_LENGTH)]
    unmarked = watermark.host.generate(
        REAL_PROMPTS, scheme=None, seeds=range(4), decoding=Decoding(**REAL_LENGTH, no_repeat_ngram=4)
    )
    found = watermark.detect_batch(marked, prompts=REAL_PROMPTS)
    # four independent texts: for unmarked ones the mean z has a standard deviation of 0.5
    assert np.mean([each.z for each in found]) > 2.0
    assert not any(each.is_marked for each in watermark.detect_batch([u.text for u in unmarked], fpr=1e-3))
    wrong = dewmark.load_scheme(dewmark.Key(bytes(32)), host=watermark.scheme.host, scheme=scheme)
    assert not any(each.is_marked for each in score_texts(wrong, marked, prompts=REAL_PROMPTS, fpr=1e-3))


def test_mean_bias_counts_every_token(bind) -> None:
    """The authors' statistic: the mean of all tokens' ±1, repetitions included, with a valid p-value."""
    text = unmarked(3) + unmarked(3)
    bound = bind()
    found = score_text(bound, text, test="mean")
    scored = [token.score for token in found.tokens if token.scored]
    assert found.z == pytest.approx(np.mean(scored))
    assert found.score == pytest.approx(np.mean(scored))
    p = np.array([score_text(bind(number=i), text, test="mean").p_value for i in range(60)])
    assert np.mean(p <= 0.1) <= 0.1 + 4.5 * np.sqrt(0.1 * 0.9 / 60)
    assert 0.35 < p.mean() < 0.7
