"""Train the reader that comes with the package (`dewmark.dew.packaged_reader`).

The texts may be anybody's; a language model says what word it expected in each place of them, and the network
learns the mean vector of that. Against the words that were written it only overfits: a model's expectation
says about a place what thousands of texts would.

    examples: rows of the lexicon (L,), and the model's μ (L, d) where it has an expectation
    loss:     Σ_i ‖μ_i − network(rows before i)‖²

Hosts write texts as answers to requests: each line of ``data/reader_requests.txt`` has a language and a form
of request, which is asked about words of the package's own ordinary texts. None of these is among the
requests that experiments measure on.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import nn

from dewmark.arrays import F16, I32, Mask
from dewmark.dew.packaged_reader import STEPS
from dewmark.encoders.lexicon import Lexicon
from dewmark.storage import save_bundle
from dewmark.text.words import words
from dewmark.workspace import Expectations, Progress, silent
from dewmark_audit.texts import package_file


@dataclass(frozen=True)
class Example:
    """A text: rows of the lexicon (L,), μ (L, d), and where the model had an expectation (L,)."""

    rows: I32
    means: F16
    known: Mask


_READ_AT_ONCE = 64


def examples(
    texts: Sequence[str], reader: Expectations, lexicon: Lexicon, *, progress: Progress = silent
) -> list[Example]:
    """What a language model expected in each place of texts, as mean vectors."""
    found: list[Example] = []
    for start in range(0, len(texts), _READ_AT_ONCE):
        progress(f"{reader.name} is reading", start, len(texts))
        found += _examples(texts[start : start + _READ_AT_ONCE], reader, lexicon)
    progress(f"{reader.name} is reading", len(texts), len(texts))
    return found


def _examples(texts: Sequence[str], reader: Expectations, lexicon: Lexicon) -> list[Example]:
    found = []
    for text, expected in zip(texts, reader.read(texts, [""] * len(texts)), strict=True):
        cut = words(text)
        starts = np.array([word.start for word in cut], dtype=np.int64)
        shape = (len(expected.starts), len(expected.forms))
        likely = csr_matrix((expected.probabilities, expected.index, expected.bounds), shape=shape)
        sums = np.asarray(likely @ lexicon.tokens(lexicon.rows(expected.forms)))
        at = np.searchsorted(expected.starts, starts)
        known = np.append(expected.starts, -1)[at] == starts
        means = np.zeros((len(cut), lexicon.dim), dtype=np.float16)
        means[known] = sums[at[known]]
        rows = lexicon.listed_rows([word.form for word in cut]).astype(np.int32)
        found.append(Example(rows, means, known))
    return found


class ReaderNetwork(nn.Module):
    """The network of `dewmark.dew.packaged_reader` for batches; ``places`` (R + 1,) are rows in its table."""

    def __init__(self, units: torch.Tensor, places: torch.Tensor, *, width: int, inner: int) -> None:
        super().__init__()
        d = units.shape[1]
        self.units = nn.Buffer(units)
        self.places = nn.Buffer(places)
        self.table = nn.Embedding(int(places.max()) + 1, width)  # row 0: all other words
        nn.init.normal_(self.table.weight, std=0.02)
        self.lexicon = nn.Parameter(torch.randn(d, width) / math.sqrt(d) * 2.0)
        self.start = nn.Parameter(torch.zeros(width))
        self.topic = nn.Parameter(torch.zeros(width, width))
        self.result, self.offset = nn.Parameter(torch.zeros(width, d)), nn.Parameter(torch.zeros(d))
        for i in range(len(STEPS)):
            shapes = {"own": (width, inner), "earlier": (width, inner), "out": (inner, width)}
            for name, shape in shapes.items():
                scale = 0.5 / math.sqrt(shape[0])
                setattr(self, f"{name}{i}", nn.Parameter(torch.randn(shape) * scale))
            setattr(self, f"bias{i}", nn.Parameter(torch.zeros(inner)))

    def forward(self, rows: torch.Tensor, *, dropped: float = 0.0) -> torch.Tensor:
        """μ (B, L, d) at each word of rows (B, L); ``dropped`` is the share of table entries left out."""
        extra = self.table(self.places[rows])
        if dropped:
            extra = extra * (torch.rand(rows.shape, device=rows.device) >= dropped).unsqueeze(2)
        x = self.units[rows].float() @ self.lexicon + extra
        before = torch.cat((self.start.expand(len(x), 1, -1), x[:, :-1]), dim=1)
        counts = torch.arange(1, rows.shape[1] + 1, device=rows.device)[:, None]
        h = before + (before.cumsum(dim=1) / counts) @ self.topic
        for i, step in enumerate(STEPS):
            n = _scaled(h)
            earlier = nn.functional.pad(n[:, :-step], (0, 0, step, 0))
            inner = n @ getattr(self, f"own{i}") + earlier @ getattr(self, f"earlier{i}")
            inner = inner + getattr(self, f"bias{i}")
            h = h + (inner * torch.sigmoid(1.702 * inner)) @ getattr(self, f"out{i}")
        return _scaled(h) @ self.result + self.offset


def _scaled(h: torch.Tensor) -> torch.Tensor:
    return h / (h.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()


@dataclass(frozen=True)
class Training:
    """How the network is trained."""

    width: int = 160
    inner: int = 256
    table: int = 24_000
    epochs: int = 12
    batch: int = 128
    rate: float = 3e-3
    decay: float = 0.05
    dropped: float = 0.1
    seed: int = 0
    longest: int = 256


def _batches(
    data: Sequence[Example], order: np.ndarray, options: Training
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Rows (B, L), means (B, L, d) and what is known (B, L), padded."""
    for start in range(0, len(order), options.batch):
        some = [data[i] for i in order[start : start + options.batch]]
        length = min(max(len(each.rows) for each in some), options.longest)
        rows = np.zeros((len(some), length), dtype=np.int64)
        means = np.zeros((len(some), length, some[0].means.shape[1]), dtype=np.float16)
        known = np.zeros((len(some), length), dtype=bool)
        for i, each in enumerate(some):
            n = min(len(each.rows), length)
            rows[i, :n], means[i, :n], known[i, :n] = each.rows[:n], each.means[:n], each.known[:n]
        yield torch.from_numpy(rows), torch.from_numpy(means), torch.from_numpy(known)


