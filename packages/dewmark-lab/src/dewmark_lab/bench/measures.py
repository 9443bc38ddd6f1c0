"""The measures of ``dewmark bench``.

- marks: writers with each mark take turns on real text, the default first, compared with no mark and with the
  marks that transformers and vLLM have themselves;
- detection: per text of a fixed length, compared with tokenizing it, which every detector has to do.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from dewmark.config import cache_dir, parse_settings
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.encoders.word_vectors import register_texts
from dewmark.hosts import host_info
from dewmark.hosts.base import Host
from dewmark.hosts.transformers.model import TransformersHost
from dewmark.prompts import openings
from dewmark.registry import SCHEMES, unknown_name
from dewmark.scheme import BoundScheme
from dewmark.workspace import Progress, Tokenizer, Workspace, silent
from dewmark_lab.bench.random_models import RANDOM
from dewmark_lab.bench.timing import Cost, Task, seconds, time_tasks
from dewmark_lab.bench.writers import Writer, drawn_by, eager, peer_marks

_COMPOSED = {"context_encoding": "composed", "whiten_contexts": True}

CONFIGURATIONS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "dew": ("dew", {}),
    "dew-bias": ("dew-paper", _COMPOSED),
    "dew-gumbel": ("dew-paper", {"sampler": "gumbel", "alpha": 0.25, **_COMPOSED}),
    "dew-window": ("dew-paper", {"whiten_contexts": True}),
    "kgw": ("kgw", {"prefix": 3, "gamma": 0.5, "delta": 2.0, "hashing": "left"}),
    "kgw-self": ("kgw", {"prefix": 4, "gamma": 0.5, "delta": 2.0, "hashing": "self"}),
    "unigram": ("unigram", {}),
    "sweet": ("sweet", {}),
    "ewd": ("ewd", {}),
    "morphmark": ("morphmark", {"form": "exponential", "k": 1.3, "p0": 0.15, "gamma": 0.5, "prefix": 1}),
    "exp": ("exp", {}),
    "synthid": ("synthid", {"depth": 30, "leaves": 2, "prefix": 3, "history": 1024}),
    "unbiased": ("unbiased", {"grid": 10, "prefix": 3, "repeats": "skip"}),
    "dipmark": ("dipmark", {"alpha": 0.45, "gamma": 0.5, "prefix": 3, "repeats": "keep"}),
    "semstamp": ("semstamp", {"dimensions": 3, "gamma": 0.25, "margin": 0.01, "tries": 100}),
    "ksemstamp": ("ksemstamp", {"gamma": 0.25, "margin": 0.035, "tries": 100}),
    "ts": ("ts", {}),
    "atw": ("atw", {}),
    "simkey": ("simkey", {}),
    "waterpool": ("waterpool", {}),
    "pasa": ("pasa", {}),
    "sir": ("sir", {"delta": 1.0, "chunk": 10}),
    "xsir": ("xsir", {"delta": 1.0, "chunk": 10}),
    "dew-paper": ("dew-paper", {}),
}


def configuration(name: str) -> tuple[str, dict[str, object]]:
    """Scheme and settings of a configuration; ``NAME:field=value,field=value`` changes some of them."""
    known, _, changes = name.partition(":")
    if known not in CONFIGURATIONS:
        raise unknown_name("configuration", known, CONFIGURATIONS)
    scheme, settings = CONFIGURATIONS[known]
    return scheme, {**settings, **parse_settings([part for part in changes.split(",") if part])}


def bind(name: str, host: Host, *, number: int = 0, cache: Path | None = None) -> BoundScheme:
    """A configuration with the ``number``-th key of the benchmarks; detection uses the loaded host."""
    scheme, settings = configuration(name)
    key = Key(hashlib.sha256(f"benchmark-{number}".encode()).digest())
    workspace = Workspace(cache=cache or cache_dir(), find_host=host_info, open_host=lambda other: host)
    bound: BoundScheme = SCHEMES[scheme]().with_settings(settings).bind(key, host.info, workspace)
    return bound


NONE, TOKENIZING = "none", "tokenizing"
"""The baselines of decoding and detection."""

_PROMPT = 20  # tokens before the first step

Schemes = Mapping[str, BoundScheme]


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The cost of one row (a scheme, a baseline, a peer's scheme) of one measure."""

    measure: str
    row: str
    cost: Cost

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"measure": self.measure, "row": self.row, **self.cost.to_dict()}


def bench_marks(
    host: TransformersHost,
    names: Sequence[str],
    *,
    batches: Sequence[int],
    turn: int,
    repeats: int,
    peers: bool = True,
    decoding: Decoding = Decoding(),
    progress: Progress = silent,
) -> Iterator[BenchResult]:
    """A step of writing with each mark, in turns of ``turn`` steps, at every batch size; compared with none.

    The first turn is not counted. Every mark continues its own text.
    """
    device = host.device
    forbidden = torch.from_numpy(~host.info.markable).to(device)
    with _bound(names, host, progress) as schemes:
        for batch in batches:
            texts = host.tokenizer.encode(prompts(batch))
            ids = torch.tensor([(list(text.ids) * _PROMPT)[:_PROMPT] for text in texts], device=device)
            choosers = {NONE: drawn_by(None, ids, decoding)}
            choosers |= {name: drawn_by(bound, ids, decoding) for name, bound in schemes.items()}
            if peers:
                theirs = peer_marks(host.info.vocab_size, device)
                choosers |= {name: start(ids) for name, start in theirs.items()}
            room = turn * (repeats + 1)
            tasks: dict[str, Task] = {
                name: functools.partial(
                    _take_turn, Writer(eager(host.writer, forbidden), choose, ids, room=room), turn
                )
                for name, choose in choosers.items()
            }
            yield from _timed(f"batch {batch}", tasks, dict.fromkeys(tasks, NONE), repeats, progress)


