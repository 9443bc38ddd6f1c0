"""``dewmark power``: how long a marked text must be to be found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.arrays import F64
from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, results, say, write
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dewmark.scheme import BoundScheme
    from dewmark.stats.power import Power, Row
    from dewmark.types import Generation
    from dewmark.watermark import Watermark
    from dewmark.workspace import Tokenized

__all__ = ["power"]

_CURVE_POINTS = 120

Sample = list[tuple[str, str | None]]  # marked texts, each with the prompt that it continues


def power(
    length: Annotated[
        str, typer.Option(metavar="N,N,…", help="Lengths in tokens, separated by commas.")
    ] = "50,100,200,400",
    fpr: Annotated[float, typer.Option(help="Share of unmarked texts that may be called marked.")] = 0.01,
    key: options.OptionalKeyFile = None,
    texts: Annotated[
        Path | None,
        typer.Option(metavar="MARKED.jsonl", help="Texts marked with --key; else a sample is written."),
    ] = None,
    number: Annotated[int, typer.Option(min=4, help="How many texts to write for the sample.")] = 16,
    tokens: Annotated[
        int, typer.Option(min=25, help="The most tokens to write per text; beyond, the model extrapolates.")
    ] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample.")] = 0,
    temperature: Annotated[float, typer.Option(help="Sampling temperature of the sample.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus of the sample.")] = 1.0,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    batch_size: options.BatchSize = 8,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write power.json and power.png here.")
    ] = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Say what share of marked texts is found at each length, for this host and these settings."""
    from dewmark.cli.inputs import openings, read_entries
    from dewmark.cli.loading import NONE, load_key, load_watermark
    from dewmark.core.keys import Key
    from dewmark.stats.power import measure_power

    lengths = _lengths(length)
    if not 0.0 < fpr < 1.0:
        raise ConfigError(f"--fpr must lie in (0, 1), got {fpr:g}")
    if scheme == NONE:
        raise ConfigError("scheme none leaves no mark to find: name a scheme")
    given = read_entries(texts) if texts is not None else []
    prompts = openings(number, option="--number") if texts is None else []
    secret = load_key(key) if key is not None or texts is not None else Key.generate()
    with Progress(quiet=quiet) as progress:
        watermark = load_watermark(
            secret,
            host=host,
            scheme=scheme,
            settings=settings,
            progress=progress,
            device=device,
            dtype=dtype,
        )
        sample: Sample = [(entry.text, entry.prompt) for entry in given if entry.text.strip()]
        if texts is None:
            most = min(tokens, max(25, *lengths))
            decoding = {"temperature": temperature, "top_p": top_p, "batch_size": batch_size}
            sample = _write_sample(
                watermark, prompts, tokens=most, seed=seed, decoding=decoding, progress=progress
            )
        z, cuts = _z_scores(watermark.scheme, sample, lengths, progress=progress)
    found = measure_power(z, cuts, fpr=fpr)
    rows = [found.row(each) for each in lengths]
    summary = _summary(watermark.scheme, found, rows)
    if out is not None:
        _save(out, found, rows, summary)
        say(f"wrote {out / 'power.png'} and power.json beside it", quiet=quiet)
    if json_:
        emit(summary)
    else:
        _print(found, rows)


def _lengths(given: str) -> list[int]:
    try:
        lengths = sorted({int(part) for part in given.split(",") if part.strip()})
    except ValueError:
        lengths = []
    if not lengths or lengths[0] < 1:
        raise ConfigError(f"--length needs whole numbers of tokens such as 50,100,200, got {given!r}")
    return lengths


