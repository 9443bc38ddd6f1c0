"""``dewmark radioactivity``: whether a model was trained on marked text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, say, write
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_TOKENS = 200


def radioactivity(
    key: options.KeyFile,
    source: Annotated[
        Path | None,
        typer.Option("--in", metavar="TEXTS.jsonl", help="What the suspect wrote, instead of --model."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The suspect: it continues the prompts here.")
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(
            metavar="TEXTS.jsonl|MODEL",
            help="Texts that were written without the mark, or a model to write them: the suspect before "
            "training, say.",
        ),
    ] = None,
    texts: Annotated[int, typer.Option(min=1, help="How many texts --model writes.")] = 500,
    prompts: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE.jsonl",
            help="openings, openings-again (for more texts), or a file. No prompt may contain marked text.",
        ),
    ] = "openings-again",
    settings: options.Settings = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    batch_size: options.BatchSize = 8,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Test whether a model learned from marked text, by all that it writes together.

    The p-value is exact over keys: texts of a model that saw nothing of the key give p < 0.01 once in 100
    keys, however alike the texts are.
    """
    from dewmark.batch.inputs import read_documents
    from dewmark.config import parse_settings
    from dewmark.core.keys import Key
    from dewmark.decoding import Decoding
    from dewmark.hosts import load_host
    from dewmark.opening import load_scheme
    from dewmark_lab.evaluation.radioactivity import radioactivity as test
    from dewmark_lab.prompt_sources import prompt_texts

    if (source is None) == (model is None):
        raise ConfigError("give the suspect's texts with --in, or the suspect with --model")
    bound = load_scheme(Key.load(key), settings=parse_settings(settings or ()))
    with Progress(quiet=quiet) as progress:

        def written(name: str) -> list[str]:
            openings = [row["text"] for row in prompt_texts(prompts, texts)]
            host = load_host(name, device=device, dtype=dtype, progress=progress)
            progress(f"{name} writes {texts} texts", 0, 0)
            made = host.generate(
                openings,
                scheme=None,
                seeds=range(texts),
                decoding=Decoding(max_new_tokens=_TOKENS),
                batch_size=batch_size,
            )
            return [each.text for each in made]

        def read(file: Path) -> list[str]:
            return [document.text for document in read_documents(file)]

        suspect = read(source) if source is not None else written(str(model))
        compared = [] if control is None else _texts(control, read, written)
        found = test(bound, suspect, control=compared)
    if json_:
        emit({"key": bound.fingerprint, "model": model, "control": control, **found.to_dict()})
        return
    against = f", against {found.control_texts} of the control" if compared else ""
    write(f"{found.texts} texts{against}: z {found.z:.2f}, p = {found.p_value:.2g}\n")
    if found.p_value < 0.01:
        write("the model learned from text under this key, or its prompts contain such text\n")
    else:
        write("no trace of this key; more texts or a control make the test stronger\n")
    say("dewmark: the p-value holds if neither prompts nor suspect saw the key in another way", quiet=quiet)


def _texts(control: str, read: Callable[[Path], list[str]], written: Callable[[str], list[str]]) -> list[str]:
    file = Path(control)
    return read(file) if file.is_file() and file.suffix == ".jsonl" else written(control)
