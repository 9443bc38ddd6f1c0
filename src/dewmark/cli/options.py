"""Options that several commands share, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "BatchSize",
    "Detector",
    "Device",
    "Dtype",
    "Host",
    "Json",
    "KeyFile",
    "OptionalKeyFile",
    "Prompt",
    "Quiet",
    "SchemeName",
    "Settings",
]

KeyFile = Annotated[Path, typer.Option("--key", metavar="FILE", help="Key file, made by: dewmark key new.")]
OptionalKeyFile = Annotated[
    Path | None, typer.Option("--key", metavar="FILE", help="Key file, made by: dewmark key new.")
]
Host = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="MODEL",
        help="Host: a packaged name (dewmark models list), a folder, or a hub id.",
        show_default="smollm2-135m",
    ),
]
SchemeName = Annotated[
    str | None, typer.Option("--scheme", metavar="NAME", show_default="dew", help="Scheme.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A parameter of the scheme, e.g. --set k=5; repeatable."
    ),
]
Detector = Annotated[
    Path | None,
    typer.Option(
        "--detector", metavar="DIR", help="An exported detector, instead of --key, --host and --set."
    ),
]
Prompt = Annotated[
    str | None,
    typer.Option("--prompt", metavar="TEXT", help="What the texts continue: context, never scored itself."),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps …")]
Dtype = Annotated[str, typer.Option("--dtype", help="Number format of the host: auto, float32, bfloat16 …")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Texts in one batch.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, one object a line.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no chatter on stderr.")]
