"""What decoding leaves to a mark is measured, and a text that it left too little counts as unmarked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from scipy.special import ndtri, ndtri_exp

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import score_text
from dewmark.dew.word_step import GAIN_KEPT
from dewmark.errors import ConfigError
from dewmark.hosts.base import stream_text
from dewmark.mark import Row, Rows
from dewmark.policy import Exemptions, Policy
from dewmark.registry import SCHEMES
from dewmark.room import NO_ROOM, Room, Written, gain, log_probability, rooms_of
from dewmark.sampling import race, warp
from dewmark.scheme import BoundScheme
from dewmark.stats.two_sums import larger_of
from dewmark.types import Verdict
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

CPU = torch.device("cpu")
PROMPT = "the old bridge"
TOKENS = 120
TEXTS = 4


@pytest.fixture
def host() -> FakeHost:
    return FakeHost(400, context=1024)


@pytest.fixture
def bind(host, bag_encoder, tmp_path) -> Callable[..., BoundScheme]:
    def bound(name: str = "dew", key: int = 0) -> BoundScheme:
        scheme = SCHEMES[name]()
        return scheme.bind(Key(bytes([key]) * 32), host.info, Workspace(cache=tmp_path))

    return bound


def test_gains_are_those_of_races() -> None:
    """The noise of 400,000 winners, and the g of their probabilities, which estimates its mean."""
    p = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.04, 0.01], dtype=torch.float64)
    exponentials = torch.from_numpy(np.random.default_rng(3).exponential(size=(400_000, len(p))))
    ids, _ = race(p.log().expand_as(exponentials), exponentials)
    noise = ndtri_exp(-exponentials.gather(1, ids.unsqueeze(1)).numpy())
    left = gain(p.log()[ids]).double().numpy()
    margin = 4.5 * math.hypot(noise.std(), left.std()) / math.sqrt(len(noise))
    assert left.mean() == pytest.approx(noise.mean(), abs=margin)
    assert left.mean() == pytest.approx(float((p * gain(p.log())).sum()), abs=margin)


def test_there_is_nothing_to_gain_without_a_rival() -> None:
    found = gain(torch.log(torch.tensor([1.0, 0.999, 0.97, 0.0, math.nan])))
    times = np.random.default_rng(4).exponential(size=500_000)
    for value, p in zip(found[:3].tolist(), (1.0, 0.999, 0.97), strict=True):
        x = ndtri_exp(-p * times)
        assert value == pytest.approx(x.mean(), abs=4.5 * x.std() / math.sqrt(len(x)))
    assert found[0] == 0.0
    assert found[3] > 7.0
    assert found[4] == 0.0  # an unusable row, which the host reports


def test_the_threshold_follows_from_the_level_and_a_verdict_needs_enough_steps() -> None:
    for fpr in (0.01, 1e-4):
        just = -float(ndtri(fpr)) * math.sqrt(100)
        assert Room(just + 1e-6, 100).suffices(fpr=fpr)
        assert not Room(just - 1e-6, 100).suffices(fpr=fpr)
    assert not Room(1000.0, 15).suffices(fpr=0.01)
    assert Room(1000.0, 15).suffices(fpr=0.01, reader="a model")  # which needs six
    assert not Room(0.0, 0).suffices(fpr=0.01)


def test_the_room_of_two_sums_is_that_of_their_verdict() -> None:
    """z to expect is that of the larger of z and (z + z_F)/√2, which costs a look."""
    both = Room(20.0, 100.0, form=30.0, words=100.0)
    assert both.z == pytest.approx(larger_of(2.0, 3.0)[1])
    assert Room(20.0, 100.0).z == 2.0
    assert 3.0 < both.z < 5.0 / math.sqrt(2.0)


@pytest.mark.parametrize("decoding", [Decoding(), Decoding(temperature=0.5, top_p=0.8)])
def test_a_session_counts_the_probabilities_of_what_it_drew(bind, decoding) -> None:
    logits = 2.0 * torch.randn(20, 3, 400, generator=torch.Generator().manual_seed(5))
    ids = torch.full((3, 2), 7)
    writer = bind("vllm-gumbel").writer(ids)
    total = torch.zeros(3)
    for scores in logits:
        chosen, _ = writer.draw(ids, scores, decoding)
        total += gain(log_probability(warp(scores, decoding), chosen))
        ids = torch.cat((ids, chosen.unsqueeze(1)), dim=1)
    nothing = torch.zeros(3)
    expected = torch.stack((total, torch.full((3,), 20.0), nothing, nothing), dim=1)
    torch.testing.assert_close(writer.room(), expected)


def test_words_count_once_after_the_first_three(bind) -> None:
    """Each token of this host is a word; among all 400 candidates p is the softmax's."""
    bound, ids = bind(), torch.full((2, 2), 7)
    race_of_all = dataclasses.replace(bound.scheme, m=400, strength=0.0)
    bound = race_of_all.bind(Key(bytes(32)), bound.host, bound.workspace)
    session = bound.session(ids, seeds=[1, 2])
    before = session.room()
    for step in range(12):
        scores = 2.0 * torch.randn(2, 400, generator=torch.Generator().manual_seed(step))
        chosen, _ = session.choose(ids, scores, Decoding())
        after = session.room()
        new, left = after - before, gain(log_probability(scores, chosen))
        ranks = (scores > scores.gather(1, chosen.unsqueeze(1))).sum(dim=1)
        meaning, form = new[:, 1] > 0, new[:, 3] > 0
        assert not (form & torch.tensor(step + 2 < 3)).any()
        assert not (meaning & ~form).any()
        alpha = torch.where(ranks < 32, 0.65, 0.3)
        beta = torch.where(meaning, torch.where(ranks < 32, 0.3, 0.6), 0.9)  # 0.9: a row that is used up
        for column, share, kept, counts in ((0, alpha, GAIN_KEPT, meaning), (2, beta, 1.0, form)):
            expected = torch.where(counts, kept * share.sqrt() * left, 0.0)
            torch.testing.assert_close(new[:, column], expected, rtol=1e-4, atol=1e-4)
        before, ids = after, torch.cat((ids, chosen.unsqueeze(1)), dim=1)
    assert (before[:, 1] > 4).all()


