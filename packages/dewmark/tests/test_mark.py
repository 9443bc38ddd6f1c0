"""Rows that come, go and move keep their marks: each is marked as if it were alone from its first token."""

from __future__ import annotations

import random

import pytest
import torch
from tests.fakes import COMPOSED

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, VocabularyError
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

CPU = torch.device("cpu")
VOCAB = 400
SCHEME_SETTINGS = {
    "dew": ("dew", {}),
    "dew tokens": ("dew-paper", {**COMPOSED, "m": 16}),
    "dew tokens, windows": ("dew-paper", {}),
    "kgw": ("kgw", {}),
    "synthid": ("synthid", {}),
    "simkey": ("simkey", {}),
    "exp": ("exp", {}),
    "sir": ("sir", {}),
    **{
        name: (name, {}) for name in ("atw", "dipmark", "ewd", "morphmark", "pasa", "sweet", "ts", "unbiased")
    },
}


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(VOCAB)


def bound_for(name: str, host: FakeHost, tmp_path):
    scheme, settings = SCHEME_SETTINGS[name]
    return (
        SCHEMES[scheme]()
        .with_settings(settings)
        .bind(Key(bytes(range(32))), host.info, Workspace(cache=tmp_path))
    )


def logits_for(ids: list[int]) -> torch.Tensor:
    """A stand-in for a host: logits (1, vocab) that depend on the last two ids."""
    seed = ids[-1] * 1000 + (ids[-2] if len(ids) > 1 else 0)
    return torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2.0


class Text:
    """One request of the plain model: it is written by one session of its own, token by token."""

    def __init__(self, bound, number: int, length: int) -> None:
        chance = random.Random(number)
        self.prompt = [chance.randrange(4, VOCAB) for _ in range(chance.randrange(1, 12))]
        self.seed = number
        self.decoding = Decoding(
            temperature=chance.choice([0.7, 1.0, 1.2]), top_k=40, top_p=chance.choice([0.9, 1.0])
        )
        self.ids: list[int] = []
        self.marked: list[torch.Tensor] = []
        prompt = torch.tensor([self.prompt])
        mark = bound.processor(prompt, torch.ones_like(prompt), seeds=[number], decoding=self.decoding)
        for _ in range(length):
            ids = [*self.prompt, *self.ids]
            self.marked.append(mark(torch.tensor([ids]), logits_for(ids)))
            self.ids.append(int(self.marked[-1].argmax()))

    def open(self, rows, step: int):
        """The row, and the list that grows under it."""
        written = self.ids[:step]
        return rows.open(self.prompt, written, seed=self.seed, decoding=self.decoding), written


@pytest.mark.parametrize("name", SCHEME_SETTINGS)
def test_rows_in_a_changing_batch_are_marked_as_if_each_were_alone(host, bag_encoder, tmp_path, name) -> None:
    """Random arrivals, departures and orders; some rows leave half-way and are opened again (preemption).

    The default does not draw the same then: it has forgotten the noise of its last steps.
    """
    bound = bound_for(name, host, tmp_path)
    rows = bound.rows(CPU)
    texts = [Text(bound, number, 24) for number in range(6)]
    chance = random.Random(name)
    waiting, batch, done = list(texts), {}, 0
    resumed = 0
    progress = dict.fromkeys(texts, 0)
    while done < len(texts):
        if waiting and (not batch or chance.random() < 0.5):
            text = waiting.pop(chance.randrange(len(waiting)))
            batch[text] = text.open(rows, progress[text])
            resumed += progress[text] > 0
        order = chance.sample(list(batch), len(batch))
        scores = torch.cat([logits_for([*text.prompt, *text.ids[: progress[text]]]) for text in order])
        if chance.random() < 0.1:
            rows.mark([batch[text][0] for text in order], scores)  # a step whose outcome is thrown away
        marked = rows.mark([batch[text][0] for text in order], scores)
        for i, text in enumerate(order):
            torch.testing.assert_close(marked[i : i + 1].softmax(-1), text.marked[progress[text]].softmax(-1))
            batch[text][1].append(text.ids[progress[text]])
            progress[text] += 1
            if progress[text] == len(text.ids):
                del batch[text]
                done += 1
            elif name != "dew" and chance.random() < 0.06:
                del batch[text]
                waiting.append(text)
    assert resumed > 2 or name == "dew"


def test_an_engine_that_takes_tokens_back_is_followed(host, bag_encoder, tmp_path) -> None:
    bound = bound_for("exp", host, tmp_path)
    for rows in (bound.rows(CPU), BoundScheme.rows(bound, CPU)):
        text = Text(bound, 3, 12)
        row, written = text.open(rows, 10)
        for step in (10, 4):
            del written[step:]
            scores = logits_for([*text.prompt, *written])
            assert torch.equal(rows.mark([row], scores).argmax(), text.marked[step].argmax())


def test_the_seed_decides_what_is_drawn(host, bag_encoder, tmp_path) -> None:
    bound = bound_for("dew", host, tmp_path)
    for rows in (bound.rows(CPU), BoundScheme.rows(bound, CPU)):
        scores = torch.zeros(3, VOCAB)
        opened = [rows.open([5, 6, 7], [], seed=seed, decoding=Decoding()) for seed in (1, 1, 2)]
        first, again, other = rows.mark(opened, scores).argmax(dim=1).tolist()
        assert first == again != other


def test_logits_of_another_width_are_refused(host, bag_encoder, tmp_path) -> None:
    rows = bound_for("dew tokens", host, tmp_path).rows(CPU)
    with pytest.raises(VocabularyError, match="401 logits"):
        rows.mark([rows.open([5], [], seed=0, decoding=Decoding())], torch.zeros(1, 401))


def test_a_row_without_any_usable_logit_goes_back_as_it_came(host, bag_encoder, tmp_path) -> None:
    for name in ("dew", "exp"):
        rows = bound_for(name, host, tmp_path).rows(CPU)
        opened = [rows.open([5, 6, 7], [], seed=seed, decoding=Decoding()) for seed in (1, 2)]
        scores = torch.zeros(2, VOCAB)
        scores[1] = -torch.inf
        marked = rows.mark(opened, scores)
        assert torch.isfinite(marked[0]).sum() == 1
        assert torch.equal(marked[1], scores[1])


def test_temperature_must_be_positive(host, tmp_path) -> None:
    rows = bound_for("kgw", host, tmp_path).rows(CPU)
    with pytest.raises(ConfigError, match="temperature 0 always takes the likeliest"):
        rows.open([5], [], seed=0, decoding=Decoding(temperature=0.0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", ["dew", "dew tokens", "kgw"])
def test_a_gpu_marks_rows_as_a_cpu_does(host, bag_encoder, tmp_path, name) -> None:
    bound = bound_for(name, host, tmp_path)
    scores = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(0)) * 2.0
    marked = []
    for device in ("cpu", "cuda"):
        rows = bound.rows(torch.device(device))
        opened = [
            rows.open([5 + i, 6, 7], [8, 9 + i], seed=i, decoding=Decoding(top_p=(0.9, 1.0)[i % 2]))
            for i in range(6)
        ]
        marked.append(rows.mark(opened, scores.to(device)).softmax(-1).cpu())
    torch.testing.assert_close(marked[0], marked[1])
