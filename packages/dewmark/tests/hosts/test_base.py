"""The host contract: batching, labels, streaming, and requests that are rejected before anything runs."""

from __future__ import annotations

import itertools
import math
import threading

import pytest
import torch

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, InputError, ModelError, VocabularyError
from dewmark.hosts.base import Host, stream_text
from dewmark_lab.testing.fake_host import FakeHost

PROMPTS = ["the old bridge", "rain", "", "a house by the sea and the river"]
SEEDS = [5, 6, 7, 8]
DECODING = Decoding(max_new_tokens=40, no_repeat_ngram=4)


def write(host, *, seeds=SEEDS, **options):
    return host.generate(PROMPTS, scheme=None, seeds=seeds, **{"decoding": DECODING, **options})


def stream(host: Host, *, steps: int | None = None) -> list[list[int]]:
    """The ids that a listener receives; it stops the host after ``steps`` steps."""
    rows: list[list[int]] = [[] for _ in PROMPTS]
    count = itertools.count(1)

    def listen(step: list[int | None], rooms: list[object]) -> bool:
        for row, token in zip(rows, step, strict=True):
            if token is not None:
                row.append(token)
        return next(count) != steps

    host.stream(PROMPTS, scheme=None, seeds=SEEDS, decoding=DECODING, on_step=listen)
    return rows


class Minimal(Host):
    """Implements only what a host must, and `next_logits`: it writes token 7 and predicts it with p = 1/2."""

    info = FakeHost().info

    def complete(self, prompts, *, scheme, seeds, decoding):
        return [[7] * decoding.max_new_tokens for _ in prompts]

    def next_logits(self, prompts, completions):
        for ids in completions:
            logits = torch.zeros(len(ids), self.info.vocab_size)
            logits[:, 7] = torch.tensor(self.info.vocab_size - 1.0).log()
            yield logits


class TestGenerate:
    def test_a_generation_describes_itself(self, host):
        generation = write(host)[0]
        assert (generation.prompt, generation.seed, generation.scheme) == (PROMPTS[0], 5, "none")
        assert generation.text == host.tokenizer.decode([generation.token_ids])[0]
        assert generation.text.startswith(" ")  # the space before the first word is kept
        assert host.tokenizer.encode([generation.text])[0].ids == generation.token_ids
        shorter = write(host, decoding=Decoding(max_new_tokens=39, no_repeat_ngram=4))
        assert shorter[0].config_hash != generation.config_hash
        assert write(host, seeds=[1, 2, 3, 4])[0].config_hash == generation.config_hash

    def test_batches_are_reported_as_they_finish(self, host):
        seen = []
        done = write(host, batch_size=3, on_batch=lambda batch: seen.append(list(batch)))
        assert [len(batch) for batch in seen] == [3, 1]
        assert [generation for batch in seen for generation in batch] == done

    def test_each_batch_has_its_own_session(self, host, force):
        scheme = force(host.info, -1)
        host.generate(PROMPTS, scheme=scheme, seeds=SEEDS, decoding=Decoding(max_new_tokens=2), batch_size=1)
        assert len(scheme.opened) == len(PROMPTS)


class TestRejections:
    @pytest.mark.parametrize(
        ("prompts", "seeds", "batch_size", "message"),
        [
            (["the"], [1, 2], 8, "1 prompts but 2 seeds"),
            ("the", [1, 2, 3], 8, "list"),
            ([3], [1], 8, "prompt 0"),
            (["the"], [-1], 8, "seed 0"),
            (["the"], [1], 0, "batch_size"),
            (["\ud800"], [1], 8, "Unicode"),
        ],
    )
    def test_bad_rows(self, host, prompts, seeds, batch_size, message):
        with pytest.raises((InputError, ConfigError), match=message):
            host.generate(prompts, scheme=None, seeds=seeds, decoding=DECODING, batch_size=batch_size)

    def test_a_scheme_for_another_vocabulary(self, host, force):
        with pytest.raises(VocabularyError, match="another vocabulary"):
            host.generate(["the"], scheme=force(FakeHost(64).info), seeds=[1])

    def test_greedy_decoding_if_the_scheme_needs_sampling(self, host, force):
        greedy = Decoding(max_new_tokens=12, temperature=0.0)
        with pytest.raises(ConfigError, match="temperature 0 always takes the likeliest token, and force"):
            host.generate(["the"], scheme=force(host.info), seeds=[1], decoding=greedy)
        first, second = (write(host, decoding=greedy, seeds=s) for s in (SEEDS, [1, 2, 3, 4]))
        assert [row.text for row in first] == [row.text for row in second]


