"""Writers take turns on their own texts; a random host's text can be replaced by a real one."""

from __future__ import annotations

import torch

from dewmark_lab.bench.writers import Writer, drawn_by, peer_marks, record, replayed

VOCAB, BATCH, STEPS = 50, 3, 6
PROMPT = torch.arange(BATCH * 4).view(BATCH, 4)


def forward(ids: torch.Tensor) -> torch.Tensor:
    """Logits that depend on the last token and the length."""
    rows = [torch.Generator().manual_seed(int(row[-1]) + 1000 * len(row)) for row in ids]
    return torch.stack([3 * torch.randn(VOCAB, generator=row) for row in rows])


def test_turns_continue_one_text() -> None:
    whole = Writer(forward, drawn_by(None, PROMPT), PROMPT, room=STEPS)
    turns = Writer(forward, drawn_by(None, PROMPT), PROMPT, room=STEPS)
    assert whole(STEPS) > 0
    for _ in range(3):
        turns(STEPS // 3)
    assert torch.equal(whole.ids, turns.ids)


def test_a_replay_shows_the_recorded_logits_and_writes_the_recorded_text() -> None:
    recorded = record(forward, PROMPT, steps=STEPS)
    seen = []

    def choose(ids: torch.Tensor, scores: torch.Tensor, step: int) -> torch.Tensor:
        seen.append((ids.clone(), scores.clone()))
        return torch.zeros(BATCH, dtype=torch.long)

    wide = replayed(lambda ids: ids, recorded, start=4, vocab_size=VOCAB + 7)
    writer = Writer(wide, choose, PROMPT, room=STEPS, forced=recorded.tokens)
    writer(STEPS)
    assert torch.equal(writer.ids[:, 4:], recorded.tokens)
    for ids, scores in seen:
        torch.testing.assert_close(scores[:, :VOCAB], forward(ids), rtol=0.01, atol=0.01)
        assert torch.isneginf(scores[:, VOCAB:]).all()


def test_peers_mark_what_they_draw_from() -> None:
    marks = peer_marks(VOCAB, torch.device("cpu"))
    assert {"transformers kgw", "transformers synthid"} <= set(marks)
    for start in marks.values():
        writer = Writer(forward, start(PROMPT), PROMPT, room=STEPS)
        writer(STEPS)
        assert 0 <= int(writer.ids.min()) <= int(writer.ids.max()) < VOCAB
