"""The keyed race over words of a lexicon as kernels, against the same steps in torch.

The kernels run on a CUDA device or, slowly, on the CPU with TRITON_INTERPRET=1 where Triton is installed.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from tests.fakes import tiny_lexicon

from dewmark.core.keys import Key
from dewmark.cuda import fallbacks, graphs, word_race
from dewmark.cuda.word_race import usable
from dewmark.decoding import Decoding
from dewmark.dew import race as dew_race
from dewmark.dew import word_step
from dewmark.dew.form import CLASS_BITS
from dewmark.dew.noise import mixture_of
from dewmark.dew.race import WordRace
from dewmark.dew.scheme import DEW
from dewmark.dew.word_step import KeyTensors, WordStates, WordTables, key_tensors
from dewmark.encoders.lexicon import load_lexicon
from dewmark.errors import ConfigError
from dewmark.mark import draw
from dewmark.sampling import RandomStreams, race
from dewmark.text.trie import build_trie
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_kernels = pytest.mark.skipif(
    not usable(DEVICE.type), reason="needs a CUDA device, or Triton's interpreter"
)
STEPS = 40 if os.environ.get("TRITON_INTERPRET") != "1" else 12

DECODINGS = {
    "plain": [Decoding()] * 3,
    "chat": [Decoding(temperature=0.7, top_p=0.9)] * 3,
    "flat": [Decoding(temperature=2.5, top_p=0.97)] * 3,  # keeps more tokens than there are candidates
    "mixed": [Decoding(top_k=5), Decoding(temperature=3.0, top_k=120, top_p=0.9), Decoding(min_p=0.05)],
}


@needs_kernels
@pytest.mark.parametrize("kind", ["words", "bytes"])
@pytest.mark.parametrize("name", DECODINGS)
def test_kernels_draw_what_torch_draws(name, kind, bag_encoder, tmp_path) -> None:
    host = FakeHost(400, kind=kind)
    m = 64 if name in ("flat", "mixed") else 256
    bound = DEW().with_settings({"m": m}).bind(Key(bytes(32)), host.info, Workspace(cache=tmp_path))
    start = torch.tensor([host.info.tokenizer.encode(["the old bridge over the river"])[0].ids] * 3)
    ids = start.to(DEVICE)
    logits = 2.5 * torch.randn(STEPS, 3, 400, generator=torch.Generator().manual_seed(3))
    noise = RandomStreams([1, 2, 3], device=DEVICE)
    sessions = {"kernels": bound.session(ids)}
    key, tables = key_tensors(bound.own, DEVICE), sessions["kernels"].texts.tables
    assert tables.kernels
    tables.kernels = False
    sessions["torch"] = bound.session(ids)
    differ = 0
    for step in range(STEPS):
        chosen = {}
        for way, session in sessions.items():
            tables.kernels = way == "kernels"
            chosen[way], sound = bound.race(
                logits[step].to(DEVICE), session.read(ids), key, DECODINGS[name], noise.states(step)
            )
            assert sound.all()
        for mine, other in zip(*(session.texts.state for session in sessions.values()), strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)
        differ += int((chosen["kernels"] != chosen["torch"]).sum())
        ids = torch.cat((ids, chosen["torch"].unsqueeze(1)), dim=1)
    assert differ == 0


PIECES = [" the", " old", " bri", "dge", "我", "我们的话", "bridge桥河", " road.", "'s", ""]


def new_tables(tmp_path) -> WordTables:
    """The tables of a trie that was just built; some of its tokens have several parts."""
    lexicon = load_lexicon(str(tiny_lexicon()), workspace=Workspace(cache=tmp_path))
    trie = build_trie(lexicon.forms, PIECES, special=frozenset({len(PIECES) - 1}))
    assert trie.parts.shape[1] > 2
    return WordTables(trie, lexicon, device=DEVICE)


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> WordTables:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "marking without kernels")
        return new_tables(tmp_path_factory.mktemp("cache"))


def test_tables_of_a_trie_just_built_lie_in_the_order_that_kernels_read(tables) -> None:
    tensors = {name: each for name, each in vars(tables).items() if isinstance(each, torch.Tensor)}
    assert {*tensors, "vocab_size"} == {*word_race.Tables.__annotations__}
    assert [name for name, each in tensors.items() if not each.is_contiguous()] == []


@needs_kernels
def test_kernels_push_with_a_trie_just_built(tables) -> None:
    assert tables.kernels
    tokens = torch.randint(len(PIECES), (4, STEPS), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    tokens[2, 5:] = -1
    mine, other = WordStates(tables, 4, k=3), WordStates(tables, 4, k=3)
    mine.push(tokens.T.contiguous().T)  # ids come with their strides
    other.push_in_torch(tokens)
    assert all(map(torch.equal, mine.state, other.state))
    assert int(mine.state.finished.max()) > 5


def spelled_tables(tmp_path) -> WordTables:
    """Words in two spellings, and one of them in two parts, too; most may occur once in a text."""
    lexicon = load_lexicon(str(tiny_lexicon()), workspace=Workspace(cache=tmp_path))
    once = [form for form in lexicon.forms[66:300] if lexicon.limits[lexicon.rows([form])[0]] == 1][:18]
    parts = [f" {once[0][:3]}", once[0][3:], once[0][3:].title()]
    words = [
        spelled for form in (*once, "the", "of", "bridge") for spelled in (f" {form}", f" {form.title()}")
    ]
    pieces = [*parts, *words, ""]
    trie = build_trie(lexicon.forms, pieces, special=frozenset({len(pieces) - 1}))
    return WordTables(trie, lexicon, device=DEVICE)


def members(count: int, dim: int) -> KeyTensors:
    """The numbers of members of a ring, with messages."""
    generator = torch.Generator().manual_seed(1)
    W = torch.randn(count, dim, dim, generator=generator)
    secrets = torch.randint(-(1 << 63), (1 << 63) - 1, (count, 2), generator=generator)
    messages = torch.randint(1, 1 << CLASS_BITS, (count, 1), generator=generator)
    return KeyTensors(W.to(DEVICE), torch.cat((secrets, messages), dim=1).to(DEVICE))


@needs_kernels
@pytest.mark.parametrize("m", [8, 64])
def test_kernels_know_used_words_and_equal_ones(m, tmp_path) -> None:
    """Few words, which recur in either spelling; the first row begins with a context that recurs.

    Each row has the numbers of a member.
    """
    tables, batch = spelled_tables(tmp_path), 4
    assert tables.kernels
    assert 32 < tables.vocab_size < 64
    key = members(batch, tables.units.shape[1])
    step = WordRace(mixture_of(alpha=0.65, beta=0.3, strength=0.35), m)
    start = torch.tensor([[5 + row + 2 * (i % (5 + row)) for i in range(8)] for row in range(batch)])
    texts = {way: WordStates(tables, batch, k=3) for way in ("kernels", "torch")}
    noise, generator = RandomStreams(range(batch), device=DEVICE), torch.Generator().manual_seed(2)
    tokens, found, differ = start.to(DEVICE), Counter[str](), 0
    for place in range(STEPS):
        scores = 2.0 * torch.randn(batch, tables.vocab_size, generator=generator)
        scores[:, :12] += 3.0
        scores[:, -1] = -math.inf
        scores, drawn = scores.to(DEVICE), {}
        for way, states in texts.items():
            tables.kernels = way == "kernels"
            states.push(tokens)
            if way == "torch":
                found += cases(states, scores, key, m)
            drawn[way], sound = step(scores, states, key, [Decoding()] * batch, noise.states(place))
            assert sound.all()
        for mine, other in zip(*(states.state for states in texts.values()), strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)
        differ += int((drawn["kernels"] != drawn["torch"]).sum())
        tokens = drawn["torch"].unsqueeze(1)
    assert differ == 0
    assert texts["kernels"].state.room.shape == (batch, 8)
    assert min(found[name] for name in CASES) > 0, found


CASES = ("used up", "used up and extended", "equal", "remembered", "used up and remembered", "repeated")


def cases(texts: WordStates, scores: torch.Tensor, key: KeyTensors, m: int) -> Counter[str]:
    """How many candidates of a step are of each kind that a kernel could take for another one."""
    aligned, past = texts.align(scores.topk(min(m, scores.shape[1])).indices, key.W), texts.state.past_pairs
    q, marked = aligned.pairs, aligned.pairs != 0
    used = marked & (aligned.rows == 0)
    same = (q.unsqueeze(2) == q.unsqueeze(1)) & marked.unsqueeze(2)
    repeated = texts.state.repeated & (texts.state.finished > 3)
    counts = (
        used & aligned.begins,
        used & ~aligned.begins,
        same.sum(dim=2) > 1,
        (q.unsqueeze(2) == past.unsqueeze(1)).any(dim=2) & marked,
        (past != 0) & (texts.state.past_rows == 0),
        repeated,
    )
    return Counter({name: int(each.sum()) for name, each in zip(CASES, counts, strict=True)})


@needs_kernels
def test_kernels_take_the_class_from_the_same_bits() -> None:
    from dewmark.cuda import race_kernels

    assert race_kernels._CLASS_BITS.value == CLASS_BITS
    assert race_kernels._CLASS.value == (1 << CLASS_BITS) - 1


@needs_kernels
def test_a_table_in_another_order_is_not_read(tables, monkeypatch) -> None:
    monkeypatch.setattr(tables, "parts", tables.parts.T.contiguous().T)
    states = WordStates(tables, 2, k=3)
    with pytest.raises(
        ConfigError, match=r"the kernel push reads parts in C order.*pass parts.contiguous\(\)"
    ):
        states.push(torch.tensor([[0, 5], [1, 2]], device=DEVICE))


class Launches:
    """A kernel that counts its launches."""

    __name__ = "push"

    def __init__(self, *arg_names: str) -> None:
        self.arg_names, self.count = arg_names, 0

    def __getitem__(self, programs):
        return self

    def __call__(self, *args, **options) -> None:
        self.count += 1


@pytest.mark.parametrize(
    ("name", "tensor", "fits"),
    [
        ("parts", torch.zeros(6, 3), True),
        ("parts", torch.zeros(3, 6).T, False),
        ("parts", torch.zeros(6, 4)[:, :3], False),
        ("W", torch.zeros(5, 4).expand(2, -1, -1), True),
        ("W", torch.zeros(4, 5).T.expand(2, -1, -1), False),
        ("form", torch.zeros(3).expand(2, -1), True),
        ("form", torch.zeros(3, 2).T, False),
        ("logits", torch.zeros(3, 7, 9)[:, -1], True),
        ("logits", torch.zeros(9, 3).T, False),
        ("tokens", torch.zeros(9, 3).T, True),
    ],
)
def test_only_tensors_whose_strides_are_given_may_be_in_another_order(name, tensor, fits) -> None:
    kernel = Launches("count", name)
    launch = word_race._launcher(kernel, torch.zeros(1), 1)
    if fits:
        launch(7, tensor)
    else:
        with pytest.raises(ConfigError, match=f"reads {name} in C order"):
            launch(7, tensor)
    assert kernel.count == fits


def test_a_fallback_says_what_it_costs_and_is_counted(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(word_step, "usable", lambda _: True)
    monkeypatch.setattr(word_step, "push_words", lambda *_: None)
    before = fallbacks["texts grow differently"]
    with pytest.warns(UserWarning, match=r"without kernels.*\(texts grow differently\).* 50 times as long"):
        tables = new_tables(tmp_path)
    assert not tables.kernels
    assert fallbacks["texts grow differently"] == before + 1


def test_a_device_without_triton_is_told_so(monkeypatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(sys.modules, "dewmark.cuda.race_kernels", None)
    monkeypatch.delattr("dewmark.cuda.race_kernels", raising=False)
    with pytest.warns(UserWarning, match="without kernels"):
        assert not usable.__wrapped__("cpu")


@needs_kernels
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, None])
def test_rows_without_usable_logits_are_reported(bad, bag_encoder, tmp_path) -> None:
    host = FakeHost(400)
    bound = DEW().bind(Key(bytes(32)), host.info, Workspace(cache=tmp_path))
    ids = torch.tensor([[5, 6], [7, 8]], device=DEVICE)
    logits = torch.randn(2, 400, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    logits[1, :] = -math.inf
    if bad is not None:
        logits[1, 3] = bad
    texts, key = bound.session(ids).read(ids), key_tensors(bound.own, DEVICE)
    random = RandomStreams([1, 2], device=DEVICE).states(0)
    _, sound = bound.race(logits, texts, key, [Decoding()] * 2, random)
    assert sound.tolist() == [True, False]


@needs_kernels
def test_the_plain_draw_is_the_race() -> None:
    logits = 3.0 * torch.randn(4, 5000, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    logits[0, 100:] = -math.inf
    logits[3] = -math.inf
    noise = RandomStreams(range(4), device=DEVICE)
    for step in range(STEPS):
        ids, sound = draw(logits, Decoding(), noise, step)
        expected, usable_rows = race(logits, noise.exponentials(step, 5000))
        assert sound.tolist() == usable_rows.tolist() == [True, True, True, False]
        assert torch.equal(ids[:3], expected[:3])


@needs_kernels
def test_kernels_that_draw_otherwise_are_left(bag_encoder, tmp_path, monkeypatch) -> None:
    host = FakeHost(400)
    bound = DEW().bind(Key(bytes(32)), host.info, Workspace(cache=tmp_path))
    ids = torch.tensor([[5, 6], [7, 8]], device=DEVICE)
    texts, key = bound.session(ids).read(ids), key_tensors(bound.own, DEVICE)
    logits = torch.randn(2, 400, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    random = RandomStreams([1, 2], device=DEVICE).states(0)
    expected, _ = bound.race(logits, texts, key, [Decoding()] * 2, random)
    dew_race._DRAWN.clear()
    wrong = lambda *_, **__: (expected + 1, torch.ones(2, dtype=torch.bool, device=DEVICE))  # noqa: E731
    monkeypatch.setattr(dew_race, "draw_words", wrong)
    with pytest.warns(UserWarning, match="without kernels"):
        chosen, _ = bound.race(logits, texts, key, [Decoding()] * 2, random)
    assert torch.equal(chosen, expected)
    assert not texts.tables.kernels


def test_captured_steps_draw_what_called_ones_draw(bag_encoder, tmp_path, monkeypatch) -> None:
    """On a CUDA device by a graph; elsewhere by the work itself, run as often as a capture runs it."""
    replays = []
    if DEVICE.type == "cpu":

        def captured(work, *, device):
            for _ in range(3):
                work()
            return lambda: replays.append(work())

        monkeypatch.setattr(graphs, "captured", captured)
    host = FakeHost(400)
    bound = DEW().bind(Key(bytes(32)), host.info, Workspace(cache=tmp_path))
    start = torch.tensor([host.info.tokenizer.encode(["the old bridge over the river"])[0].ids] * 3)
    logits = 2.5 * torch.randn(12, 3, 400, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    decodings = [Decoding()] * 8 + [Decoding(temperature=0.7, top_p=0.9)] * 4  # a new one begins again
    drawn, states = [], []
    for captures in (False, True):
        monkeypatch.setattr(dew_race.WordSession, "_can_capture", lambda self, scores, can=captures: can)
        session, ids = bound.session(start.to(DEVICE), seeds=[1, 2, 3]), start.to(DEVICE)
        tokens = []
        for scores, decoding in zip(logits, decodings, strict=True):
            tokens.append(session.choose(ids, scores, decoding)[0])
            ids = torch.cat((ids, tokens[-1].unsqueeze(1)), dim=1)
        drawn.append(torch.stack(tokens))
        states.append(session.read(ids).state)
    assert torch.equal(*drawn)
    assert all(map(torch.equal, *states))
    assert len(replays) == (4 if DEVICE.type == "cpu" else 0)


@pytest.mark.parametrize("right", [True, False])
def test_the_first_draw_by_kernels_is_compared_with_that_of_torch(
    right, bag_encoder, tmp_path, monkeypatch
) -> None:
    """On any device: the kernels' part is played by what torch drew, or by other tokens."""
    host = FakeHost(400)
    bound = DEW().bind(Key(bytes(32)), host.info, Workspace(cache=tmp_path))
    ids = torch.tensor([[5, 6], [7, 8]], device=DEVICE)
    session = bound.session(ids)
    texts, key = session.read(ids), key_tensors(bound.own, torch.device(DEVICE))
    logits = torch.randn(2, 400, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    step = (logits, texts, key, [Decoding()] * 2, RandomStreams([1, 2], device=DEVICE).states(0))
    expected, sound = bound.race.drawn(*step)[:2]
    other = (expected + 1) % 400
    monkeypatch.setattr(dew_race, "draw_words", lambda *_, **__: (expected if right else other, sound))
    monkeypatch.setattr(texts.tables, "kernels", True)
    dew_race._DRAWN.clear()
    with nullcontext() if right else pytest.warns(UserWarning, match="without kernels"):
        assert torch.equal(bound.race(*step)[0], expected)
    assert texts.tables.kernels == (texts.tables in dew_race._DRAWN) == right
    monkeypatch.setattr(dew_race, "draw_words", lambda *_, **__: (other, sound))
    assert torch.equal(bound.race(*step)[0], other if right else expected)  # compared once
