"""Detections as one self-contained page: verdict cards and coloured tokens, no script, no outside request.

Marked passages, where they were looked for, are framed and numbered in the text and told in a list above it,
so that neither colour nor a pointer is needed to find them. The scored text is untrusted: it is inserted
escaped, and the page's policy forbids scripts and fetches.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dewmark import __version__, storage
from dewmark.reports import words
from dewmark.reports.spans import LEVELS, Span, grouped, level, spans
from dewmark.types import Detection, Verdict

if TYPE_CHECKING:
    from dewmark.passages import Passage

__all__ = ["render_html", "write_html"]

# No scripts, no fonts, no images; styles only from this page's own <style>.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

# The strongest step of each colour, as (red, green, blue) and the opacity at each step.
_GREEN, _RED = "22, 163, 74", "220, 64, 38"
_OPACITY = {1: 0.14, 2: 0.30, 3: 0.46, 4: 0.62}

_STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f8; --card: #fff; --ink: #16181d; --soft: #5b616e; --line: #dcdfe4; }
@media (prefers-color-scheme: dark) {
  :root { --page: #111317; --card: #1a1d23; --ink: #e8eaee; --soft: #9aa1ad; --line: #30353e; }
}
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.6 system-ui, sans-serif; }
main { max-width: 52rem; margin: 0 auto; padding: 2rem 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 0; overflow-wrap: anywhere; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1rem 1.25rem; margin: 1.25rem 0; }
.verdict { display: inline-block; padding: .1rem .7rem; border-radius: 99px; font-weight: 600; color: #fff; }
.marked { background: #15803d; } .not-marked { background: #4b5563; } .too-short { background: #b45309; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .5rem 1rem; }
dt, footer, .caveat, .legend { color: var(--soft); font-size: .85rem; } dd { margin: 0; font-weight: 600; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate;
  border-top: 1px solid var(--line); padding-top: .75rem; }
.text span, .legend span { border-radius: 3px; } .u { color: var(--soft); opacity: .75; }
.legend span { padding: 0 .4rem; color: var(--ink); }
.passage { border: 2px solid #15803d; border-radius: 4px; padding: .1rem .15rem;
  box-decoration-break: clone; -webkit-box-decoration-break: clone; }
.passage::before { content: attr(data-number); background: #15803d; color: #fff; font-size: .7rem;
  font-weight: 700; padding: 0 .35rem; margin-right: .2rem; border-radius: 99px; vertical-align: .15rem; }
"""


def write_html(
    path: Path,
    items: Sequence[tuple[str, str, Detection]],
    *,
    passages: Sequence[Sequence[Passage]] | None = None,
) -> None:
    """Write the page for (id, text, detection) items; the file appears whole or not at all.

    ``passages``, one sequence per item, are those in which a mark was located; None if nobody looked.
    """
    with storage.atomic_write(path) as stream:
        stream.write(render_html(items, passages=passages).encode("utf-8"))


def render_html(
    items: Sequence[tuple[str, str, Detection]], *, passages: Sequence[Sequence[Passage]] | None = None
) -> str:
    """The page as a string."""
    found = [None] * len(items) if passages is None else passages
    cards = "".join(_card(*item, mine) for item, mine in zip(items, found, strict=True))
    summary = _summary(items) if passages is None else _summary_of_passages(passages)
    said = words.CAVEATS if passages is None else (*words.CAVEATS, *words.PASSAGE_CAVEATS)
    caveats = f'<p class="caveat">{_escape(" ".join(said))}</p>\n'
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>dewmark: {summary}</title>\n<style>{_STYLE}{_level_styles()}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>Watermark detection: {summary}</h1>\n{_legend()}{cards}"
        f"<section>\n<h2>What a verdict does not mean</h2>\n{caveats}</section>\n"
        f"<footer>dewmark {__version__}</footer>\n</main>\n</body>\n</html>\n"
    )


def _summary(items: Sequence[tuple[str, str, Detection]]) -> str:
    marked = sum(detection.is_marked for _, _, detection in items)
    texts = "1 text" if len(items) == 1 else f"{len(items)} texts"
    return f"{marked} of {texts} marked"


