"""``dewmark generate``: one completion to stdout, or a file of prompts to a file of completions."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, printable, results, say, write
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from dewmark.batch import TextWriter
    from dewmark.decoding import Decoding
    from dewmark.types import DraftCount


def generate(
    key: options.OptionalKeyFile = None,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="Continue this text.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="IN.jsonl", help="Continue the prompt of each line (requires --out)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.jsonl", help="Write the completions of --prompts here; a stopped run is resumed."
        ),
    ] = None,
    host: options.Host = None,
    scheme: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="dew",
            help="Scheme (see dewmark schemes), or none for unmarked text.",
        ),
    ] = None,
    settings: options.Settings = None,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of tokens per text.")] = 200,
    min_new_tokens: Annotated[int, typer.Option(help="Minimum number of tokens per text.")] = 0,
    seed: Annotated[
        int | None,
        typer.Option(min=0, show_default="random", help="Seed of the first text; text i gets seed + i."),
    ] = None,
    temperature: options.Temperature = 1.0,
    top_p: options.TopP = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 keeps all.")] = 0,
    no_repeat_ngram: Annotated[
        int, typer.Option(help="Never repeat n tokens in a row; 0 allows repetition.")
    ] = 4,
    batch_size: options.BatchSize = 8,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write watermarked text."""
    from dewmark.batch import TextWriter, generate_file, read_prompts
    from dewmark.batch.inputs import check_prompt
    from dewmark.decoding import Decoding

    if (prompt is None) == (prompts is None):
        raise ConfigError("give either --prompt TEXT or --prompts IN.jsonl with --out OUT.jsonl")
    if (prompts is None) != (out is None):
        raise ConfigError("--prompts and --out go together: give both or neither")
    if scheme == options.UNMARKED and settings:
        raise ConfigError("scheme none has no parameters: leave out --set")
    decoding = Decoding(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        no_repeat_ngram=no_repeat_ngram,
        min_new_tokens=min_new_tokens,
    )
    secret = options.load_key(key) if key is not None or scheme != options.UNMARKED else None
    if prompt is not None:
        check_prompt(prompt, "--prompt")
    if prompts is not None:
        read_prompts(prompts)  # report mistakes before a model is loaded
    started = time.perf_counter()
    with Progress(quiet=quiet) as progress:
        if secret is None or scheme == options.UNMARKED:
            writer = TextWriter.unmarked(host, progress=progress, device=device, dtype=dtype)
        else:
            writer = TextWriter.marked(
                options.load_watermark(
                    secret,
                    host=host,
                    scheme=scheme,
                    settings=settings,
                    progress=progress,
                    device=device,
                    dtype=dtype,
                )
            )
        if prompts is None or out is None:
            said = _complete(writer, prompt or "", decoding, seed=seed, progress=progress, json_=json_)
        else:
            made = generate_file(
                prompts, out, writer, decoding=decoding, seed=seed, batch_size=batch_size, progress=progress
            )
            new = made.rows - made.resumed_from
            said = f"{new} rows written{_drafts(made.drafts)}, {made.resumed_from} resumed, seed {made.seed}"
    if prompts is not None:
        if json_:
            summary = {"out": str(out), "rows": made.rows, "resumed_from": made.resumed_from}
            emit({**summary, "seed": made.seed, "config_hash": made.config_hash})
        else:
            write(f"{made.rows} rows in {out}\n")
    say(f"{said}, {time.perf_counter() - started:.1f} s", quiet=quiet)


def _complete(
    writer: TextWriter, prompt: str, decoding: Decoding, *, seed: int | None, progress: Progress, json_: bool
) -> str:
    """Print the completion of one prompt; returns a line about it."""
    from dewmark.batch.generating import completion_row

    host = writer.host  # loading reports its own progress
    progress(f"{host.name} is writing", 0, 0)
    seeds = [secrets.randbits(31) if seed is None else seed]
    made = writer.write([prompt], seeds=seeds, decoding=decoding)[0]
    progress.clear()
    console = results()
    if json_:
        emit(completion_row("0", made))
    elif console.is_terminal:
        console.print(printable(prompt), style="dim", end="")
        console.print(printable(made.text))
    else:
        write(made.text + "\n")  # only the completion, so that it can be piped into a detector
    return f"{made.tokens} tokens{_drafts(made.drafts)}, scheme {made.scheme}, seed {made.seed}"


def _drafts(count: DraftCount | None) -> str:
    """The cost of choosing between drafts, if the scheme does."""
    return "" if count is None else f", {count}"
