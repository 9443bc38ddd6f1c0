"""Detections for people: a verdict on one line, tokens coloured by their scores; both as a page, too.

Token backgrounds are pastel with black text, so that they are readable on dark and light terminals.
Rich honours NO_COLOR.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dewmark.cli.terminal import printable, save_text
from dewmark.reports.detection_display import PAGE_CAVEATS, coverage_sentence, level, sentence, spans
from dewmark.reports.html_page import escape, html_page
from dewmark.types import Detection, Verdict

Drawing = Callable[[Console], None]

_BACKGROUND = {  # the desk's blue and orange, which colour-blind readers tell apart
    -4: "#ecad6d",
    -3: "#f1c293",
    -2: "#f6d7b8",
    -1: "#fbecde",
    0: "#f2f2ee",
    1: "#e4e9f7",
    2: "#c4d0ee",
    3: "#a5b7e6",
    4: "#859edd",
}
_VERDICT = {
    Verdict.MARKED: "bold blue",
    Verdict.NOT_MARKED: "bold",
    Verdict.TOO_SHORT: "bold yellow",
    Verdict.UNSUPPORTED_LANGUAGE: "bold yellow",
}
STYLES = {step: f"#000000 on {colour}" for step, colour in _BACKGROUND.items()}
"""The style of each colour step."""


def colour_tokens(text: str, detection: Detection) -> Text:
    """The text with each token's background set by its score; tokens without a score are dim."""
    coloured = Text()
    for span in spans(text, detection.tokens):
        coloured.append(printable(span.text), style=STYLES[level(span.score)] if span.scored else "dim")
    return coloured


def legend() -> Text:
    """The legend of the token colours."""
    return Text.assemble(
        ("token scores ", "dim"),
        (" against a mark ", STYLES[-4]),
        ("  −  ", STYLES[-2]),
        (" near 0 ", STYLES[0]),
        ("  +  ", STYLES[2]),
        (" for a mark ", STYLES[4]),
        ("  not scored", "dim"),
    )


def verdict_line(name: str, detection: Detection) -> Text:
    """``name: verdict, where: numbers`` on one line."""
    return Text.assemble(
        f"{printable(name)}: ",
        (detection.words, _VERDICT[detection.verdict]),
        detection.origin,
        f", {coverage_sentence(detection.coverage)}" if detection.coverage else "",
        f": {sentence(detection)}",
    )


def save_html(path: Path, title: str, drawings: Iterable[Drawing]) -> None:
    """Save what each drawing prints as one page, with what a verdict does not mean.

    The scored texts are untrusted: they are escaped, and the page's policy forbids scripts and requests.
    """
    body = f"<h1>{escape(title)}</h1>\n"
    for draw in drawings:
        console = recorder(soft_wrap=True)
        draw(console)
        shown = console.export_html(code_format="{code}", inline_styles=True)
        body += f'<article><pre dir="auto">{shown}</pre></article>\n'
    caveats = "".join(f"<li>{escape(each)}</li>" for each in PAGE_CAVEATS)
    style = "pre { font: inherit; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }"
    page = html_page(title, f"{body}<h2>What a verdict does not mean</h2>\n<ul>{caveats}</ul>\n", style=style)
    save_text(path, page)


def recorder(*, width: int = 100, soft_wrap: bool = False) -> Console:
    """A console that prints nothing and remembers everything."""
    return Console(
        record=True,
        width=width,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=soft_wrap,
    )
