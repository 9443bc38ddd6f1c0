"""``dewmark demo``: a fresh key, a marked text, and three texts that do not carry its mark."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from importlib import resources
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
TOKENS, TEMPERATURE, TOP_P = 250, 0.8, 0.9
SETTING = f"temperature {TEMPERATURE:g}, top-p {TOP_P:g}"


@dataclass(frozen=True)
class Case:
    """A text under a key, and the verdict that it should get."""

    name: str
    request: str
    text: str
    detection: Detection
    expected: Verdict

    @property
    def right(self) -> bool:
        """Whether the verdict is the expected one."""
        return self.detection.verdict is self.expected


def demo(
    seed: Annotated[int | None, typer.Option(min=0, show_default="random", help="Seed of the texts.")] = None,
    keep_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the key to a new file.")] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the texts as an SVG picture.")
    ] = None,
    host: options.Host = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Mark a text with a fresh key and detect it, then test three texts that do not carry the mark."""
    from dewmark.core.keys import Key

    key, wrong_key = Key.generate(), Key.generate()
    if keep_key is not None:
        key.save(keep_key)
    seed = secrets.randbelow(2**31) if seed is None else seed
    with Progress(quiet=quiet) as progress:
        cases = _run(key, wrong_key, seed, host=host, progress=progress, quiet=quiet)
    if json_:
        for case in cases:
            row = {
                "id": case.name,
                **case.detection.to_dict(),
                "expected": case.expected.value,
                "right": case.right,
            }
            emit({**row, "prompt": case.request, "text": case.text, "seed": seed})
    else:
        _print(results(), cases)
    if svg is not None:
        from dewmark.cli.token_colours import save_svg

        save_svg(svg, lambda console: _draw(console, cases[:2]), title="dewmark demo")
        say(f"wrote {svg}", quiet=quiet)
    wrong = [case.name for case in cases if not case.right]
    if wrong:
        say(
            f"dewmark: unexpected verdict: {', '.join(wrong)}. By design one unmarked text in a hundred gets "
            "p < 0.01: run the demo again, and please report it if this keeps happening"
        )
        raise typer.Exit(1)


def _run(
    key: Key, wrong_key: Key, seed: int, *, host: str | None, progress: Progress, quiet: bool
) -> list[Case]:
    """Load, write and detect, and report the time of each stage."""
    from dewmark.batch import TextWriter
    from dewmark.decoding import Decoding
    from dewmark.types import Verdict

    clock = _Clock(progress, quiet=quiet)
    watermark = options.load_watermark(key, host=host, scheme=None, settings=None, progress=progress)
    marked_writer = TextWriter.marked(watermark)
    model = marked_writer.host
    unmarked_writer = TextWriter(None, model.info, lambda: model)
    clock.lap(f"key {key.fingerprint}, {model.name}: ready in")
    prompt = marked_writer.chat.render([{"role": "user", "content": REQUEST}])
    decoding = Decoding(max_new_tokens=TOKENS, temperature=TEMPERATURE, top_p=TOP_P, no_repeat_ngram=4)
    progress(f"writing {TOKENS} tokens, twice", 0, 0)
    marked, unmarked = (
        writer.write([prompt], seeds=[seed], decoding=decoding)[0].text.strip()
        for writer in (marked_writer, unmarked_writer)
    )
    clock.lap(f"a marked and an unmarked text of up to {TOKENS} tokens written in")
    human = human_paragraph()
    found = watermark.detect_batch([marked, unmarked, human])
    clock.lap("three texts scored in")
    other = options.load_watermark(wrong_key, host=host, scheme=None, settings=None, progress=progress)
    found.append(other.detect(marked))
    clock.lap(f"wrong key {wrong_key.fingerprint} tested in")
    return [
        Case("marked text", REQUEST, marked, found[0], Verdict.MARKED),
        Case("unmarked text", REQUEST, unmarked, found[1], Verdict.NOT_MARKED),
        Case("human paragraph", "", human, found[2], Verdict.NOT_MARKED),
        Case("wrong key", REQUEST, marked, found[3], Verdict.NOT_MARKED),
    ]


def human_paragraph() -> str:
    """The opening of Moby-Dick: the first paragraph of the file, whose source is named below it."""
    file = resources.files("dewmark") / "data" / "human.txt"
    return file.read_text(encoding="utf-8").split("\n\n", 1)[0]


class _Clock:
    """Reports how long each stage took."""

    def __init__(self, progress: Progress, *, quiet: bool) -> None:
        self._progress, self._quiet = progress, quiet
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self._progress.clear()
        say(f"{stage} {now - self._last:.1f} s", quiet=self._quiet)
        self._last = now


def _print(console: Console, cases: list[Case]) -> None:
    from rich.table import Table

    from dewmark.reports.detection_display import p_value

    _draw(console, cases[:2])
    table = Table("text", "verdict", "p-value", "z", "effective length", "as expected", box=None)
    for case in cases:
        found = case.detection
        table.add_row(
            case.name,
            found.verdict.words,
            p_value(found.p_value).removeprefix("p = "),
            f"{found.z:.2f}",
            f"{found.effective_length:.0f} of {found.tokens_scored}",
            "yes" if case.right else "NO",
        )
    console.print(table, soft_wrap=False)


def _draw(console: Console, cases: list[Case]) -> None:
    from rich.text import Text

    from dewmark.cli.token_colours import colour_tokens, legend, verdict_line

    console.print(Text.assemble(("request: ", "bold"), printable(cases[0].request)))
    console.print(Text(SETTING, style="dim"))
    console.print()
    for case in cases:
        console.print(verdict_line(case.name, case.detection))
        console.print(colour_tokens(console, case.text, case.detection))
        console.print()
    console.print(legend(console))
    console.print()
