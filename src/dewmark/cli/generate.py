"""``dewmark generate``: one marked completion to stdout, or a file of prompts to a file of completions."""

from __future__ import annotations

import functools
import operator
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.loading import NONE, Writer, load_key, load_unmarked, load_watermark
from dewmark.cli.terminal import Progress, emit, printable, results, say, write
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dewmark.batch.prompts_run import Prompt
    from dewmark.decoding import Decoding
    from dewmark.types import Generation

__all__ = ["generate"]

_SEEDS = 2**31  # a drawn seed stays readable


def generate(
    key: options.OptionalKeyFile = None,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="Continue this text.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="IN.jsonl", help="Continue each line's prompt; needs --out.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="OUT.jsonl", help="Where --prompts go; a stopped run is resumed.")
    ] = None,
    host: options.Host = None,
    scheme: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default="dew", help="Scheme; none writes unmarked text."),
    ] = None,
    settings: options.Settings = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens to write per text.")] = 200,
    min_new_tokens: Annotated[int, typer.Option(help="No text ends before it has this many tokens.")] = 0,
    seed: Annotated[
        int | None,
        typer.Option(min=0, show_default="drawn", help="Seed of the first text, row i gets seed + i."),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; a mark needs one above 0.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens of this total probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")] = 0,
    no_repeat_ngram: Annotated[int, typer.Option(help="Forbid repeating runs of N tokens; 0 allows.")] = 4,
    batch_size: options.BatchSize = 8,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write watermarked text."""
    from dewmark.batch.prompts_run import check_prompt, read_prompts
    from dewmark.decoding import Decoding
    from dewmark.hosts.base import check_decoding

    if (prompt is None) == (prompts is None):
        raise ConfigError("give either --prompt TEXT or --prompts IN.jsonl with --out OUT.jsonl")
    if (prompts is None) != (out is None):
        raise ConfigError("--prompts and --out go together: give both or neither")
    if scheme == NONE and settings:
        raise ConfigError("scheme none has no parameters: leave out --set")
    decoding = Decoding(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        no_repeat_ngram=no_repeat_ngram,
        min_new_tokens=min_new_tokens,
    )
    secret = load_key(key) if key is not None or scheme != NONE else None
    rows = read_prompts(prompts) if prompts is not None else []
    if prompt is not None:
        check_prompt(prompt, "--prompt")
    if prompts is not None and out is not None and out.exists() and out.samefile(prompts):
        raise ConfigError(f"--out is the prompts file {prompts} itself: choose another name")
    started = time.perf_counter()
    with Progress(quiet=quiet) as progress:
        if secret is None or scheme == NONE:
            writer = load_unmarked(host, progress=progress, device=device, dtype=dtype)
        else:
            writer = Writer.marked(
                load_watermark(
                    secret,
                    host=host,
                    scheme=scheme,
                    settings=settings,
                    progress=progress,
                    device=device,
                    dtype=dtype,
                )
            )
        check_decoding(decoding, writer.scheme)
        if out is not None:
            told = _many(
                writer, rows, out, decoding, seed=seed, batch_size=batch_size, progress=progress, json_=json_
            )
        else:
            told = _one(writer, prompt or "", decoding, seed=seed, progress=progress, json_=json_)
    say(f"{told}, {time.perf_counter() - started:.1f} s", quiet=quiet)


def _one(
    writer: Writer, prompt: str, decoding: Decoding, *, seed: int | None, progress: Progress, json_: bool
) -> str:
    """Continue one prompt to stdout; returns what to say of it."""
    from dewmark.batch.prompts_run import row

    seeds = [secrets.randbelow(_SEEDS) if seed is None else seed]
    host = writer.host  # loading tells its own progress
    progress(f"{host.name} is writing", 0, 0)
    made = writer.write([prompt], seeds=seeds, decoding=decoding)[0]
    progress.clear()
    console = results()
    if json_:
        emit(row("0", made))
    elif console.is_terminal:
        console.print(printable(prompt), style="dim", end="")
        console.print(printable(made.text))
    else:
        write(made.text + "\n")  # the completion only, so that it can be piped into a detector
    return f"{made.tokens} tokens{_cost(made)}, scheme {made.scheme}, seed {made.seed}"


def _many(
    writer: Writer,
    prompts: Sequence[Prompt],
    out: Path,
    decoding: Decoding,
    *,
    seed: int | None,
    batch_size: int,
    progress: Progress,
    json_: bool,
) -> str:
    """Continue a file of prompts into ``out``; returns what to say of it."""
    from dewmark.batch.prompts_run import Run

    run = Run.open(
        out,
        prompts,
        batch_size=batch_size,
        seed=seed,
        fresh_seed=secrets.randbelow(_SEEDS),
        config_hash=writer.config_hash(decoding),
    )
    resumed = run.done
    # all of them now: a prompt that is too long must not stop a run in its middle
    if run.done < len(prompts):
        writer.host.check_prompts([prompt.text for prompt in prompts], decoding.max_new_tokens)
    description = f"writing {out.name}"
    progress(description, run.done, len(prompts))
    written: list[Generation] = []
    for batch, seeds in run.batches():
        texts = [prompt.text for prompt in batch]
        made = writer.write(texts, seeds=seeds, decoding=decoding, batch_size=batch_size)
        run.append(batch, made)
        written += made
        progress(description, run.done, len(prompts))
    progress.clear()
    if json_:
        summary = {"out": str(out), "rows": run.done, "resumed_from": resumed, "seed": run.seed}
        emit({**summary, "config_hash": run.config_hash})
    else:
        write(f"{run.done} rows in {out}\n")
    return f"{run.done - resumed} rows written{_cost(*written)}, {resumed} were there, seed {run.seed}"


def _cost(*made: Generation) -> str:
    """What choosing between drafts cost, where a scheme does."""
    counts = [each.drafts for each in made if each.drafts is not None]
    return f", {functools.reduce(operator.add, counts)}" if counts else ""