def _summary_of_passages(passages: Sequence[Sequence[Passage]]) -> str:
    texts = "1 text" if len(passages) == 1 else f"{len(passages)} texts"
    return f"marked passages in {sum(map(bool, passages))} of {texts}"


def _level_styles() -> str:
    rules = (
        f".{sign}{step} {{ background: rgba({colour}, {_OPACITY[step]}); }}"
        for sign, colour in (("p", _GREEN), ("m", _RED))
        for step in range(1, LEVELS + 1)
    )
    return "\n".join(rules) + "\n"


def _legend() -> str:
    return (
        '<p class="legend">Token scores: <span class="m4">against a mark</span> '
        '<span class="m2">&nbsp;</span> <span>near 0</span> '
        '<span class="p2">&nbsp;</span> <span class="p4">for a mark</span> '
        '<span class="u">not scored</span>. Hover over a token for its score: on unmarked text scores are '
        "standard normal, so half of them are green there too.</p>\n"
    )


def _card(name: str, text: str, detection: Detection, passages: Sequence[Passage] | None) -> str:
    verdict = detection.verdict.value
    numbers = {
        "p-value": words.p_value(detection.p_value).removeprefix("p = ").removeprefix("p "),
        "unmarked texts this high": words.one_in(detection.p_value),
        "z": f"{detection.z:.2f}",
        "effective length": f"{detection.effective_length:.0f} of {detection.tokens_scored} tokens",
        "test": f"{detection.test}, level {detection.fpr:g}",
        "scheme and key": f"{detection.scheme}, {detection.key_fingerprint}",
    }
    if detection.verdict is Verdict.TOO_SHORT:
        del numbers["unmarked texts this high"]
    rows = "".join(
        f"<div><dt>{_escape(term)}</dt><dd>{_escape(value)}</dd></div>" for term, value in numbers.items()
    )
    pieces = grouped(spans(text, detection.tokens), [(each.start, each.end) for each in passages or ()])
    body = "".join(_group(place, inside, passages or ()) for place, inside in pieces)
    badges = [(verdict, verdict)]
    if passages is not None:
        found = ("marked" if passages else "not marked", words.count_of(passages))
        badges = [found, (verdict, f"whole text: {verdict}")]
    badge = " ".join(f'<span class="verdict {kind.replace(" ", "-")}">{said}</span>' for kind, said in badges)
    return (
        f"<article>\n<h2><bdi>{_escape(name)}</bdi> {badge}</h2>\n<dl>{rows}</dl>\n{_list(passages)}"
        f'<div class="text" dir="auto">{body}</div>\n</article>\n'
    )


def _list(passages: Sequence[Passage] | None) -> str:
    """The passages in words, for those who cannot see them framed."""
    if not passages:
        return ""
    rows = "".join(f"<li>{_escape(words.passage(each))}</li>" for each in passages)
    return f"<p>Marked passages:</p>\n<ol>{rows}</ol>\n"


def _group(place: int | None, inside: Sequence[Span], passages: Sequence[Passage]) -> str:
    if place is None:
        return "".join(_span(span) for span in inside)
    said = _escape(f"marked passage {place + 1}: {words.passage(passages[place])}")
    note = f"; in marked passage {place + 1}, {words.p_value(passages[place].p_value)}"
    body = "".join(_span(span, note) for span in inside)
    return (
        f'<span class="passage" role="group" data-number="{place + 1}" title="{said}" aria-label="{said}">'
        f"{body}</span>"
    )


def _span(span: Span, note: str = "") -> str:
    """One span; ``note`` is added to its tooltip, which hides that of the passage around it."""
    if not span.tokens:
        return _escape(span.text)
    if not span.scored:
        return f'<span class="u" title="not scored{_escape(note)}">{_escape(span.text)}</span>'
    step = level(span.score)
    colour = f' class="{"p" if step > 0 else "m"}{abs(step)}"' if step else ""
    title = "; ".join(
        f"{token.text!r}: " + (f"{token.score:+.2f}" if token.scored else "not scored")
        for token in span.tokens
    )
    return f'<span{colour} title="{_escape(title + note)}">{_escape(span.text)}</span>'


def _escape(text: str) -> str:
    # A parser turns a bare carriage return into a line feed: as a reference it stays what it is.
    return html.escape(text, quote=True).replace("\r", "&#13;")