@pytest.mark.parametrize("name", ["dew", "vllm-gumbel"])
def test_hosts_streams_and_engines_count_the_same(bind, host, name) -> None:
    bound = bind(name)
    decoding = Decoding(max_new_tokens=40, temperature=0.8)
    rows = host.complete([PROMPT] * 2, scheme=bound, seeds=[1, 2], decoding=decoding)
    assert all(isinstance(row, Written) and row.room.steps > 10 for row in rows)
    for marker in (bound.rows(CPU), BoundScheme.rows(bound, CPU)):
        written: list[int] = []
        (start,) = host.prompt_ids([PROMPT])
        row = marker.open(start, written, seed=1, decoding=decoding)
        forbidden = ~torch.tensor(host.info.markable)
        forbidden[list(host.eos_ids)] = False
        for _ in rows[0]:
            with torch.inference_mode():
                scores = host.model(torch.tensor([[*start, *written]])).logits[:, -1].float()
                scores = scores.masked_fill(forbidden, -math.inf)
                written.append(int(marker.mark([row], scores).argmax()))
        assert written == rows[0]
        counted = marker.room(row)
        assert counted == pytest.approx(rows[0].room, abs=1e-3)
        assert marker.room(marker.fork(row, list(written), seed=1)) == counted


@pytest.mark.parametrize("name", ["vllm-gumbel", "transformers-synthid"])
def test_rows_count_across_forks_and_steps_taken_back(bind, name) -> None:
    """Speculative decoding forks at every draft, and an engine takes rejected drafts back."""
    bound, decoding = bind(name), Decoding()

    def written(marker: Rows, row: Row, steps: int) -> None:
        for _ in range(steps):
            logits = 2.0 * torch.randn(1, 400, generator=torch.Generator().manual_seed(len(row.written)))
            row.written.append(int(marker.mark([row], logits).argmax()))

    straight = BoundScheme.rows(bound, CPU)
    whole = straight.open([5, 6], [], seed=1, decoding=decoding)
    written(straight, whole, 40)
    marker = BoundScheme.rows(bound, CPU)
    row = marker.open([5, 6], [], seed=1, decoding=decoding)
    for _ in range(4):
        written(marker, row, 10)
        row = marker.fork(row, list(row.written), seed=1)
        draft = marker.fork(row, list(row.written), seed=1)
        written(marker, draft, 3)
        del draft.written[-3:]
        written(marker, draft, 2)
        assert draft.written[:-2] == row.written
        del draft.written[-2:]
        row = marker.fork(draft, list(draft.written), seed=1)
    assert row.written == whole.written
    assert marker.room(row) == pytest.approx(straight.room(whole), abs=1e-3)


def test_rows_that_ended_do_not_count(bind, host) -> None:
    bound = bind()
    ended = host.complete([PROMPT, "rain"], scheme=bound, seeds=[1, 2], decoding=Decoding(max_new_tokens=60))
    for row in ended:
        assert row.room.steps <= len(row) + 1