def train(
    data: Sequence[Example],
    held_out: Sequence[Example],
    lexicon: Lexicon,
    out: Path,
    *,
    options: Training | None = None,
    device: str = "cpu",
    meta: dict[str, Any] | None = None,
    progress: Progress = silent,
) -> dict[str, float]:
    """Train the network, write it to a folder, and say what share of the variance of t it explains."""
    options = options or Training()
    torch.manual_seed(options.seed)
    units = torch.from_numpy(lexicon.tokens(np.arange(len(lexicon) + 1)).astype(np.float16))
    frequent = np.argsort(-lexicon.frequency[1:], kind="stable")[: options.table] + 1
    places = torch.zeros(len(lexicon) + 1, dtype=torch.long)
    places[torch.from_numpy(np.sort(frequent))] = torch.arange(1, len(frequent) + 1)
    network = ReaderNetwork(units, places, width=options.width, inner=options.inner).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=options.rate, weight_decay=options.decay)
    steps = options.epochs * -(-len(data) // options.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, total_steps=steps, pct_start=0.1)
    rng = np.random.default_rng(options.seed)
    for epoch in range(options.epochs):
        progress("training the reader", epoch, options.epochs)
        for rows, means, known in _batches(data, rng.permutation(len(data)), options):
            rows, means, known = rows.to(device), means.to(device).float(), known.to(device)
            loss = (network(rows, dropped=options.dropped) - means).square().sum(dim=2)[known].mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    progress("training the reader", options.epochs, options.epochs)
    explained = share_explained(network, held_out, options, device)
    save(network, np.sort(frequent), lexicon, out, meta={**(meta or {}), **explained})
    return explained


@torch.inference_mode()
def share_explained(
    network: ReaderNetwork, data: Sequence[Example], options: Training, device: str
) -> dict[str, float]:
    """The shares of the variance of words t that the network and the language model explain."""
    sums = np.zeros(4)
    total = np.zeros(network.units.shape[1])
    for rows, means, known in _batches(data, np.arange(len(data)), options):
        rows, means, known = rows.to(device), means.to(device).float(), known.to(device)
        known &= rows > 0
        t, mine, theirs = network.units[rows].float()[known], network(rows)[known], means[known]
        total += t.sum(dim=0).double().cpu().numpy()
        parts = (t, t - mine, t - theirs)
        sums += [*(float(each.square().sum()) for each in parts), len(t)]
    whole = sums[0] - float(total @ total) / sums[3]
    return {"network": float(1.0 - sums[1] / whole), "model": float(1.0 - sums[2] / whole)}


def save(
    network: ReaderNetwork, rows: np.ndarray, lexicon: Lexicon, out: Path, *, meta: dict[str, Any]
) -> None:
    """Write the network: the table in 8 bits, the rest in 16."""
    arrays = {
        name: tensor.detach().cpu().numpy().astype(np.float16)
        for name, tensor in network.named_parameters()
        if not name.startswith("table")
    }
    arrays["unlisted"], *rows_of_table = network.table.weight.detach().cpu().numpy()
    table = np.stack(rows_of_table)
    scales = np.maximum(np.abs(table).max(axis=0), 1e-6) / 127.0
    arrays |= {"table": np.round(table / scales).astype(np.int8), "scales": scales.astype(np.float32)}
    arrays["rows"] = rows.astype(np.int32)
    save_bundle(out, meta={**meta, "lexicon": lexicon.identity}, arrays=arrays)


_SHORTEST = {"zh": 2, "ja": 2, "ko": 2, "ar": 4}  # letters of a topic; 6 in other languages


@functools.cache
def request_forms() -> dict[str, list[str]]:
    """The forms of request in each language."""
    file = resources.files("dewmark_lab") / "data" / "reader_requests.txt"
    found: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        language, form = line.split(" ", 1)
        found.setdefault(language, []).append(form)
    return found


def reader_requests(language: str) -> list[str]:
    """All requests in a language, mixed but always in the same order."""
    files = [package_file(f"ordinary/{language}.txt")]
    if language == "en":
        files += sorted(package_file("registers").iterdir(), key=lambda file: file.name)
    text = " ".join(file.read_text(encoding="utf-8") for file in files)
    shortest = _SHORTEST.get(language, 6)
    found = (text[word.start : word.end] for word in words(text))
    topics = dict.fromkeys(word for word in found if len(word) >= shortest and word.isalpha())
    every = [form.format(topic) for form, topic in itertools.product(request_forms()[language], topics)]
    return [every[i] for i in np.random.default_rng(0).permutation(len(every))]
