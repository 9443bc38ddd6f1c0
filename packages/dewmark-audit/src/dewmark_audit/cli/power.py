"""``dewmark power``: how long a marked text must be for its mark to be found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, results, save_json, say, write
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dewmark.scheme import BoundScheme
    from dewmark_audit.power import Power, PowerRow


def power(
    length: Annotated[
        str, typer.Option(metavar="N,N,…", help="Text lengths in tokens, separated by commas.")
    ] = "50,100,200,400",
    fpr: options.FalsePositiveRate = 0.01,
    key: options.OptionalKeyFile = None,
    texts: Annotated[
        Path | None,
        typer.Option(metavar="MARKED.jsonl", help="Texts marked with --key; without it a sample is written."),
    ] = None,
    number: Annotated[int, typer.Option(min=4, help="Number of texts in the sample.")] = 16,
    tokens: Annotated[
        int, typer.Option(min=25, help="Maximum number of tokens per text; longer lengths are extrapolated.")
    ] = 400,
    seed: options.Seed = 0,
    chat: options.Chat = False,
    temperature: options.OwnTemperature = None,
    top_p: options.OwnTopP = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    reader: options.Reader = None,
    batch_size: options.BatchSize = 8,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write power.json here; a detector's folder, say.")
    ] = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Estimate the share of marked texts found at each length, for this host and these settings."""
    import numpy as np

    from dewmark.core.keys import Key
    from dewmark.detect import score_texts
    from dewmark_audit.power import power_by_length, write_sample
    from dewmark_audit.power_model import measure_strength
    from dewmark_audit.texts import read_documents

    lengths = options.numbers(length, int, option="--length")
    if not 0.0 < fpr < 1.0:
        raise ConfigError(f"--fpr must lie in (0, 1), got {fpr:g}")
    options.check_marks(scheme)
    given = read_documents(texts) if texts is not None else []
    asked = _prompts(number, chat=chat) if texts is None else []
    secret = options.load_key(key) if key is not None or texts is not None else Key.generate()
    with Progress(quiet=quiet) as progress:
        watermark = options.load_watermark(
            secret, host=host, scheme=scheme, settings=settings, progress=progress, device=device, dtype=dtype
        )
        watermark.detector(reader=reader)  # a reader that cannot be used is an error before texts are written
        sample = [(each.text, each.prompt) for each in given if each.text.strip()]
        if texts is None:
            sample = write_sample(
                watermark,
                asked,
                tokens=min(tokens, max(25, *lengths)),
                seed=seed,
                options=options.decoding_options(temperature=temperature, top_p=top_p),
                chat=chat,
                batch_size=batch_size,
                progress=progress,
            )
        bound = watermark.detector(reader=reader).scheme
        found = power_by_length(bound, sample, lengths, fpr=fpr, progress=progress)
        tested = score_texts(bound, [text for text, _ in sample], prompts=[prompt for _, prompt in sample])
        strength = measure_strength(
            np.array([each.z for each in tested]), np.array([each.effective_length for each in tested])
        )
    rows = [found.row(each) for each in lengths]
    summary = {**_summary(bound, found, rows), "strength": strength.to_dict()}
    if out is not None:
        save_json(out / "power.json", summary)
        say(f"wrote {out / 'power.json'}", quiet=quiet)
    if json_:
        emit(summary)
    else:
        _print(found, rows)


def _prompts(number: int, *, chat: bool) -> list[str]:
    """The package's requests to a chat model, or its openings."""
    from dewmark_audit.texts import openings, requests

    rows = requests() if chat else openings()
    if len(rows) < number:
        kind = "requests" if chat else "openings"
        raise ConfigError(f"{kind} has {len(rows)} prompts: --number must not exceed that, got {number}")
    return [row["text"] for row in rows[:number]]


def _summary(bound: BoundScheme, found: Power, rows: Sequence[PowerRow]) -> dict[str, Any]:
    from dewmark.scheme import reader_name

    return {
        "scheme": bound.scheme.name,
        "config": bound.scheme.to_dict(),
        "host": bound.host.name,
        "reader": reader_name(bound),
        "fpr": found.fpr,
        "texts": found.texts,
        "lengths": [row.to_dict() for row in rows],
        "shortest": {f"{target:g}": least for target, least in found.shortest.items()},
        "model": {"slope": found.model.slope, "noise": found.model.noise, "between": found.model.between},
    }


def _print(found: Power, rows: Sequence[PowerRow]) -> None:
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