class TestStream:
    def test_the_ids_are_those_of_generate(self, host):
        assert [tuple(row) for row in stream(host)] == [one.token_ids for one in write(host)]

    def test_the_listener_can_stop_it(self, host, monkeypatch):
        whole = stream(host)
        calls = []
        forward = type(host.model).forward
        monkeypatch.setattr(type(host.model), "forward", lambda *a, **k: calls.append(1) or forward(*a, **k))
        assert stream(host, steps=5) == [row[:5] for row in whole]
        assert len(calls) == 5


class TestMinimalHost:
    def test_likelihoods_come_from_next_logits(self):
        text = Minimal.info.tokenizer.decode([[7, 7, 7]])[0]
        assert Minimal().log_likelihood(["", "the"], [text, ""]) == [
            (pytest.approx(-3 * math.log(2), abs=1e-4), 3),
            (0.0, 0),
        ]

    def test_it_writes_and_streams(self):
        host = Minimal()
        (row,) = host.generate(["the"], scheme=None, seeds=[1], decoding=Decoding(max_new_tokens=3))
        assert row.token_ids == (7, 7, 7)
        assert stream(host) == [[7] * 40] * len(PROMPTS)

    def test_capabilities_it_lacks_are_named(self):
        with pytest.raises(ConfigError, match="writes no drafts"):
            Minimal().complete_drafts([""], drafts=None, seeds=[1], decoding=DECODING)
        with pytest.raises(ConfigError, match="gives no logits"):
            Host.next_logits(Minimal(), [""], [[7]])


PROMPT = "the old bridge"


@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_the_pieces_make_up_the_text(kind):
    host = FakeHost(kind=kind)
    decoding = Decoding(max_new_tokens=40)
    (made,) = host.generate([PROMPT], scheme=None, seeds=[5], decoding=decoding)
    pieces = list(stream_text(host, PROMPT, scheme=None, seed=5, decoding=decoding))
    assert "".join(pieces) == made.text
    assert len(pieces) > 5
    if kind == "bytes":  # random bytes: incomplete characters wait, or come at the end
        assert not any(piece.endswith("\ufffd") for piece in pieces[:-1])


def test_closing_the_stream_stops_the_host():
    host = FakeHost()
    steps = []
    original = host.complete_steps

    def counted(*args, on_step, **options):
        def seen(step, rooms):
            return steps.append(step) or on_step(step, rooms)

        return original(*args, on_step=seen, **options)

    host.complete_steps = counted
    stream = stream_text(host, PROMPT, scheme=None, seed=5, decoding=Decoding(max_new_tokens=400))
    next(stream)
    stream.close()
    assert len(steps) < 400
    assert not any(thread.name == "streaming" for thread in threading.enumerate())


def test_errors_reach_the_reader():
    host = FakeHost(context=64)
    with pytest.raises(InputError, match="leaves no room"):
        list(stream_text(host, PROMPT, scheme=None, seed=5, decoding=Decoding(max_new_tokens=100)))

    def fail(*args, **options):
        raise ModelError("out of memory")

    host.complete_steps = fail
    with pytest.raises(ModelError, match="out of memory"):
        next(stream_text(host, PROMPT, scheme=None, seed=5, decoding=Decoding(max_new_tokens=10)))
