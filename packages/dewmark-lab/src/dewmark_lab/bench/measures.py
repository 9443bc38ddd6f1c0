"""What a step of writing costs with each mark: writers take turns on real text, in rounds.

Marks are compared with no mark and with the marks that transformers and vLLM have themselves. Every round
writes new tokens; the first one builds tables, and is not counted. A busy machine disturbs all writers of a
round alike, so ratios are taken within rounds.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dewmark import mark
from dewmark.config import cache_dir, parse_settings
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.hosts import host_info
from dewmark.hosts.transformers.decoding_loop import CachedForward
from dewmark.hosts.transformers.model import TransformersHost
from dewmark.scheme import BoundScheme, Scheme
from dewmark.workspace import Progress, Workspace, silent
from dewmark_audit.texts import openings
from dewmark_lab.bench.random_models import RANDOM
from dewmark_lab.evaluation.runtime import now_on
from dewmark_lab.experiments.recipe import catalogue_entry

NONE = "none"  # the baseline

_PROMPT = 20  # tokens before the first step
_MIN_ROUNDS = 6  # for a 95% interval of a median

Task = Callable[[int], float]
"""Does round i of a task and returns its seconds, per unit of what the measure counts."""

Forward = Callable[[torch.Tensor], torch.Tensor]
"""Logits (batch, vocab) of the token after ids (batch, length)."""

Chooses = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Draws the next ids (batch,) after ids (batch, length) from logits (batch, vocab)."""


# Timing in turns


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a row (a scheme, a baseline, a peer) of a measure, and the median ratio to its baseline.

    ``quartiles`` are of the rounds; ``interval`` is the 95% interval of the median ratio, None with fewer
    than 6 rounds.
    """

    measure: str
    row: str
    fastest: float
    median: float
    quartiles: tuple[float, float]
    ratio: float
    interval: tuple[float, float] | None
    rounds: int

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values; times in milliseconds."""
        return {
            "measure": self.measure,
            "row": self.row,
            "ms_min": round(1000.0 * self.fastest, 4),
            "ms_median": round(1000.0 * self.median, 4),
            "ms_quartiles": [round(1000.0 * value, 4) for value in self.quartiles],
            "ratio": round(self.ratio, 4),
            "ratio_interval": None if self.interval is None else [round(end, 4) for end in self.interval],
            "rounds": self.rounds,
        }


def time_tasks(
    measure: str, tasks: Mapping[str, Task], *, baseline: str, repeats: int, progress: Progress = silent
) -> list[Cost]:
    """Time all tasks in turns, round after round, and compare them with the ``baseline``."""
    names = list(tasks)
    rounds: list[dict[str, float]] = []
    total = (repeats + 1) * len(names)
    for number in range(repeats + 1):
        turn = number % len(names)  # no task is always first
        taken = {}
        for done, name in enumerate(names[turn:] + names[:turn]):
            progress(measure, number * len(names) + done, total)
            taken[name] = tasks[name](number)
        rounds.append(taken)
    progress(measure, total, total)
    return [_cost(measure, name, rounds[1:], baseline) for name in names]


def _cost(measure: str, name: str, rounds: Sequence[Mapping[str, float]], baseline: str) -> Cost:
    times = [taken[name] for taken in rounds]
    ratios = sorted(taken[name] / taken[baseline] for taken in rounds)
    quarters = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    return Cost(
        measure,
        name,
        fastest=min(times),
        median=statistics.median(times),
        quartiles=(quarters[0], quarters[2]),
        ratio=statistics.median(ratios),
        interval=_median_interval(ratios),
        rounds=len(times),
    )


def _median_interval(ordered: Sequence[float]) -> tuple[float, float] | None:
    """The 95% interval of the median: the number of values below it is Binomial(n, 1/2), so 0.98 √n ranks."""
    n = len(ordered)
    if n < _MIN_ROUNDS:
        return None
    reach = 0.98 * math.sqrt(n)
    return ordered[max(math.floor(n / 2 - reach), 0)], ordered[min(math.ceil(n / 2 + reach), n - 1)]


# Schemes


def configuration(name: str) -> Scheme:
    """A row of the recipes' catalogue; ``NAME:field=value,field=value`` changes some of its settings."""
    label, _, changes = name.partition(":")
    scheme = catalogue_entry(label).build()
    given: dict[str, object] = {**parse_settings([part for part in changes.split(",") if part])}
    return scheme.with_settings(given)


@contextmanager
def _bound(
    names: Sequence[str], host: TransformersHost, progress: Progress
) -> Iterator[dict[str, BoundScheme]]:
    """The configurations bound to this host; tables of a random host are not kept in the cache."""
    key = Key(hashlib.sha256(b"benchmark-0").digest())
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) if host.name.startswith(RANDOM) else cache_dir()
        workspace = Workspace(cache=cache, find_host=host_info, open_host=lambda other: host)
        schemes: dict[str, BoundScheme] = {}
        for name in names:
            schemes[name] = configuration(name).bind(key, host.info, workspace)
            progress("binding schemes", len(schemes), len(names))
        yield schemes


