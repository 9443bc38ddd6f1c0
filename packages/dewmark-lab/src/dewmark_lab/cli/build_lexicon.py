"""``dewmark build-lexicon``: the lexicon of another encoder or of other languages."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from dewmark.cli.options import Device, Json, Quiet
from dewmark.cli.terminal import Progress, emit, say, write


def build_lexicon(
    encoder: Annotated[str, typer.Option(metavar="MODEL", help="Encoder that gives the words' vectors.")],
    languages: Annotated[
        str | None,
        typer.Option(
            metavar="CODES",
            help="Languages, with the number of forms of each if you like: en:45000,de,fr.",
            show_default="those of the default lexicon",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write to this new folder.", show_default="the cache"),
    ] = None,
    extend: Annotated[
        str | None,
        typer.Option(
            metavar="LEXICON", help="Append to this lexicon; the rows that it has stay as they are."
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Also prepare the trie of this host's tokenizer.")
    ] = None,
    device: Device = "auto",
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    r"""Build the lexicon of an encoder from lists of frequent words, for: --set lexicon=DIR.

    An interrupted run resumes.

    \b
    Examples:
      dewmark build-lexicon --encoder minilm --languages en,de --out lexicon/
      dewmark build-lexicon --encoder use-m3 --languages sv:20000 --host ./my-model --out swedish/
      dewmark build-lexicon --encoder e5-small --extend default --languages sv:4000 --out more/
    """
    from dewmark.config import cache_dir
    from dewmark.encoders import load_encoder
    from dewmark.encoders.lexicon import lexicon_folder, load_lexicon
    from dewmark.errors import ConfigError, StorageError
    from dewmark.hosts import host_info
    from dewmark.text.trie import load_trie
    from dewmark.workspace import Workspace
    from dewmark_lab.lexicon_build import WordVectors, extend_lexicon, load_word_statistics
    from dewmark_lab.lexicon_build import build_lexicon as build
    from dewmark_lab.word_lists import frequent_forms, parse_sizes

    sizes = parse_sizes(languages)
    started = time.perf_counter()
    with Progress(quiet=quiet) as progress:
        workspace = Workspace(cache=cache_dir(), progress=progress)
        folder = out or lexicon_folder(encoder, workspace)
        if out is None and folder == lexicon_folder("default", workspace):
            raise ConfigError(f"the lexicon of {encoder} ships with dewmark: give --out DIR to build another")
        if folder.exists():
            raise StorageError(f"{folder} exists already and is not overwritten; choose another --out")
        if extend is not None:
            load_lexicon(extend, workspace=workspace)
        listed = frequent_forms(sizes, progress=progress)
        info = host_info(host, progress=progress) if host is not None else None
        loaded = load_encoder(encoder, progress=progress, device=device)
        vectors = WordVectors(loaded, workspace.cache / "words")
        statistics = load_word_statistics(vectors, progress=progress)
        if extend is not None:
            source = lexicon_folder(extend, workspace)
            extend_lexicon(source, listed, vectors, statistics, out=folder, progress=progress)
        else:
            build(listed, vectors, statistics, out=folder, progress=progress)
        built = load_lexicon(str(folder), workspace=workspace)
        if info is not None:
            tokenizer, size = info.tokenizer, info.vocab_size
            load_trie(built.forms, tokenizer, size, identity=built.identity, workspace=workspace)
    if json_:
        emit({"out": str(folder), "identity": built.identity, "forms": len(built), "dim": built.dim})
    else:
        write(f"wrote {folder}: {len(built)} forms; use it with: --set lexicon={out or encoder}\n")
    say(f"took {time.perf_counter() - started:.1f} s", quiet=quiet)
