"""Detections as an HTML page: one card per text with its verdict and coloured tokens.

Marked passages, if they were searched for, are framed and numbered in the text and listed above it, so that
they can be found without colour vision or a mouse. The scored text is untrusted: it is always escaped, and
the page's policy forbids scripts and requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dewmark import storage
from dewmark.reports.detection_display import (
    CAVEATS,
    LEVELS,
    PASSAGE_CAVEATS,
    Span,
    group_by_passage,
    level,
    one_in,
    p_value,
    passage_count,
    passage_sentence,
    spans,
)
from dewmark.reports.html_page import escape, html_page
from dewmark.text.languages import language_name
from dewmark.types import Detection

if TYPE_CHECKING:
    from dewmark.passages import Passage

# (red, green, blue) of each colour, as in the desk, and the opacity at each level.
_FOR, _AGAINST = "59, 99, 200", "224, 122, 20"
_OPACITY = {1: 0.14, 2: 0.30, 3: 0.46, 4: 0.62}

_STYLE = """
main { max-width: 52rem; } h2 { margin: 0; overflow-wrap: anywhere; }
.marked, .not-marked, .too-short, .unsupported-language { background: #43536f; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .5rem 1rem; }
dt, footer, .caveat, .legend { color: var(--soft); font-size: .85rem; } dd { margin: 0; font-weight: 600; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate;
  border-top: 1px solid var(--line); padding-top: .75rem; }
.text span, .legend span { border-radius: 3px; } .u { color: var(--soft); opacity: .75; }
.legend span { padding: 0 .4rem; color: var(--ink); }
.p2, .p3, .p4 { border-bottom: 2px solid #3457b2; } .m2, .m3, .m4 { border-bottom: 2px dotted #9a4a06; }
.passage { border: 2px solid #3457b2; border-radius: 4px; padding: .1rem .15rem;
  box-decoration-break: clone; -webkit-box-decoration-break: clone; }
.passage::before { content: attr(data-number); background: #3457b2; color: #fff; font-size: .7rem;
  font-weight: 700; padding: 0 .35rem; margin-right: .2rem; border-radius: 99px; vertical-align: .15rem; }
"""

_LEGEND = (
    '<p class="legend">Token scores: <span class="m4">against a mark</span> '
    '<span class="m2">&nbsp;</span> <span>near 0</span> '
    '<span class="p2">&nbsp;</span> <span class="p4">for a mark</span> '
    '<span class="u">not scored</span>. Hover over a token for its score. In unmarked text, scores are '
    "standard normal, so half of them are blue there too.</p>\n"
)


def write_html(
    path: Path,
    items: Sequence[tuple[str, str, Detection]],
    *,
    passages: Sequence[Sequence[Passage]] | None = None,
) -> None:
    """Write the page for (id, text, detection) items atomically.

    ``passages`` holds the marked passages of each item; None if they were not searched for.
    """
    with storage.atomic_write(path) as stream:
        stream.write(render_html(items, passages=passages).encode("utf-8"))


def render_html(
    items: Sequence[tuple[str, str, Detection]], *, passages: Sequence[Sequence[Passage]] | None = None
) -> str:
    """The page as a string."""
    texts = "1 text" if len(items) == 1 else f"{len(items)} texts"
    if passages is None:
        summary = f"{sum(detection.is_marked for _, _, detection in items)} of {texts} marked"
    else:
        summary = f"marked passages in {sum(map(bool, passages))} of {texts}"
    found = [None] * len(items) if passages is None else passages
    cards = "".join(_card(*item, mine) for item, mine in zip(items, found, strict=True))
    caveats = " ".join(CAVEATS if passages is None else (*CAVEATS, *PASSAGE_CAVEATS))
    body = (
        f"<h1>Watermark detection: {summary}</h1>\n{_LEGEND}{cards}"
        f"<section>\n<h2>What a verdict does not mean</h2>\n"
        f'<p class="caveat">{escape(caveats)}</p>\n</section>\n'
    )
    return html_page(f"dewmark: {summary}", body, style=_STYLE + _level_styles())


def _level_styles() -> str:
    rules = (
        f".{sign}{step} {{ background: rgba({colour}, {_OPACITY[step]}); }}"
        for sign, colour in (("p", _FOR), ("m", _AGAINST))
        for step in range(1, LEVELS + 1)
    )
    return "\n".join(rules) + "\n"


def _card(name: str, text: str, detection: Detection, passages: Sequence[Passage] | None) -> str:
    verdict, looks = detection.verdict.words, str(detection.looks)
    numbers = {
        "p-value": p_value(detection.p_value).removeprefix("p = ").removeprefix("p "),
        "keys that would score it so high": one_in(detection.p_value),
        "z": f"{detection.z:.2f}",
        "effective length": f"{detection.effective_length:.0f} of {detection.tokens_scored} tokens",
        "test": f"{detection.test}{looks and f', corrected for {looks}'}, level {detection.fpr:g}",
        "scheme and key": f"{detection.scheme}, {detection.key_fingerprint}",
    }
    if detection.language is not None:
        known = "" if detection.language_known else ", which the detector does not know"
        numbers["language"] = language_name(detection.language) + known
    if not detection.verdict.conclusive:
        for number in ("p-value", "keys that would score it so high", "z"):
            del numbers[number]
    rows = "".join(
        f"<div><dt>{escape(term)}</dt><dd>{escape(value)}</dd></div>" for term, value in numbers.items()
    )
    groups = group_by_passage(
        spans(text, detection.tokens), [(each.start, each.end) for each in passages or ()]
    )
    body = "".join(_group(place, inside, passages or ()) for place, inside in groups)
    badges = [(verdict, verdict)]
    if passages is not None:
        found = ("marked" if passages else "not marked", passage_count(passages))
        badges = [found, (verdict, f"whole text: {verdict}")]
    badge = " ".join(f'<span class="badge {kind.replace(" ", "-")}">{label}</span>' for kind, label in badges)
    return (
        f"<article>\n<h2><bdi>{escape(name)}</bdi> {badge}</h2>\n<dl>{rows}</dl>\n{_passage_list(passages)}"
        f'<div class="text" dir="auto">{body}</div>\n</article>\n'
    )


def _passage_list(passages: Sequence[Passage] | None) -> str:
    """The passages in words, for readers who cannot see the frames."""
    if not passages:
        return ""
    rows = "".join(f"<li>{escape(passage_sentence(each))}</li>" for each in passages)
    return f"<p>Marked passages:</p>\n<ol>{rows}</ol>\n"


def _group(place: int | None, inside: Sequence[Span], passages: Sequence[Passage]) -> str:
    if place is None:
        return "".join(map(_span, inside))
    label = escape(f"marked passage {place + 1}: {passage_sentence(passages[place])}")
    note = f"; in marked passage {place + 1}, {p_value(passages[place].p_value)}"
    body = "".join(_span(span, note) for span in inside)
    return (
        f'<span class="passage" role="group" data-number="{place + 1}" title="{label}" aria-label="{label}">'
        f"{body}</span>"
    )


def _span(span: Span, note: str = "") -> str:
    """One span; ``note`` is added to its tooltip, which hides the tooltip of the passage around it."""
    if not span.tokens:
        return escape(span.text)
    if not span.scored:
        return f'<span class="u" title="not scored{escape(note)}">{escape(span.text)}</span>'
    step = level(span.score)
    colour = f' class="{"p" if step > 0 else "m"}{abs(step)}"' if step else ""
    title = "; ".join(
        f"{token.text!r}: " + (f"{token.score:+.2f}" if token.scored else "not scored")
        for token in span.tokens
    )
    return f'<span{colour} title="{escape(title + note)}">{escape(span.text)}</span>'