# Marks


def bench_marks(
    host: TransformersHost,
    names: Sequence[str],
    *,
    batches: Sequence[int],
    turn: int,
    repeats: int,
    peers: bool = True,
    progress: Progress = silent,
) -> Iterator[Cost]:
    """A step of writing with each mark, in turns of ``turn`` steps, at every batch size; compared with none.

    The first turn is not counted. Every mark continues its own text, so no prompt is timed.
    """
    device = host.device
    forbidden = torch.from_numpy(~host.info.markable).to(device)
    with _bound(names, host, progress) as schemes:
        for batch in batches:
            texts = host.tokenizer.encode(prompts(batch))
            ids = torch.tensor([(list(text.ids) * _PROMPT)[:_PROMPT] for text in texts], device=device)
            choosers = {NONE: drawn_by(None, ids)}
            choosers |= {name: drawn_by(bound, ids) for name, bound in schemes.items()}
            if peers:
                theirs = peer_marks(host.info.vocab_size, device)
                choosers |= {name: start(ids) for name, start in theirs.items()}
            room = turn * (repeats + 1)
            tasks: dict[str, Task] = {}
            for name, choose in choosers.items():
                writer = Writer(eager(host, forbidden), choose, ids, room=room)
                tasks[name] = functools.partial(lambda writer, _: writer(turn), writer)
            yield from time_tasks(f"batch {batch}", tasks, baseline=NONE, repeats=repeats, progress=progress)


class Writer:
    """One batch of texts that grows by ``choose``; ``prompt`` is (batch, length), without padding."""

    def __init__(self, forward: Forward, choose: Chooses, prompt: torch.Tensor, *, room: int) -> None:
        self._forward, self._choose = forward, choose
        self._start = self._length = prompt.shape[1]
        self.ids = torch.zeros((len(prompt), self._start + room), dtype=torch.long, device=prompt.device)
        self.ids[:, : self._start] = prompt

    def __call__(self, steps: int) -> float:
        """Take a number of steps; returns the seconds of one."""
        started = now_on(self.ids.device)
        self._write(steps)
        return (now_on(self.ids.device) - started) / steps

    @torch.inference_mode()
    def _write(self, steps: int) -> None:
        for _ in range(steps):
            ids = self.ids[:, : self._length]
            self.ids[:, self._length] = self._choose(ids, self._forward(ids))
            self._length += 1


def eager(host: TransformersHost, forbidden: torch.Tensor) -> Forward:
    """The host's forward pass with a KV cache; ``forbidden`` (vocab,) ids are never written."""
    forward = CachedForward(host.writer, None)

    def logits(ids: torch.Tensor) -> torch.Tensor:
        return forward(ids).to(torch.float32, copy=True).masked_fill_(forbidden, -math.inf)

    return logits


def drawn_by(scheme: BoundScheme | None, prompt: torch.Tensor) -> Chooses:
    """The token that a scheme draws, as this library's own decoding loop does; None: without a mark."""
    seeds = range(len(prompt))
    writer = mark.Writer(None, prompt, seeds=seeds)
    if scheme is not None:
        writer = scheme.writer(prompt, torch.ones_like(prompt), seeds=seeds)
    return lambda ids, scores: writer.draw(ids, scores, Decoding())[0]


def peer_marks(vocab_size: int, device: torch.device) -> dict[str, Callable[[torch.Tensor], Chooses]]:
    """For each mark of transformers and vLLM at hand, what starts marking prompts (batch, length)."""
    from transformers.generation.logits_process import (
        SynthIDTextWatermarkLogitsProcessor,
        WatermarkLogitsProcessor,
    )

    def processed(processor: Callable[[], Any], prompt: torch.Tensor) -> Chooses:
        process, plain = processor(), drawn_by(None, prompt)
        return lambda ids, scores: plain(ids, process(ids, scores))

    keys = torch.randint(1 << 16, (30,), generator=torch.Generator().manual_seed(0)).tolist()
    kgw = functools.partial(WatermarkLogitsProcessor, vocab_size, device)
    synthid = functools.partial(SynthIDTextWatermarkLogitsProcessor, 5, keys, 1 << 16, 0, 1024, device)
    found: dict[str, Callable[[torch.Tensor], Chooses]] = {
        "transformers kgw": functools.partial(processed, kgw),
        "transformers synthid": functools.partial(processed, synthid),
    }
    if importlib.util.find_spec("vllm") is not None:
        gumbel: Any = importlib.import_module("vllm.v1.watermarking.gumbel")
        theirs = gumbel.GumbelWatermarker(1234567, 4)
        found["vllm gumbel"] = lambda _: lambda ids, scores: theirs.sample(scores, ids[:, -4:]).token_ids
    return found


def prompts(count: int) -> list[str]:
    """The first ``count`` of the package's openings, repeated if there are too few."""
    return [row["text"] for row in itertools.islice(itertools.cycle(openings()), count)]
