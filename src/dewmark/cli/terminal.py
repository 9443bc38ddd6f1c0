"""Where the command line writes: results to stdout, chatter to stderr, JSON one object a line.

Progress on stderr: a bar in a terminal, now and then a plain line elsewhere, nothing when quiet.

Coloured tokens in a terminal, and as an SVG picture of one.

Backgrounds are pastel and their text black, so that both read well on dark and light terminals. A terminal of
16 colours, where pastels would all be white, gets fewer and plainer steps; NO_COLOR is honoured by rich.
"""

from __future__ import annotations

import io
import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from dewmark import storage
from dewmark.reports.detection_display import level, sentence, spans
from dewmark.types import Detection, Verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

__all__ = [
    "Progress",
    "colour_tokens",
    "emit",
    "legend",
    "printable",
    "results",
    "save_svg",
    "say",
    "styles",
    "token_table",
    "verdict_line",
    "write",
]

# C0 and C1 controls but tab and newline: a scored text must not move the reader's cursor or set its title.
_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)
}

# Line ends of Unicode that JSON leaves as they are: many readers would cut a line there.
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}


def emit(row: Mapping[str, Any]) -> None:
    """Print one JSON object on one line of stdout."""
    write(json.dumps(row, ensure_ascii=False).translate(_LINE_ENDS) + "\n")


def write(text: str) -> None:
    """Write text to stdout as UTF-8, whatever the locale says, and flush it."""
    sys.stdout.flush()
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:
        sys.stdout.write(text)
    else:
        stream.write(text.encode("utf-8", "replace"))
    sys.stdout.flush()


def say(line: str, *, quiet: bool = False) -> None:
    """Print one line of chatter to stderr."""
    if not quiet:
        sys.stderr.write(line.translate(_CONTROLS) + "\n")
        sys.stderr.flush()


def results() -> Console:
    """A rich console on stdout that adds nothing of its own; NO_COLOR is honoured by rich."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def printable(text: str) -> str:
    """The text with control characters replaced, safe to show in a terminal."""
    return text.replace("\r\n", "\n").translate(_CONTROLS)


_INTERVAL = 5.0  # seconds between two plain lines of one piece of work

_MANY = 10_000  # totals from here on are bytes or the like: only the percentage is told


class Progress:
    """Call it with (description, done, total); a total of 0 means that nobody knows.

    Used as a context manager it takes its bars away at the end. It fits ``Workspace.progress``.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._told: dict[str, float] = {}  # when each piece of work was last told of, monotonic seconds
        self._finished: set[str] = set()

    def __call__(self, description: str, done: int, total: int) -> None:
        """Tell how far a piece of work is."""
        if self._quiet:
            return
        if self._terminal:
            self._draw(description, done, total)
        else:
            self._tell(description, done, total)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """Take the bars off the screen, so that results can be printed; the next call draws them again."""
        if self._bars is not None:
            self._bars.stop()
        self._bars = None
        self._tasks = {}

    def _draw(self, description: str, done: int, total: int) -> None:
        if self._bars is None:
            self._bars = _bars()
            self._bars.start()
        known = float(total) if total > 0 else None
        if description not in self._tasks:
            self._tasks[description] = self._bars.add_task(description, total=known)
        self._bars.update(self._tasks[description], completed=done, total=known)

    def _tell(self, description: str, done: int, total: int) -> None:
        now, finished = time.monotonic(), 0 < total <= done
        if finished:
            if description in self._finished:
                return
            self._finished.add(description)
        elif now - self._told.get(description, -_INTERVAL) < _INTERVAL:
            return
        self._told[description] = now
        if total <= 0:
            amount = f"{done}" if done else "…"
        elif total >= _MANY:
            amount = f"{100 * done // total}%"
        else:
            amount = f"{done} of {total}"
        sys.stderr.write(f"{description}: {amount}\n")
        sys.stderr.flush()


def _bars() -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        # Results may go to a pipe while bars go to the terminal: the streams must stay apart.
        redirect_stdout=False,
        redirect_stderr=False,
    )


_BACKGROUND = {
    -4: "#ff8a75",
    -3: "#ffab9b",
    -2: "#ffc9be",
    -1: "#ffe4de",
    0: "#f2f2ee",
    1: "#dcf3e0",
    2: "#b8e6c2",
    3: "#8fd8a2",
    4: "#5fc97d",
}

_VERDICT = {Verdict.MARKED: "bold green", Verdict.NOT_MARKED: "bold", Verdict.TOO_SHORT: "bold yellow"}

_PASTEL = {step: f"#000000 on {colour}" for step, colour in _BACKGROUND.items()}

_PLAIN = {
    **dict.fromkeys((-4, -3), "black on bright_red"),
    **dict.fromkeys((-2, -1), "red"),
    0: "",
    **dict.fromkeys((1, 2), "green"),
    **dict.fromkeys((3, 4), "black on bright_green"),
}


def styles(console: Console) -> dict[int, str]:
    """The style of each colour step that the console can show."""
    return _PLAIN if console.color_system in ("standard", "windows") else _PASTEL


def colour_tokens(console: Console, text: str, detection: Detection) -> Text:
    """The text with each token's background set by its score; tokens without a score are dim."""
    steps = styles(console)
    coloured = Text()
    for span in spans(text, detection.tokens):
        coloured.append(printable(span.text), style=steps[level(span.score)] if span.scored else "dim")
    return coloured


def legend(console: Console) -> Text:
    """What the colours mean."""
    steps = styles(console)
    return Text.assemble(
        ("token scores ", "dim"),
        (" against a mark ", steps[-4]),
        ("  −  ", steps[-2]),
        (" near 0 ", steps[0]),
        ("  +  ", steps[2]),
        (" for a mark ", steps[4]),
        ("  not scored", "dim"),
    )


def verdict_line(name: str, detection: Detection) -> Text:
    """``name: verdict, numbers`` on one line."""
    return Text.assemble(
        f"{printable(name)}: ",
        (detection.verdict.value, _VERDICT[detection.verdict]),
        f": {sentence(detection)}",
    )


def token_table(detection: Detection) -> str:
    """Tokens as plain tab-separated lines: start, end, score, token."""
    return "".join(
        f"{token.start}\t{token.end}\t{f'{token.score:+.3f}' if token.scored else '-'}\t{token.text!r}\n"
        for token in detection.tokens
    )


def save_svg(path: Path, draw: Callable[[Console], None], *, title: str, width: int = 100) -> None:
    """Write what ``draw`` prints as an SVG picture of a terminal, which loads nothing from elsewhere."""
    console = Console(
        record=True,
        width=width,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    draw(console)
    svg = console.export_svg(title=title, unique_id="dewmark")
    # rich names a web font; the reader's own monospace font serves as well, and nothing is fetched.
    svg = re.sub(r"@font-face\s*\{[^}]*\}", "", svg)
    with storage.atomic_write(path) as stream:
        stream.write(svg.encode("utf-8"))
