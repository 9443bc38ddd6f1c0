"""Words of a lexicon on the device: the same words, contexts and scores as detection sees."""

from __future__ import annotations

import pytest
import torch
from tests.fakes import tiny_lexicon

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.dew.scheme import DEW
from dewmark.dew.word_step import WordStates, WordTables
from dewmark.encoders.lexicon import load_lexicon
from dewmark.text.trie import build_trie
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

PROMPT = "the old bridge over the river"
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["words", "bytes"])
def host(request) -> FakeHost:
    return FakeHost(400, kind=request.param)


def bind(host: FakeHost, tmp_path, number: int = 0, **settings):
    key = Key(number.to_bytes(32, "big"))
    return DEW().with_settings(settings).bind(key, host.info, Workspace(cache=tmp_path))


def test_marking_and_detection_see_the_same_alignments(host, bag_encoder, tmp_path) -> None:
    """u of the last word of a text, as a candidate while it is written and as a unit when it is scored."""
    bound = bind(host, tmp_path)
    text = "the house on the hill over the water and the old road to the sea"
    ids = host.info.tokenizer.encode([text])[0].ids
    reading = bound.reader.read(bound.tokenize([text]), bound.tokenize([""]))
    (pairs,) = reading.texts
    session = bound.session(torch.zeros(1, 0, dtype=torch.long))
    aligned = session.read(torch.tensor([ids[:-1]])).align(
        torch.tensor([[ids[-1]]]), torch.from_numpy(bound.own.W)
    )
    last = pairs.positions[-1]
    assert last >= 0
    assert aligned.rows[0, 0] > 0  # with bytes the last token only ends the word
    unit, context = reading.token_rows[pairs.tokens[last]], reading.context_rows[pairs.windows[last]]
    assert float(aligned.u[0, 0]) == pytest.approx(float(unit @ bound.own.W @ context), abs=2e-3)


def test_a_word_inside_a_token_is_scored_as_that_word(tmp_path) -> None:
    """A token that holds a whole word and more, as tokens of Chinese do, is scored as the word."""
    lexicon = load_lexicon(str(tiny_lexicon()), workspace=Workspace(cache=tmp_path))
    pieces = [" the", " old", " road", " bridge", " bridge'", ""]
    trie = build_trie(lexicon.forms, pieces, special=frozenset({5}))
    assert trie.inner[4] == lexicon.rows(["bridge"])[0] > 0
    texts = WordStates(WordTables(trie, lexicon, device=CPU), 1, k=3)
    texts.push(torch.tensor([[0, 1, 2]]))
    W = torch.randn(lexicon.dim, lexicon.dim, generator=torch.Generator().manual_seed(1))
    aligned = texts.align(torch.tensor([[3, 4]]), W)
    assert bool(aligned.begins.all())
    assert float(aligned.u[0, 0]) == float(aligned.u[0, 1]) != 0.0


def test_a_word_that_was_written_carries_no_mark_again(bag_encoder, tmp_path) -> None:
    host = FakeHost(400)
    bound = bind(host, tmp_path)
    lexicon = load_lexicon(str(tiny_lexicon()), workspace=Workspace(cache=tmp_path))
    encode = host.info.tokenizer.encode
    once = next(f for f in reversed(lexicon.forms[:350]) if lexicon.limits[lexicon.rows([f])[0]] == 1)
    (token,) = encode([once])[0].ids
    start = torch.tensor([encode([PROMPT])[0].ids])
    session = bound.session(start[:, :0])
    W = torch.from_numpy(bound.own.W)
    fresh = session.read(start).align(torch.tensor([[token]]), W).u
    written = torch.cat((start, torch.tensor([[token, *encode(["water"])[0].ids]])), dim=1)
    again = session.read(written).align(torch.tensor([[token]]), W).u
    assert float(fresh) != 0.0
    assert float(again) == 0.0


def test_rows_of_an_engine_write_what_sessions_write(bag_encoder, tmp_path) -> None:
    host = FakeHost(400)
    bound = bind(host, tmp_path)
    decoding = Decoding(temperature=0.8, top_p=0.9)
    scores = torch.randn(12, 1, 400, generator=torch.Generator().manual_seed(1)) * 2.0
    prompt = list(host.info.tokenizer.encode([PROMPT])[0].ids)
    session = bound.session(torch.tensor([prompt]), seeds=[5])
    rows, written = bound.rows(CPU), []
    row = rows.open(prompt, written, seed=5, decoding=decoding)
    for step in range(12):
        ids = torch.tensor([prompt + written])
        chosen, _ = session.choose(ids, scores[step], decoding)
        marked = rows.mark([row], scores[step].clone())
        assert int(marked.argmax()) == int(chosen)
        written.append(int(chosen))


def test_an_engine_reuses_the_places_of_texts_that_ended(bag_encoder, tmp_path) -> None:
    """Twenty batches of twelve texts, more than there is room for at first, need the room of two batches."""
    rows = bind(FakeHost(400), tmp_path).rows(CPU)
    for _ in range(20):
        batch = [rows.open([5, 6], [], seed=i, decoding=Decoding()) for i in range(12)]
        rows.mark(batch, torch.zeros(12, 400))
        del batch
    assert len(rows._states) <= 32


def test_different_windows_have_different_hashes(bag_encoder, tmp_path) -> None:
    """All windows of 30 neighbouring rows, and random ones of the whole lexicon."""
    states = bind(FakeHost(400), tmp_path).session(torch.zeros(1, 0, dtype=torch.long)).texts
    near = torch.cartesian_prod(*[torch.arange(30)] * 3)
    far = torch.randint(200_000, (50_000, 3), generator=torch.Generator().manual_seed(0))
    for windows in (near, far):
        assert len(states._hashed(windows).unique()) == len(windows.unique(dim=0))
