"""``dewmark demo``: a fresh key, a marked text, and three texts that are not marked with it."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli.loading import Writer, load_watermark
from dewmark.cli.options import Json, Quiet
from dewmark.cli.terminal import Progress, emit, printable, results, say

if TYPE_CHECKING:
    from rich.console import Console

    from dewmark.core.keys import Key
    from dewmark.types import Detection, Verdict

__all__ = ["demo"]

PROMPT = "My grandmother kept a small shop at the end of the harbour, and every summer"
TOKENS = 200
TOP_P = 0.9  # a small model's unlikely tokens make dull reading


@dataclass(frozen=True)
class Case:
    """One text under one key, and the verdict that it should get."""

    name: str
    prompt: str
    text: str
    detection: Detection
    expected: Verdict

    @property
    def right(self) -> bool:
        """Whether the detector said what it should."""
        return self.detection.verdict is self.expected


def demo(
    seed: Annotated[int | None, typer.Option(min=0, show_default="drawn", help="Seed of the texts.")] = None,
    keep_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the key to a new file.")] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the texts as an SVG picture.")
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Mark a text with a fresh key and detect it; then try three texts that are not marked with that key."""
    from dewmark.core.keys import Key

    key, wrong_key = Key.generate(), Key.generate()
    if keep_key is not None:
        key.save(keep_key)
    seed = secrets.randbelow(2**31) if seed is None else seed
    with Progress(quiet=quiet) as progress:
        cases = _run(key, wrong_key, seed, progress=progress, quiet=quiet)
    if json_:
        for case in cases:
            row = {
                "id": case.name,
                **case.detection.to_dict(),
                "expected": case.expected.value,
                "right": case.right,
            }
            emit({**row, "prompt": case.prompt, "text": case.text, "seed": seed})
    else:
        _print(results(), cases)
    if svg is not None:
        from dewmark.cli.terminal import save_svg

        save_svg(svg, lambda console: _draw(console, cases[:2]), title="dewmark demo")
        say(f"wrote {svg}", quiet=quiet)
    wrong = [case.name for case in cases if not case.right]
    if wrong:
        say(
            f"dewmark: not as it should be: {', '.join(wrong)}. By design one unmarked text in a hundred "
            "gets p < 0.01: run the demo again, and report it if this keeps happening"
        )
        raise typer.Exit(1)


def _run(key: Key, wrong_key: Key, seed: int, *, progress: Progress, quiet: bool) -> list[Case]:
    """Load, write and detect, with the time of each stage told."""
    from dewmark.decoding import Decoding
    from dewmark.types import Verdict

    clock = _Clock(progress, quiet=quiet)
    watermark = load_watermark(key, host=None, scheme=None, settings=None, progress=progress)
    marked_writer = Writer.marked(watermark)
    unmarked_writer = Writer(None, watermark.scheme.host, lambda: marked_writer.host)
    _ = marked_writer.host
    clock.told(f"key {key.fingerprint}, {watermark.scheme.host.name}: ready in")
    decoding = Decoding(max_new_tokens=TOKENS, min_new_tokens=TOKENS, top_p=TOP_P, no_repeat_ngram=4)
    progress(f"writing {TOKENS} tokens, twice", 0, 0)
    marked, unmarked = (
        writer.write([PROMPT], seeds=[seed], decoding=decoding)[0].text
        for writer in (marked_writer, unmarked_writer)
    )
    clock.told(f"a marked and an unmarked text of {TOKENS} tokens written in")
    human = human_paragraph()
    found = watermark.detect_batch([marked, unmarked, human], prompts=[PROMPT, PROMPT, None])
    clock.told("three texts scored in")
    other = load_watermark(wrong_key, host=None, scheme=None, settings=None, progress=progress)
    found.append(other.detect(marked, prompt=PROMPT))
    clock.told(f"wrong key {wrong_key.fingerprint} tried in")
    return [
        Case("marked text", PROMPT, marked, found[0], Verdict.MARKED),
        Case("unmarked text", PROMPT, unmarked, found[1], Verdict.NOT_MARKED),
        Case("human paragraph", "", human, found[2], Verdict.NOT_MARKED),
        Case("wrong key", PROMPT, marked, found[3], Verdict.NOT_MARKED),
    ]


def human_paragraph() -> str:
    """The opening of Moby-Dick: the file's first paragraph, the source stands below it."""
    file = resources.files("dewmark") / "data" / "human.txt"
    return file.read_text(encoding="utf-8").split("\n\n", 1)[0]


class _Clock:
    """Tells how long each stage took."""

    def __init__(self, progress: Progress, *, quiet: bool) -> None:
        self._progress, self._quiet = progress, quiet
        self._last = time.perf_counter()

    def told(self, what: str) -> None:
        now = time.perf_counter()
        self._progress.clear()
        say(f"{what} {now - self._last:.1f} s", quiet=self._quiet)
        self._last = now


def _print(console: Console, cases: list[Case]) -> None:
    _draw(console, cases[:2])
    from rich.table import Table

    from dewmark.reports.detection_display import p_value

    table = Table("text", "verdict", "p-value", "z", "effective length", "right", box=None)
    for case in cases:
        found = case.detection
        table.add_row(
            case.name,
            found.verdict.value,
            p_value(found.p_value).removeprefix("p = "),
            f"{found.z:.2f}",
            f"{found.effective_length:.0f} of {found.tokens_scored}",
            "yes" if case.right else "NO",
        )
    console.print(table, soft_wrap=False)


def _draw(console: Console, cases: list[Case]) -> None:
    from rich.text import Text

    from dewmark.cli.terminal import colour_tokens, legend, verdict_line

    for case in cases:
        console.print(verdict_line(case.name, case.detection))
        console.print(
            Text.assemble((printable(case.prompt), "dim"), colour_tokens(console, case.text, case.detection))
        )
        console.print()
    console.print(legend(console))
    console.print()
