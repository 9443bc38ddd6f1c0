"""``dewmark retention``: how much of the mark a rewrite keeps, on texts that need not be marked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, say, write
from dewmark.errors import ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dewmark.cli.inputs import Entry
    from dewmark.scheme import BoundScheme
    from dewmark.stats.metrics import Interval

__all__ = ["retention"]

_PAIRS_AT_ONCE = 32

Pair = tuple[str, str]


def retention(
    original: Annotated[Path, typer.Option(metavar="A.jsonl", help="The texts before they were rewritten.")],
    rewritten: Annotated[
        Path, typer.Option(metavar="B.jsonl", help="Their rewrites, matched by id if both have ids.")
    ],
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Say what share of a mark's z-score paraphrase or translation keeps. Needs no key and no marked text."""
    from dewmark.cli.inputs import read_entries
    from dewmark.cli.loading import NONE, load_scheme
    from dewmark.core.keys import Key
    from dewmark.stats.retention import summarise

    if scheme == NONE:
        raise ConfigError("scheme none leaves no mark to keep: name a scheme")
    pairs = _pairs(read_entries(original), read_entries(rewritten), names=(original, rewritten))
    with Progress(quiet=quiet) as progress:
        # any key will do: only the covariance over keys is used
        bound = load_scheme(Key.generate(), host=host, scheme=scheme, settings=settings, progress=progress)
        kept, unrelated = _measure(bound, pairs, progress=progress)
    found = summarise(kept, unrelated)
    if json_:
        emit({"scheme": bound.scheme.name, "host": bound.host.name, **found.to_dict()})
    else:
        write(
            f"{found.pairs} pairs: a rewrite keeps {_words(found.kept)} of the z-score\n"
            f"unrelated texts share {_words(found.unrelated)}, which must be near 0\n"
        )
    if not found.sound:
        say(
            f"dewmark: warning: unrelated texts share {found.unrelated.value:.2f} of the z-score: so much of "
            "what is kept is a preference common to all texts, not the mark (whiten_contexts=true removes it)"
        )


def _pairs(originals: Sequence[Entry], rewritten: Sequence[Entry], *, names: tuple[Path, Path]) -> list[Pair]:
    """The texts of matching rows, by id where every row has one, else in order."""
    if len(originals) != len(rewritten):
        raise InputError(
            f"{names[0]} has {len(originals)} rows and {names[1]} {len(rewritten)}: each needs its rewrite"
        )
    if any(entry.id is None for entry in (*originals, *rewritten)):
        matched = zip(originals, rewritten, strict=True)
        return [(before.text, after.text) for before, after in matched]
    by_id = {entry.id: entry.text for entry in rewritten}
    if len(by_id) < len(rewritten) or len({entry.id for entry in originals}) < len(originals):
        raise InputError(f"an id occurs twice in {names[0]} or {names[1]}: make ids unique or leave them out")
    missing = [entry.id for entry in originals if entry.id not in by_id]
    if missing:
        raise InputError(f"{names[1]} has no row with id {missing[0]!r} of {names[0]}")
    return [(entry.text, by_id[entry.id]) for entry in originals]


def _measure(
    bound: BoundScheme, pairs: Sequence[Pair], *, progress: Progress
) -> tuple[list[float], list[float]]:
    """The retention of every pair that has something to score, and of as many unrelated pairs."""
    import numpy as np

    from dewmark.stats.retention import pair_retentions

    # neighbours in a file may be about the same thing, in a shuffled one they are not
    order = np.random.default_rng(0).permutation(len(pairs)).tolist()
    kept: list[float] = []
    unrelated: list[float] = []
    done = 0
    for part in np.array_split(order, max(1, len(order) // _PAIRS_AT_ONCE)):
        texts = bound.tokenize([text for i in part for text in pairs[i]])
        evidence = bound.evidence(texts, bound.tokenize([""] * len(texts)))
        both = [(a, b) for a, b in zip(evidence[::2], evidence[1::2], strict=True) if len(a) and len(b)]
        if len(both) > 1:
            own, other = pair_retentions([a for a, _ in both], [b for _, b in both])
            kept += own
            unrelated += other
        done += len(part)
        progress("comparing texts", done, len(pairs))
    return kept, unrelated


def _words(share: Interval) -> str:
    return f"{share.value:.3f} (95% interval {share.low:.3f} to {share.high:.3f})"
