"""``dewmark train-reader``: a reader of words for detection, from what language models expect in texts."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, say, write
from dewmark.errors import ConfigError, StorageError
from dewmark.hosts.base import Host

_HELD_OUT = 20  # one text in so many is not trained on


def train_reader(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Write the reader to this new folder.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="MODEL",
            help="Writes texts and says what it expected in them; may be given several times.",
            show_default="smollm2-135m",
        ),
    ] = None,
    languages: Annotated[
        str, typer.Option(metavar="CODES", help="Languages that the hosts are asked in.")
    ] = "en",
    number: Annotated[
        int, typer.Option(min=40, help="Answers and continuations of each host, half of each.")
    ] = 10_000,
    texts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read these texts too: JSONL with a text per line, or paragraphs."),
    ] = None,
    lexicon: Annotated[str, typer.Option(metavar="NAME|DIR", help="The lexicon that is read.")] = "default",
    epochs: Annotated[int, typer.Option(min=1, help="How often each text is read in training.")] = 12,
    seed: Annotated[int, typer.Option(min=0, help="Seed.")] = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    r"""Train a reader of words, for: detect --reader DIR.

    An interrupted run goes on where it stopped: texts and predictions are kept in the cache.

    \b
    Examples:
      dewmark train-reader --host smollm2-135m --out reader/
      dewmark train-reader --host qwen2.5-coder-1.5b --languages en,de,fr,es --number 20000 --out reader/
    """
    from dewmark.config import cache_dir
    from dewmark.encoders.lexicon import load_lexicon
    from dewmark.hosts import host_info, load_host
    from dewmark.hosts.expectations import open_reader
    from dewmark.models.devices import torch_device
    from dewmark.workspace import Workspace
    from dewmark_lab.training.texts import FileTexts, HostTexts
    from dewmark_lab.training.word_reader import Training, examples, reader_requests, request_forms, train

    asked = languages.split(",")
    if unknown := sorted(set(asked) - set(request_forms())):
        known = ", ".join(request_forms())
        raise ConfigError(f"there are no requests in {', '.join(unknown)}: --languages takes {known}")
    if out.exists():
        raise StorageError(f"{out} exists already and is not overwritten; choose another --out")
    own = FileTexts(texts).take(0, least=1) if texts is not None else []
    started, cache = time.perf_counter(), cache_dir()
    with Progress(quiet=quiet) as progress:
        words = load_lexicon(lexicon, workspace=Workspace(cache=cache, progress=progress))
        data = []
        for name in hosts or ["smollm2-135m"]:
            info = host_info(name, progress=progress)
            load = functools.partial(load_host, name, device=device, dtype=dtype, progress=progress)
            open_host = functools.cache(load)
            host = open_host()
            reader = open_reader(host, progress=progress)
            assert reader is not None
            answers = [reader_requests(code) for code in asked] if _chats(host) else []
            for each in (None, *answers):  # None: continuations
                share = number // (2 * len(answers) if each else 2 if answers else 1)
                source = HostTexts(info, open_host, cache=cache, seed=seed, progress=progress, requests=each)
                data += examples(source.take(share, least=share), reader, words, progress=progress)
            data += examples(own, reader, words, progress=progress)
        kept = [each for i, each in enumerate(data) if i % _HELD_OUT]
        explained = train(
            kept,
            data[::_HELD_OUT],
            words,
            out,
            options=Training(epochs=epochs, seed=seed),
            device=str(torch_device(device)),
            meta={"hosts": list(hosts or ["smollm2-135m"]), "languages": asked, "texts": len(data)},
            progress=progress,
        )
    if json_:
        emit({"out": str(out), "texts": len(data), **explained})
    else:
        write(
            f"wrote {out}: it explains {explained['network']:.1%} of the words of other texts "
            f"than it learned from, the hosts themselves {explained['model']:.1%}\n"
        )
    say(f"use it with --reader {out}; took {time.perf_counter() - started:.1f} s", quiet=quiet)


def _chats(host: Host) -> bool:
    """Whether a host answers requests, or only continues text."""
    try:
        return host.chat is not None
    except ConfigError:
        return False
