"""The llama.cpp processor with a stand-in that calls it like llama-cpp-python."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import dewmark
from dewmark.decoding import Decoding
from dewmark.detect import score_text
from dewmark.errors import ConfigError, NumericalError, VocabularyError
from dewmark.hosts.engines.llamacpp import LlamaCppProcessor
from dewmark_lab.testing.fake_host import FakeHost

KEY = dewmark.Key(bytes(range(32)))
PROMPT = "the old bridge over the river"


class StandIn:
    """Samples from a tiny model as ``llama_cpp.Llama`` does: a growing buffer, a strided view of logits."""

    def __init__(self, host: FakeHost, size: int | None = None) -> None:
        self.host = host
        self._size = size or host.info.vocab_size

    def n_vocab(self) -> int:
        return self._size

    def tokenize(self, text: bytes, *, add_bos: bool, special: bool) -> list[int]:
        return list(self.host.tokenizer.encode([text.decode()])[0].ids)

    def write(self, prompt: str, tokens: int, processor, *, greedy: bool = True, seed: int = 0) -> list[int]:
        start = self.host.tokenizer.encode_prompts([prompt])[0]
        buffer = np.zeros(len(start) + tokens, dtype=np.intc)
        buffer[: len(start)] = start
        random = torch.Generator().manual_seed(seed)
        for length in range(len(start), len(buffer)):
            ids = torch.from_numpy(buffer[:length].astype(np.int64)).unsqueeze(0)
            with torch.inference_mode():
                logits = self.host.model(ids).logits[0, -1].numpy()
            table = np.zeros((len(logits), 3), dtype=np.single)
            table[:, 1] = logits
            table[:, 1] = processor(buffer[:length], table[:, 1])
            probabilities = torch.from_numpy(table[:, 1].copy()).softmax(-1)
            chosen = (
                probabilities.argmax() if greedy else torch.multinomial(probabilities, 1, generator=random)
            )
            buffer[length] = int(chosen)
        return buffer[len(start) :].tolist()


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost()


def bind(host: FakeHost, name: str = "exp", **settings: object):
    return dewmark.load_scheme(KEY, host=host.info, scheme=name, settings=settings)


def test_only_the_chosen_token_is_finite(host: FakeHost) -> None:
    seen = []
    mark = LlamaCppProcessor(bind(host), StandIn(host), seed=1)

    def watched(ids, scores):
        marked = mark(ids, scores)
        seen.append(np.isfinite(marked).sum())
        return marked

    StandIn(host).write(PROMPT, 20, watched)
    assert seen == [1] * 20


def test_the_mark_is_found_in_the_text_and_not_under_another_key(host: FakeHost) -> None:
    scheme = bind(host)
    mark = LlamaCppProcessor(scheme, StandIn(host), seed=1)
    ids = StandIn(host).write(PROMPT, 150, mark)
    assert (mark.room.steps, mark.unmarked) == (pytest.approx(150, abs=30), None)
    cold = LlamaCppProcessor(scheme, StandIn(host), seed=1, decoding=Decoding(temperature=0.01))
    StandIn(host).write(PROMPT, 30, cold)
    assert cold.unmarked == "no_room"
    text = host.tokenizer.decode([ids])[0]
    # each of 150 tokens of about 4 nats adds more than 1 to S, whose standard deviation is 12 unmarked
    assert score_text(scheme, text).p_value < 1e-4
    other = dewmark.load_scheme(dewmark.Key(bytes(32)), host=host.info, scheme="exp")
    assert score_text(other, text).p_value > 1e-3


def test_bias_schemes_see_the_hosts_own_logits_and_leave_sampling_to_llama_cpp(host: FakeHost) -> None:
    scheme = bind(host, "kgw", delta=3.0)
    mark = LlamaCppProcessor(
        scheme, StandIn(host), seed=1, decoding=Decoding(temperature=0.3)
    )  # llama.cpp's own one counts
    logits = np.random.default_rng(0).normal(size=host.info.vocab_size).astype(np.single)
    marked = mark(np.array([5, 6, 7], dtype=np.intc), logits.copy())
    difference = np.round(marked - logits, 4)
    assert set(np.unique(difference)) == {0.0, 3.0}
    ids = StandIn(host).write(PROMPT, 150, LlamaCppProcessor(scheme, StandIn(host)), greedy=False)
    assert score_text(scheme, host.tokenizer.decode([ids])[0]).p_value < 1e-4


def test_every_text_has_its_own_session(host: FakeHost, force) -> None:
    bound = force(host.info)
    mark = LlamaCppProcessor(bound, StandIn(host))
    logits = np.zeros(host.info.vocab_size, dtype=np.single)
    calls = [[5, 6], [5, 6, 7], [5, 6, 7, 7], [5, 6], [5, 6], [5, 6, 7], [8, 6, 7, 7], [8, 6, 7, 7, 9, 9]]
    begun = []
    for ids in calls:
        before = len(bound.opened)
        mark(np.array(ids, dtype=np.intc), logits)
        begun.append(len(bound.opened) > before)
    assert begun == [True, False, False, True, True, False, True, True]
    assert bound.opened[-1][0].tolist() == [[8, 6, 7, 7, 9, 9]]
    assert bound.opened[-1][1].tolist() == [[1] * 6]  # a pad id at the start of a prompt is no padding here


def test_seeds_count_texts_and_repeat_runs(host: FakeHost) -> None:
    runs = []
    for _ in range(2):
        mark = LlamaCppProcessor(bind(host, "dipmark"), StandIn(host), seed=3)
        runs.append([StandIn(host).write(PROMPT, 12, mark) for _ in range(2)])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


def test_another_vocabulary_is_rejected_before_anything_is_written(host: FakeHost) -> None:
    with pytest.raises(VocabularyError, match="llamacpp_info"):
        LlamaCppProcessor(bind(host), StandIn(host, size=99))
    other = FakeHost(kind="bytes")  # as many ids, other pieces
    with pytest.raises(VocabularyError, match="another vocabulary"):
        LlamaCppProcessor(bind(host), StandIn(other))


def test_greedy_decoding_is_rejected(host: FakeHost) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        LlamaCppProcessor(bind(host), StandIn(host), decoding=Decoding(temperature=0.0))


def test_the_stopping_criterion_raises_the_exception_of_a_step(host: FakeHost) -> None:
    mark = LlamaCppProcessor(bind(host, "dew"), StandIn(host))
    ids = np.array([5, 6], dtype=np.intc)
    with pytest.raises(NumericalError, match="NaN"):
        mark(ids, np.full(host.info.vocab_size, np.nan, dtype=np.single))  # C swallows this one
    with pytest.raises(NumericalError, match="NaN"):
        mark.check(ids, np.zeros(1))
    assert mark.check(ids, np.zeros(1)) is False