def _write_sample(
    watermark: Watermark,
    prompts: Sequence[str],
    *,
    tokens: int,
    seed: int,
    decoding: dict[str, Any],
    progress: Progress,
) -> Sample:
    """Continue prompts, marked."""
    most = tokens + max(8, tokens // 20)  # a text may be cut into fewer tokens than it was written in
    written: Sample = []

    def tell(batch: list[Generation]) -> None:
        written.extend((made.text, made.prompt) for made in batch)
        progress("writing marked texts", len(written), len(prompts))

    tell([])
    watermark.generate_batch(
        prompts,
        seeds=range(seed, seed + len(prompts)),
        max_new_tokens=most,
        min_new_tokens=most,
        on_batch=tell,
        **decoding,
    )
    return written


def _z_scores(
    bound: BoundScheme, sample: Sample, lengths: Sequence[int], *, progress: Progress
) -> tuple[F64, list[int]]:
    """The z of each text cut at each length, (texts, cuts), NaN where it is shorter; and the cuts."""
    import numpy as np

    from dewmark.stats.key_test import key_test
    from dewmark.stats.power import choose_cuts

    encode = bound.tokenize
    texts, prompts = encode([text for text, _ in sample]), encode([prompt or "" for _, prompt in sample])
    cuts = choose_cuts(lengths, max((len(text.ids) for text in texts), default=0))
    z = np.full((len(texts), len(cuts)), np.nan)
    for i, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        heads = [_head(text, cut) for cut in cuts if cut <= len(text.ids)]
        if heads:
            z[i, : len(heads)] = [key_test(found).z for found in bound.evidence(heads, [prompt] * len(heads))]
        progress("scoring", i + 1, len(texts))
    return z, cuts


def _head(text: Tokenized, tokens: int) -> Tokenized:
    """The first tokens of a text."""
    from dewmark.workspace import Tokenized

    end = text.offsets[tokens - 1][1]
    return Tokenized(text.text[:end], text.ids[:tokens], text.offsets[:tokens])


def _summary(bound: BoundScheme, found: Power, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "scheme": bound.scheme.name,
        "config": bound.scheme.to_dict(),
        "host": bound.host.name,
        "fpr": found.fpr,
        "texts": found.texts,
        "lengths": [row.to_dict() for row in rows],
        "shortest": {f"{target:g}": least for target, least in found.shortest.items()},
        "model": {"slope": found.model.slope, "noise": found.model.noise, "between": found.model.between},
    }


def _print(found: Power, rows: Sequence[Row]) -> None:
    from rich.table import Table

    table = Table("tokens", "share found (model)", "95% interval", "measured", "mean z", "sd of z", box=None)
    for row in rows:
        share = row.measured
        table.add_row(
            f"{row.length:,}",
            f"{row.tpr.value:.3f}",
            f"{row.tpr.low:.3f}–{row.tpr.high:.3f}",
            "–" if share is None else f"{share.hits} of {share.trials}",
            "–" if row.mean_z is None else f"{row.mean_z:.2f}",
            "–" if row.sd_z is None else f"{row.sd_z:.2f}",
        )
    results().print(table, soft_wrap=False)
    reach = ", ".join(
        f"{least:,} tokens for {target:.0%}" if least else f"{target:.0%} is not reached"
        for target, least in found.shortest.items()
    )
    write(f"\nAt a false-positive rate of {found.fpr:g}, from {found.texts} marked texts: {reach}.\n")


def _save(out: Path, found: Power, rows: Sequence[Row], summary: dict[str, Any]) -> None:
    import numpy as np

    from dewmark import storage
    from dewmark.reports import plots

    longest = max(row.length for row in rows)
    lengths = np.unique(np.linspace(1, longest, _CURVE_POINTS).round().astype(int)).tolist()
    shares = found.interval(lengths)
    figure = plots.power_curve(
        lengths,
        [share.value for share in shares],
        [share.low for share in shares],
        [share.high for share in shares],
        measured={row.length: row.measured for row in rows if row.measured is not None},
        fpr=found.fpr,
        title=f"{summary['scheme']} on {summary['host']}",
    )
    plots.save_figure(figure, out / "power.png")
    with storage.atomic_write(out / "power.json") as stream:
        stream.write((json.dumps(summary, indent=1) + "\n").encode("utf-8"))
