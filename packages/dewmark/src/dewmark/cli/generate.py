"""``dewmark generate``: one completion or answer to stdout, or a file of prompts to a file of completions."""

from __future__ import annotations

import contextlib
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, printable, results, say, write
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from dewmark.batch import Prompt, TextWriter
    from dewmark.decoding import Decoding
    from dewmark.types import DraftCount


def generate(
    key: options.OptionalKeyFile = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Answer this request, or continue it (--continue).")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="IN.jsonl", help="Continue or answer each line (requires --out).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="OUT.jsonl", help="Write completions; a stopped run is resumed.")
    ] = None,
    host: options.Host = None,
    scheme: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default="dew", help="Scheme (dewmark schemes), none for no mark."),
    ] = None,
    settings: options.Settings = None,
    strength: options.Strength = None,
    member: options.Member = None,
    payload: options.Payload = None,
    policy: options.PolicyFile = None,
    certificate: options.Certificate = None,
    certificate_key: options.CertificateKey = None,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of tokens per text.")] = 200,
    min_new_tokens: Annotated[int, typer.Option(help="Minimum number of tokens per text.")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, show_default="random", help="Seed; text i gets seed + i.")
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--continue",
            help="Answer in the host's chat template, as the host decodes, or continue the text.",
            show_default="--prompt is answered if the host has a template",
            rich_help_panel=options.DECODING,
        ),
    ] = None,
    temperature: options.OwnTemperature = None,
    top_p: options.OwnTopP = None,
    top_k: options.OwnTopK = None,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(help="Never repeat n tokens in a row; 0 allows it.", show_default="0")
    ] = None,
    drafts: Annotated[
        int, typer.Option(min=1, help="Write 24 tokens this many times and keep the draft marked best.")
    ] = 1,
    batch_size: options.BatchSize = 8,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write watermarked text."""
    from dewmark.batch import Prompt, TextWriter, generate_file, read_prompts
    from dewmark.batch.inputs import as_request, check_prompt
    from dewmark.decoding import Decoding
    from dewmark.hosts.base import check_decoding
    from dewmark.policy import load_policy

    if (prompt is None) == (prompts is None):
        raise ConfigError("give either --prompt TEXT or --prompts IN.jsonl with --out OUT.jsonl")
    if (prompts is None) != (out is None):
        raise ConfigError("--prompts and --out go together: give both or neither")
    if strength is not None:
        try:
            right = strength in ("exact", "free", "strong") or float(strength) >= 0
        except ValueError:
            right = False
        if not right:
            raise ConfigError(f"--strength takes exact, free, strong or a number from 0 on, got {strength!r}")
        settings = [*(settings or ()), f"strength={strength}"]
    if scheme == options.UNMARKED and settings:
        raise ConfigError("scheme none has no parameters: leave out --set and --strength")
    stated = options.decoding_options(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        no_repeat_ngram=no_repeat_ngram,
        min_new_tokens=min_new_tokens,
        drafts=drafts,
    )
    Decoding(**stated)  # report mistakes before a model is loaded
    left_out = None if policy is None else load_policy(policy)
    provider = options.load_provider(certificate, certificate_key)
    message = options.whole_number(payload, "--payload")
    if scheme == options.UNMARKED and (member is not None or message is not None):
        raise ConfigError("scheme none leaves no mark: leave out --member and --payload")
    secret = options.load_key(key) if key is not None or scheme != options.UNMARKED else None
    if prompts is not None:
        asked = read_prompts(prompts, chat=chat)
        if out is not None and out.exists() and out.samefile(prompts):
            raise ConfigError(f"the output is the prompts file {prompts} itself: choose another name")
    elif prompt is not None:
        check_prompt(prompt, "--prompt")
    started, placed = time.perf_counter(), {"device": device, "dtype": dtype}
    with Progress(quiet=quiet) as progress:
        if secret is None or scheme == options.UNMARKED:
            writer = TextWriter.unmarked(host, provider=provider, progress=progress, **placed)
        else:
            watermark = options.load_watermark(
                secret, host=host, scheme=scheme, settings=settings, progress=progress, **placed
            )
            watermark.policy, watermark.provider = left_out, provider
            writer = TextWriter.marked(watermark, member=member, payload=message)
        if prompt is not None:
            answered = bool(chat)
            if chat is None:
                with contextlib.suppress(ConfigError):  # the host has no chat template
                    answered = bool(writer.chat)
            asked = [Prompt("0", prompt, as_request(prompt) if answered else None)]
        decoding = writer.decoding(stated, chat=asked[0].messages is not None)
        check_decoding(decoding, writer.scheme)  # before the model is loaded
        if out is None:
            said = _complete(writer, asked[0], decoding, seed=seed, progress=progress, json=json_)
        else:
            made = generate_file(
                asked, out, writer, decoding=decoding, seed=seed, batch_size=batch_size, progress=progress
            )
            new = made.rows - made.resumed_from
            said = f"{new} rows written{_drafts(made.drafts)}, {made.resumed_from} resumed, seed {made.seed}"
            said += f", {made.unmarked} unmarked: no room" if made.unmarked else ""
    if prompts is not None:
        if json_:
            summary = {"out": str(out), "rows": made.rows, "resumed_from": made.resumed_from}
            known = {"seed": made.seed, "config_hash": made.config_hash, "unmarked": made.unmarked}
            emit({**summary, **known})
        else:
            write(f"{made.rows} rows in {out}\n")
    say(f"{said}, {time.perf_counter() - started:.1f} s", quiet=quiet)


def _complete(
    writer: TextWriter, asked: Prompt, decoding: Decoding, *, seed: int | None, progress: Progress, json: bool
) -> str:
    """Print the completion of one prompt, on a terminal as it is written; returns a line about it."""
    from dewmark.batch.generating import completion_row

    host = writer.host  # loading reports its own progress
    progress(f"{host.name} is writing", 0, 0)
    seed = secrets.randbits(31) if seed is None else seed
    prompt = writer.prompt(asked)
    console = results()
    if console.is_terminal and not json:
        progress.clear()
        console.print(printable(asked.text), style="dim", end="" if asked.messages is None else "\n\n")
        pieces = writer.stream(prompt, seed=seed, decoding=decoding)
        while True:
            try:
                console.print(printable(next(pieces)), end="")
            except StopIteration as end:
                unmarked: str | None = end.value
                break
        console.print()
        name = "none" if writer.scheme is None else writer.scheme.scheme.name
        return f"scheme {name}{_unmarked(unmarked)}, seed {seed}"
    made = writer.write([prompt], seeds=[seed], decoding=decoding)[0]
    progress.clear()
    if json:
        emit(completion_row(asked, made))
    else:
        write(made.text + "\n")  # only the completion, so that it can be piped into a detector
    told = f"{_drafts(made.drafts)}, scheme {made.scheme}{_unmarked(made.unmarked)}"
    return f"{made.tokens} tokens{told}, seed {made.seed}"


def _unmarked(reason: str | None) -> str:
    return "" if reason is None else f", unmarked: {reason.replace('_', ' ')}"


def _drafts(count: DraftCount | None) -> str:
    """The cost of choosing between drafts, if the scheme does."""
    return "" if count is None else f", {count}"
