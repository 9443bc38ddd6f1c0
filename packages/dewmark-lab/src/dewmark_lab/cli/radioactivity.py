"""``dewmark radioactivity``: whether a model was trained on marked text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import emit, say, write


def radioactivity(
    key: options.KeyFile,
    source: Annotated[Path, typer.Option("--in", metavar="TEXTS.jsonl", help="What the suspect wrote.")],
    control: Annotated[
        Path | None,
        typer.Option(
            metavar="TEXTS.jsonl", help="Texts written without the mark: by the suspect before training, say."
        ),
    ] = None,
    settings: options.Settings = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Test whether a model learned from marked text, by all that it writes together.

    The p-value is exact over keys: texts of a model that saw nothing of the key give p < 0.01 once in 100
    keys, however alike the texts are.
    """
    from dewmark.config import parse_settings
    from dewmark.core.keys import Key
    from dewmark.opening import load_scheme
    from dewmark_audit.texts import read_documents
    from dewmark_lab.evaluation.radioactivity import radioactivity as test

    bound = load_scheme(Key.load(key), settings=parse_settings(settings or ()))
    suspect, compared = (
        [document.text for document in read_documents(file)] if file is not None else []
        for file in (source, control)
    )
    found = test(bound, suspect, control=compared)
    if json_:
        emit({"key": bound.fingerprint, **found.to_dict()})
        return
    against = f", against {found.control_texts} of the control" if compared else ""
    write(f"{found.texts} texts{against}: z {found.z:.2f}, p = {found.p_value:.2g}\n")
    if found.p_value < 0.01:
        write("the model learned from text under this key, or its prompts contain such text\n")
    else:
        write("no trace of this key; more texts or a control make the test stronger\n")
    say("dewmark: the p-value holds if neither prompts nor suspect saw the key in another way", quiet=quiet)
