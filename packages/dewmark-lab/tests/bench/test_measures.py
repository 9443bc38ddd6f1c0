"""What ``dewmark bench`` times on which models, and the numbers made of it; no test asserts a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dewmark.encoders import load_encoder
from dewmark.errors import UnknownNameError
from dewmark_lab.bench.measures import Writer, configuration, drawn_by, peer_marks, time_tasks

VOCAB, BATCH, STEPS = 50, 3, 6
PROMPT = torch.arange(BATCH * 4).view(BATCH, 4)


def test_ratios_are_taken_within_rounds_and_the_first_round_is_not_counted() -> None:
    # the machine is twice as slow in every second round: ratios do not see it
    times = {"base": [99.0, 1.0, 2.0, 1.0], "slow": [0.0, 1.5, 3.0, 1.5]}
    tasks = {name: values.__getitem__ for name, values in times.items()}
    base, slow = time_tasks("x", tasks, baseline="base", repeats=3)
    assert (base.ratio, slow.ratio) == (1.0, 1.5)
    assert (base.fastest, slow.median) == (1.0, 1.5)


def test_the_interval_of_a_median_ratio_covers_it_with_95_percent() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        times = np.exp(rng.normal(np.log(1.1), 0.2, size=41))
        tasks = {"base": lambda number: 1.0, "slow": times.__getitem__}
        low, high = time_tasks("x", tasks, baseline="base", repeats=40)[1].interval
        covered += low <= 1.1 <= high
    assert 0.92 < covered / 400 < 0.995
    assert time_tasks("x", tasks, baseline="base", repeats=5)[1].interval is None


def test_rows_are_those_of_the_recipes_with_changes() -> None:
    assert configuration("kgw:gamma=0.1,delta=3").to_dict()["gamma"] == 0.1
    assert configuration("dew-default").name == "dew"
    with pytest.raises(UnknownNameError, match="did you mean"):
        configuration("kgv")


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


def test_peers_mark_what_they_draw_from() -> None:
    marks = peer_marks(VOCAB, torch.device("cpu"))
    assert {"transformers kgw", "transformers synthid"} <= set(marks)
    for start in marks.values():
        writer = Writer(forward, start(PROMPT), PROMPT, room=STEPS)
        writer(STEPS)
        assert 0 <= int(writer.ids.min()) <= int(writer.ids.max()) < VOCAB


def test_vectors_depend_on_the_text_alone() -> None:
    encoder = load_encoder("random:48")
    rows = encoder.encode(["bridge", "river", "bridge", ""])
    assert rows.shape == (4, encoder.dim) == (4, 48)
    assert (rows[0] == rows[2]).all()
    assert (rows == load_encoder("random:48").encode(["bridge", "river", "bridge", ""])).all()
    many = encoder.encode([str(i) for i in range(500)])
    assert abs(many.mean()) < 5 / np.sqrt(many.size)  # standard normal
    assert abs(many.std() - 1.0) < 5 / np.sqrt(2 * many.size)


@pytest.mark.parametrize("name", ["random:", "random:x", "random:1"])
def test_other_names_are_rejected(name: str) -> None:
    with pytest.raises(UnknownNameError, match="random:768"):
        load_encoder(name, device="cpu")
