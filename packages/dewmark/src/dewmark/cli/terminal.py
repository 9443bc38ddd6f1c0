"""Output: results on stdout, messages and progress on stderr, and files.

JSON is printed one object per line. Progress is a bar in a terminal, an occasional plain line elsewhere, and
nothing with --quiet.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

from dewmark.errors import StorageError
from dewmark.text.printing import BIDIRECTIONAL, printable
from dewmark.version import __version__

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID
    from rich.segment import Segment

__all__ = [
    "Progress",
    "check_writable",
    "document_on_stdout",
    "emit",
    "output",
    "printable",
    "results",
    "save_json",
    "save_text",
    "say",
    "write",
]

# JSON escapes none of these, nor two line ends of Unicode where many readers split lines.
_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(127, 160), *BIDIRECTIONAL, 0x2028, 0x2029)}

_INTERVAL = 5.0  # seconds between two plain lines about the same work
_MANY = 10_000  # totals from here on, such as bytes, are shown as a percentage


def emit(row: Mapping[str, Any]) -> None:
    """Print one JSON object, with the version of dewmark, on one line of stdout."""
    row = {**row, "version": __version__}
    write(json.dumps(row, ensure_ascii=False).translate(_ESCAPES) + "\n")


def write(text: str) -> None:
    """Write text to stdout as UTF-8, whatever the locale, and flush it; a terminal gets `printable` text."""
    if sys.stdout.isatty():
        text = printable(text)
    sys.stdout.flush()
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:
        sys.stdout.write(text)
    else:
        stream.write(text.encode("utf-8", "replace"))
    sys.stdout.flush()


def say(line: str, *, quiet: bool = False) -> None:
    """Print one line to stderr."""
    if not quiet:
        sys.stderr.write(printable(line) + "\n")
        sys.stderr.flush()


def results() -> Console:
    """A rich console on stdout that interprets no markup, and prints no controls but its own."""
    from rich.console import Console

    class Printable(Console):
        def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:  # noqa: ANN401 - as rich has it
            """The segments as rich has them, with the controls in texts replaced."""
            for each in super().render(*arguments, **options):
                yield each if each.control else each._replace(text=printable(each.text))

    return Printable(highlight=False, markup=False, emoji=False, soft_wrap=True)


class Progress:
    """Shows progress: call it with (description, done, total), where a total of 0 means unknown.

    As a context manager it removes its bars at the end. It is a `dewmark.workspace.Progress`.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._printed: dict[str, float] = {}  # when each description was last printed, monotonic seconds
        self._finished: set[str] = set()

    def __call__(self, description: str, done: int, total: int) -> None:
        """Report progress."""
        if self._quiet:
            return
        if self._terminal:
            self._draw(description, done, total)
        else:
            self._print(description, done, total)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove the bars so that results can be printed; the next call draws them again."""
        if self._bars is not None:
            self._bars.stop()
        self._bars = None
        self._tasks = {}

    def _draw(self, description: str, done: int, total: int) -> None:
        if self._bars is None:
            from rich.console import Console
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars

            label = TextColumn("{task.description}", markup=False)
            columns = (label, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
            self._bars = Bars(
                *columns,
                console=Console(stderr=True),
                transient=True,
                # results may go to a pipe while bars go to the terminal
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bars.start()
        known = float(total) if total > 0 else None
        if description not in self._tasks:
            self._tasks[description] = self._bars.add_task(description, total=known)
        self._bars.update(self._tasks[description], completed=done, total=known)

    def _print(self, description: str, done: int, total: int) -> None:
        now, finished = time.monotonic(), 0 < total <= done
        if finished:
            if description in self._finished:
                return
            self._finished.add(description)
        elif now - self._printed.get(description, -_INTERVAL) < _INTERVAL:
            return
        self._printed[description] = now
        if total <= 0:
            amount = f"{done}" if done else "…"
        elif total >= _MANY:
            amount = f"{100 * done // total}%"
        else:
            amount = f"{done} of {total}"
        say(f"{description}: {amount}")


STDOUT = Path("-")
_document: ContextVar[TextIO | None] = ContextVar("stdout while results go to stderr", default=None)


@contextlib.contextmanager
def document_on_stdout() -> Iterator[None]:
    """Leave stdout to the document that `output` writes there: results go to stderr meanwhile."""
    token = _document.set(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _document.reset(token)


@contextlib.contextmanager
def output(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Open the file that a user named for output; ``-`` is stdout. Files appear complete or not at all."""
    from dewmark import storage

    if path != STDOUT:
        with storage.atomic_write(path, private=private) as stream:
            yield stream
        return
    document = _document.get() or sys.stdout
    document.flush()
    yield document.buffer
    document.flush()


def check_writable(path: Path, *, folder: bool = False) -> None:
    """Raise `StorageError` unless a file or folder can be written at ``path``, before any work begins."""
    from dewmark import storage

    place, mode = storage.output_place(path, folder=folder)
    parent = place if folder and mode is not None else place.parent
    while not parent.exists():
        parent = parent.parent
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}: {parent}") from None


def save_text(path: Path, text: str) -> None:
    """Write a text, as UTF-8, to where a user named."""
    with output(path) as stream:
        stream.write(text.encode("utf-8", "backslashreplace"))


def save_json(path: Path, data: object) -> None:
    """Write JSON to where a user named."""
    save_text(path, json.dumps(data, indent=1) + "\n")
