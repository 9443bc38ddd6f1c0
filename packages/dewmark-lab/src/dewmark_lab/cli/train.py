"""``dewmark train``: train a scheme's artifact for a host."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, say, write
from dewmark.errors import ConfigError
from dewmark_lab.training import TRAINERS

_ENCODER = "use-m3"


def train(
    scheme: Annotated[str, typer.Argument(metavar="SCHEME", help=f"One of: {', '.join(TRAINERS)}.")],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Write the artifact here; a stopped training is resumed.")
    ],
    host: options.Host = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", show_default=_ENCODER, help="Encoder: a packaged name, a folder, or a hub id."
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="the host writes them",
            help="Training texts: JSONL with a text per line, or plain text in paragraphs.",
        ),
    ] = None,
    lexicon: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Bilingual lexicon for xsir: two words per line, separated by a tab."
        ),
    ] = None,
    contexts: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="For atw: composed of token vectors, or encoded, the encoder run on the text so far.",
        ),
    ] = "composed",
    seed: Annotated[int, typer.Option(min=0, help="Seed.")] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, show_default="the scheme's own", help="Training steps.")
    ] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a scheme's artifact, for: --set artifact=DIR."""
    trainer = TRAINERS[scheme]
    if lexicon is not None and not lexicon.is_file():
        raise ConfigError(f"there is no lexicon at {lexicon}: give a file with two words per line")
    if contexts not in ("composed", "encoded") or (contexts == "encoded" and scheme != "atw"):
        raise ConfigError(f"--contexts is composed or, for atw, encoded, got {contexts} for {scheme}")
    from dewmark import hosts
    from dewmark.config import cache_dir
    from dewmark.encoders import load_encoder
    from dewmark.opening import DEFAULT_HOST
    from dewmark_lab.training.job import TrainingJob, train_artifact
    from dewmark_lab.training.texts import FileTexts, HostTexts

    name = host or DEFAULT_HOST
    started = time.perf_counter()
    with Progress(quiet=quiet) as progress:
        info = hosts.host_info(name, progress=progress)
        load = functools.partial(hosts.load_host, name, device=device, dtype=dtype, progress=progress)
        open_host = functools.cache(load)
        job = TrainingJob(
            scheme=scheme,
            info=info,
            open_host=open_host,
            encoder=load_encoder(encoder or _ENCODER, progress=progress, device=device),
            texts=FileTexts(texts)
            if texts is not None
            else HostTexts(info, open_host, cache=cache_dir(), seed=seed, progress=progress),
            out=out,
            progress=progress,
            lexicon=lexicon,
            device=device,
            seed=seed,
            steps=steps,
            contexts=contexts,
        )
        artifact, report = train_artifact(trainer, job)
    size = sum(array.nbytes for array in artifact.arrays.values())
    if json_:
        emit({"out": str(out), "scheme": scheme, "identity": artifact.identity, "bytes": size, **report})
    else:
        write(f"wrote the {scheme} artifact for {name} to {out}, {size / 1e6:.2f} MB\n")
        for measure, value in report.items():
            write(f"  {measure}: {value:g}\n")
    say(f"use it with --set artifact={out}, {time.perf_counter() - started:.1f} s", quiet=quiet)