def _take_turn(writer: Writer, steps: int, _: int) -> float:
    return writer(steps)


def bench_detection(
    host: TransformersHost,
    names: Sequence[str],
    *,
    texts: int,
    tokens: int,
    repeats: int,
    progress: Progress = silent,
) -> Iterator[BenchResult]:
    """Detection per text, in one batch and one by one (an eighth as many texts), compared with tokenizing."""
    device = host.device
    with _bound(names, host, progress) as schemes:
        moved = _on_device(schemes, device)
        for batched, count in ((True, texts), (False, max(texts // 8, 1))):
            tasks = detection_tasks(
                host.tokenizer, moved, texts=count, tokens=tokens, batched=batched, device=device
            )
            how = f"a batch of {count}" if batched else "one by one"
            baselines = dict.fromkeys(tasks, TOKENIZING)
            yield from _timed(f"detection, {how}", tasks, baselines, repeats, progress)


def detection_tasks(
    tokenizer: Tokenizer,
    schemes: Schemes,
    *,
    texts: int,
    tokens: int,
    batched: bool,
    device: torch.device,
) -> dict[str, Task]:
    """Seconds per text, in one batch or one by one."""
    pool = functools.lru_cache(maxsize=1)(
        lambda number: random_texts(tokenizer, texts, tokens=tokens, seed=2 * number + batched)
    )

    def run(detect: Callable[[Sequence[str]], object], number: int) -> float:
        return seconds(functools.partial(detect, pool(number)), device) / texts

    def one_by_one(detect: Callable[[str], object]) -> Task:
        return functools.partial(run, lambda many: [detect(text) for text in many])

    if batched:
        return {
            TOKENIZING: functools.partial(run, lambda many: tokenizer.encode(list(many))),
            **{name: functools.partial(run, bound.detect_batch) for name, bound in schemes.items()},
        }
    return {
        TOKENIZING: one_by_one(lambda text: tokenizer.encode([text])),
        **{name: one_by_one(bound.detect) for name, bound in schemes.items()},
    }


@contextmanager
def _bound(
    names: Sequence[str], host: TransformersHost, progress: Progress
) -> Iterator[dict[str, BoundScheme]]:
    """The configurations bound to this host; tables of a random host are not kept in the cache."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) if host.name.startswith(RANDOM) else None
        schemes: dict[str, BoundScheme] = {}
        for name in names:
            progress("binding schemes", len(schemes), len(names))
            schemes[name] = bind(name, host, cache=cache)
        progress("binding schemes", len(names), len(names))
        yield schemes


@runtime_checkable
class _Movable(Protocol):
    """A bound scheme that can detect on a device."""

    def on(self, device: str) -> BoundScheme:
        """The same scheme, detecting on ``device``."""


def _on_device(schemes: Schemes, device: torch.device) -> Schemes:
    return {
        name: bound.on(str(device)) if isinstance(bound, _Movable) else bound
        for name, bound in schemes.items()
    }


def _timed(
    measure: str, tasks: Mapping[str, Task], baselines: Mapping[str, str], repeats: int, progress: Progress
) -> Iterator[BenchResult]:
    if not tasks:
        return
    costs = time_tasks(measure, tasks, repeats=repeats, baselines=baselines, progress=progress)
    for row, cost in costs.items():
        yield BenchResult(measure, row, cost)


# Prompts to continue and texts to score. Texts must not repeat, or caches would make the second one cheaper:
# they are random walks over adjacent words of the package's English texts, with ever new windows.


def prompts(count: int, *, first: int = 0) -> list[str]:
    """``count`` of the package's openings from the ``first`` on, repeated if there are too few."""
    return [row["text"] for row in itertools.islice(itertools.cycle(openings()), first, first + count)]


def random_texts(tokenizer: Tokenizer, count: int, *, tokens: int, seed: int) -> list[str]:
    """``count`` texts of ``tokens`` tokens, give or take two; every seed has its own."""
    texts = tokenizer.encode(random_walks(count, words=tokens, seed=seed))  # a word is at least one token
    return tokenizer.decode([text.ids[:tokens] for text in texts])


def random_walks(count: int, *, words: int, seed: int) -> list[str]:
    """``count`` texts of ``words`` words each; every seed has its own."""
    random = np.random.default_rng(seed)
    return [_random_walk(random, words) for _ in range(count)]


def _random_walk(random: np.random.Generator, length: int) -> str:
    words, successors = _word_pairs()
    at = int(random.integers(len(words)))
    walk = []
    for share in random.random(length):
        walk.append(words[at])
        following = successors[words[at]]
        at = following[int(share * len(following))]
    return " ".join(walk)


@functools.cache
def _word_pairs() -> tuple[list[str], dict[str, list[int]]]:
    """All words in order, and for each distinct word the positions that follow it."""
    words = " ".join(register_texts()).split()
    successors: dict[str, list[int]] = {}
    for position, word in enumerate(words):
        successors.setdefault(word, []).append((position + 1) % len(words))
    return words, successors
