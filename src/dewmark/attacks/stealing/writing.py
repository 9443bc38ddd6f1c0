"""How a forger writes: batches through a host, kept on disk so that a stopped run goes on.

A run's rows are one JSONL file named by a hash of all that decides them. Finished batches are appended and
flushed; what a kill left of an unfinished one is cut off and written again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dewmark import config, storage
from dewmark.decoding import Decoding
from dewmark.hosts.base import Host, generation_hash
from dewmark.scheme import BoundScheme
from dewmark.workspace import Progress, silent

__all__ = ["Written", "decoding_of", "own_seeds", "write_texts"]

_OWN = 1 << 40


@dataclass(frozen=True, slots=True)
class Written:
    """One text and its token ids."""

    text: str
    ids: tuple[int, ...]


def decoding_of(tokens: int) -> Decoding:
    """Plain sampling of exactly so many tokens, without repeated 4-grams."""
    return Decoding(max_new_tokens=tokens, min_new_tokens=tokens, no_repeat_ngram=4)


def own_seeds(seed: int, number: int) -> range:
    """Seeds of an attacker's texts, far from the small ones that victims have: those would draw the same."""
    return range(_OWN + seed, _OWN + seed + number)


def write_texts(
    host: Host,
    scheme: BoundScheme | None,
    prompts: Sequence[str],
    *,
    seeds: Sequence[int],
    decoding: Decoding,
    batch_size: int,
    lengths: Sequence[int] | None = None,
    about: object = None,
    keep: Path | None = None,
    progress: Progress = silent,
) -> list[Written]:
    """Continue prompts; text i is cut after ``lengths[i]`` tokens.

    ``keep`` is the folder of the runs, ``about`` whatever decides the texts beside scheme, host and options.
    """
    name = config.config_hash(
        generation_hash(decoding, scheme, host.info), list(prompts), list(seeds), lengths, batch_size, about
    )
    path = None if keep is None else keep / f"{name}.jsonl"
    done, end = _finished(path, len(prompts), batch_size)
    tokenizer = host.info.tokenizer
    for start in range(len(done), len(prompts), batch_size):
        progress("writing with the stolen mark", start, len(prompts))
        batch = slice(start, start + batch_size)
        made = host.generate(
            prompts[batch],
            scheme=scheme,
            seeds=seeds[batch],
            batch_size=batch_size,
            decoding=decoding,
        )
        ids = [list(each.token_ids) for each in made]
        texts = [each.text for each in made]
        if lengths is not None:
            ids = [row[:length] for row, length in zip(ids, lengths[batch], strict=True)]
            texts = tokenizer.decode(ids)
        rows = [Written(text, tuple(row)) for text, row in zip(texts, ids, strict=True)]
        if path is not None:
            lines = "".join(json.dumps(dataclasses.asdict(row)) + "\n" for row in rows).encode()
            path.parent.mkdir(parents=True, exist_ok=True)
            storage.append_at(path, lines, end=end)
            end += len(lines)
        done += rows
    progress("writing with the stolen mark", len(prompts), len(prompts))
    return done


def _finished(path: Path | None, number: int, batch_size: int) -> tuple[list[Written], int]:
    """The rows of whole batches that an earlier run left, and where they end in the file."""
    if path is None or not path.exists():
        return [], 0
    *lines, _ = path.read_bytes().split(b"\n")
    whole = len(lines) if len(lines) == number else len(lines) // batch_size * batch_size
    rows = [json.loads(line) for line in lines[:whole]]
    return [Written(row["text"], tuple(row["ids"])) for row in rows], sum(
        len(line) + 1 for line in lines[:whole]
    )