@pytest.mark.parametrize("name", ["dew", "vllm-sbw", "transformers-kgw"])
def test_a_text_that_a_policy_spares_as_a_whole_is_unmarked_alone_and_beside_others(
    bind, host, name, monkeypatch
) -> None:
    bound, decoding = bind(name), Decoding(max_new_tokens=40)
    short = bound.under_policy(Policy(least_tokens=50))
    made = host.generate([PROMPT, "rain"], scheme=short, seeds=[1, 2], decoding=decoding)
    assert [each.unmarked for each in made] == [NO_ROOM, NO_ROOM]
    ids = torch.tensor([[5, 6]])
    for spared in ([True], [True, False]):
        rows = len(spared)
        monkeypatch.setattr(Exemptions, "spares", lambda self, written, spared=spared: spared)
        written = ids.expand(rows, 2)
        writer = bound.under_policy(Policy(numbers=False)).writer(written, seeds=range(rows))
        for _ in range(20):
            chosen, _ = writer.draw(written, torch.zeros(rows, 400), decoding)
            written = torch.cat((written, chosen.unsqueeze(1)), dim=1)
        first, *others = rooms_of(writer.room(), rows)
        assert first == Room(0.0, 0.0)
        assert bound.unmarked_reason(first) == NO_ROOM
        for other in others:
            assert (other is None) == (name != "dew")


FIELDS = [  # extremes of every field of `Decoding`
    {"temperature": 0.02},
    {"temperature": 3.0},
    {"top_p": 0.01},
    {"top_p": 1.0},
    {"top_k": 400},
    {"min_p": 0.999},
    {"min_p": 1e-9},
    {"no_repeat_ngram": 1, "max_new_tokens": 100},
    {"min_new_tokens": TOKENS},
    {"max_new_tokens": 3},
    {"drafts": 2, "max_new_tokens": 60},
    {"drafts": 2, "temperature": 0.02},
]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_what_says_marked_is_found_and_what_is_not_found_says_so(bind, host, fields) -> None:
    """z is expected above 6 or below 1.2 here, so that neither side is a matter of luck."""
    bound = bind()
    decoding = Decoding(**{"max_new_tokens": TOKENS, "min_new_tokens": 3, **fields})
    decoding = dataclasses.replace(decoding, min_new_tokens=min(TOKENS, decoding.max_new_tokens))
    made = host.generate([PROMPT] * TEXTS, scheme=bound, seeds=range(TEXTS), decoding=decoding)
    for each in made:
        found = score_text(bound, each.text).verdict is Verdict.MARKED
        assert each.marked is found, (each.room, each.unmarked)
        assert each.unmarked == (None if found else NO_ROOM)
        assert each.room > 6.0 or each.room < 1.2 or decoding.max_new_tokens == 3
    ended: list[str | None] = []

    def drained() -> Iterator[str]:
        ended.append((yield from stream_text(host, PROMPT, scheme=bound, seed=0, decoding=decoding)))

    list(drained())
    assert ended == [made[0].unmarked]


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_what_never_leaves_a_choice_is_refused(bind, host, fields) -> None:
    with pytest.raises(ConfigError, match="always takes the likeliest token, and dew puts its mark"):
        host.generate([PROMPT], scheme=bind(), seeds=[1], decoding=Decoding(**fields))


@pytest.mark.parametrize("name", ["transformers-kgw", "vllm-sbw"])
def test_a_bias_is_not_measured(bind, host, name) -> None:
    """It raises unlikely tokens, whose g is large, wherever there is next to no choice, too."""
    bound, decoding = bind(name), Decoding(max_new_tokens=20)
    (made,) = host.generate([PROMPT], scheme=bound, seeds=[1], decoding=decoding)
    assert (made.room, made.unmarked, made.marked) == (None, None, True)
    for scheme in (bound, bound.under_policy(Policy())):
        marker = BoundScheme.rows(scheme, CPU)
        row = marker.open([5, 6], [], seed=1, decoding=decoding)
        row.written.append(int(marker.mark([row], torch.zeros(1, 400)).argmax()))
        assert marker.room(row) is None
        assert marker.room(marker.fork(row, list(row.written), seed=1)) is None


def test_what_is_not_measured_counts_as_marked(bind, host) -> None:
    (made,) = host.generate([PROMPT], scheme=None, seeds=[1], decoding=Decoding(max_new_tokens=5))
    assert (made.room, made.unmarked, made.marked) == (None, None, False)
    assert bind().unmarked_reason(None) is None
