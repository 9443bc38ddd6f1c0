"""``dewmark demo``: a marked and an unmarked answer side by side, and texts that carry no mark."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, printable, results, say

if TYPE_CHECKING:
    from rich.console import Console

    from dewmark.core.keys import Key
    from dewmark.types import Detection, Verdict

REQUEST = "Write a short story about a baker who opens a shop in a new town."
TOKENS = 250
ANSWERS = 3
"""So many answers are written until one is found: of short ones about one in ten is not."""
_SIDE_BY_SIDE = 96  # columns from which two texts stand beside each other


@dataclass(frozen=True)
class Case:
    """A text under a key, and the verdict that it should get.

    ``nats`` is what the host needs for a token of it; None where it was not asked.
    """

    name: str
    request: str
    text: str
    detection: Detection
    expected: Verdict
    nats: float | None = None

    @property
    def right(self) -> bool:
        """Whether the verdict is the expected one."""
        return self.detection.verdict is self.expected


def demo(
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What to ask the host.")] = REQUEST,
    seed: Annotated[int | None, typer.Option(min=0, show_default="random", help="Seed of the texts.")] = None,
    keep_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the key to a new file.")] = None,
    host: options.Host = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer a request with and without a mark, side by side, and test both for it."""
    from dewmark.core.keys import Key

    key, wrong_key = Key.generate(), Key.generate()
    if keep_key is not None:
        key.save(keep_key)
    seed = secrets.randbelow(2**31) if seed is None else seed
    with Progress(quiet=quiet) as progress:
        cases, setting = run(key, wrong_key, prompt, seed, host=host, progress=progress, quiet=quiet)
    if json_:
        for case in cases:
            row = {"id": case.name, **case.detection.to_dict(), "nats": case.nats}
            row |= {"expected": case.expected.value, "right": case.right}
            emit({**row, "prompt": case.request, "text": case.text, "seed": seed})
    else:
        show(results(), cases, setting)
    wrong = [case.name for case in cases if not case.right]
    if wrong:
        say(
            f"dewmark: unexpected verdict: {', '.join(wrong)}. Short answers may carry too little of a mark, "
            "and one unmarked text in a hundred gets p < 0.01: run the demo again"
        )
        raise typer.Exit(1)


def run(
    key: Key, wrong_key: Key, request: str, seed: int, *, host: str | None, progress: Progress, quiet: bool
) -> tuple[list[Case], str]:
    """Load, write and detect, and report the time of each stage; also says how the texts were drawn."""
    from dewmark.batch import Prompt, TextWriter
    from dewmark.batch.inputs import as_request
    from dewmark.types import Verdict

    last = time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal last
        progress.clear()
        say(f"{stage} {time.perf_counter() - last:.1f} s", quiet=quiet)
        last = time.perf_counter()

    watermark = options.load_watermark(key, host=host, scheme=None, settings=None, progress=progress)
    writer = TextWriter.marked(watermark)
    lap(f"key {key.fingerprint}, {writer.host.name}: ready in")
    prompt = writer.prompt(Prompt("0", request, as_request(request)))
    decoding = writer.decoding({"max_new_tokens": TOKENS}, chat=True)
    for left in reversed(range(ANSWERS)):
        progress(f"writing up to {TOKENS} tokens, twice", 0, 0)
        pair = (writer, dataclasses.replace(writer, scheme=None, open_host=lambda: writer.host))
        made = [each.write([prompt], seeds=[seed], decoding=decoding)[0].text for each in pair]
        nats = [-total / max(count, 1) for total, count in writer.host.log_likelihood([prompt] * 2, made)]
        texts = [text.strip() for text in made]
        found = watermark.detect_batch(texts)
        lap(f"a marked and an unmarked text of up to {TOKENS} tokens written and tested in")
        if found[0].is_marked or not left:
            break
        p = found[0].p_value
        say(f"this answer left the mark too little choice (p = {p:.2g}); another", quiet=quiet)
        seed += 1
    human = human_paragraph()
    other = options.load_watermark(wrong_key, host=host, scheme=None, settings=None, progress=progress)
    cases = [
        Case("marked text", request, texts[0], found[0], Verdict.MARKED, nats[0]),
        Case("unmarked text", request, texts[1], found[1], Verdict.NOT_MARKED, nats[1]),
        Case("human paragraph", "", human, watermark.detect(human), Verdict.NOT_MARKED),
        Case("wrong key", request, texts[0], other.detect(texts[0]), Verdict.NOT_MARKED),
    ]
    lap(f"a human paragraph, and wrong key {wrong_key.fingerprint}, tested in")
    return cases, f"{writer.host.name}, temperature {decoding.temperature:g}, top-p {decoding.top_p:g}"


def human_paragraph() -> str:
    """The opening of Moby-Dick: the first paragraph of the file, whose source is named below it."""
    return (files("dewmark") / "data/human.txt").read_text("utf-8").split("\n\n", 1)[0]


def show(console: Console, cases: Sequence[Case], setting: str) -> None:
    """The marked and the unmarked text, coloured, then all verdicts and the price of the mark."""
    from rich.table import Table
    from rich.text import Text

    from dewmark.cli.token_colours import colour_tokens, legend
    from dewmark.reports.detection_display import one_in, p_value

    console.print(Text.assemble(("request: ", "bold"), printable(cases[0].request)))
    console.print(Text(setting, style="dim"))
    console.print()
    beside = console.width >= _SIDE_BY_SIDE
    texts = Table(box=None, pad_edge=False, padding=(0, 4, 1, 0))
    for _ in cases[: 2 if beside else 1]:
        texts.add_column(ratio=1)
    pair = [(each, colour_tokens(each.text, each.detection)) for each in cases[:2]]
    cells = [Text.assemble((f"{case.name}\n", "bold"), coloured) for case, coloured in pair]
    for row in [cells] if beside else [[cell] for cell in cells]:
        texts.add_row(*row)
    texts.show_header = False
    console.print(texts, soft_wrap=False)
    console.print(legend())
    console.print()
    table = Table("text", "verdict", "p-value", "keys that score it so high", "nats a token", box=None)
    for case in cases:
        p = case.detection.p_value
        table.add_row(
            case.name,
            case.detection.words,
            p_value(p).removeprefix("p = "),
            one_in(p),
            "" if case.nats is None else f"{case.nats:.2f}",
        )
    console.print(table, soft_wrap=False)
    if cases[0].nats is not None and cases[1].nats is not None:
        console.print()
        console.print(
            f"Price of the mark: {cases[0].nats - cases[1].nats:+.2f} nats a token in this pair, which is "
            "mostly chance. docs/marking.md has the mean of 200 pairs.",
            soft_wrap=False,
        )
