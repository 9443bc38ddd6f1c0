"""Cut a text into the pieces that are shown in one colour, whatever its tokenizer's offsets look like.

Byte-level pieces of one character share that character's offsets, some tokens stand for no character at all,
and some characters belong to no token. The spans made here join up to the text exactly, once.

How a detection is put into words, the same on a page and in a terminal.

Detections as one self-contained page: verdict cards and coloured tokens, no script, no outside request.

Marked passages, where they were looked for, are framed and numbered in the text and told in a list above it,
so that neither colour nor a pointer is needed to find them. The scored text is untrusted: it is inserted
escaped, and the page's policy forbids scripts and fetches.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dewmark import storage
from dewmark.types import Detection, TokenScore, Verdict
from dewmark.version import __version__

if TYPE_CHECKING:
    from dewmark.passages import Located, Passage

__all__ = [
    "CAVEATS",
    "LEVELS",
    "PASSAGE_CAVEATS",
    "Span",
    "count_of",
    "grouped",
    "level",
    "located",
    "one_in",
    "p_value",
    "passage",
    "render_html",
    "sentence",
    "spans",
    "write_html",
]

LEVELS = 4

_STEP = 0.6


@dataclass(frozen=True, slots=True)
class Span:
    """Some characters of a text and the tokens that share them, in order; no tokens where none has them."""

    text: str
    tokens: tuple[TokenScore, ...]

    @property
    def scored(self) -> bool:
        """Whether any of the tokens carries evidence."""
        return any(token.scored for token in self.tokens)

    @property
    def score(self) -> float:
        """Σu/√n over the scored tokens: standard normal on unmarked text, like a single token's score."""
        scores = [token.score for token in self.tokens if token.scored]
        return sum(scores) / math.sqrt(len(scores)) if scores else 0.0


def spans(text: str, tokens: Iterable[TokenScore]) -> list[Span]:
    """Partition ``text``: the spans' texts joined give the text back."""
    pieces: list[Span] = []
    group: list[TokenScore] = []
    start = end = 0  # of the characters that the group holds

    def close() -> None:
        if group and end > start:
            pieces.append(Span(text[start:end], tuple(group)))
            group.clear()

    for token in sorted(tokens, key=lambda token: token.start):
        first, last = (min(max(offset, 0), len(text)) for offset in (token.start, token.end))
        if first >= end and last > first:
            close()  # a group of tokens without characters stays open and joins the next characters
            if first > end:
                pieces.append(Span(text[end:first], ()))
            start, end = first, last
        group.append(token)
        if last > first:
            end = max(end, last)
    close()
    if end < len(text):
        pieces.append(Span(text[end:], ()))
    return pieces


def grouped(pieces: Iterable[Span], places: Sequence[tuple[int, int]]) -> list[tuple[int | None, list[Span]]]:
    """Group spans by the place they lie in: (index of the place or None, its spans), in order.

    ``places`` are disjoint (start, end) character offsets, in order. A span that only touches a place belongs
    to it, to the first if it touches two.
    """
    groups: list[tuple[int | None, list[Span]]] = []
    at = 0
    for piece in pieces:
        end = at + len(piece.text)
        place = next((i for i, (first, last) in enumerate(places) if at < last and end > first), None)
        if groups and groups[-1][0] == place:
            groups[-1][1].append(piece)
        else:
            groups.append((place, [piece]))
        at = end
    return groups


def level(score: float) -> int:
    """The colour step of a score, −4 … 4: 0 near 0, ±4 beyond ±2.1 (2% of unmarked tokens on each side)."""
    if not math.isfinite(score):
        return 0
    return max(-LEVELS, min(LEVELS, round(score / _STEP)))


CAVEATS = (
    "“Marked” means that unmarked text rarely scores this high: about once in 1/p texts, for a random key.",
    "It is evidence, not proof: of many unmarked texts some pass any threshold.",
    "It does not say who wrote the text, nor why.",
    "“Not marked” means that no mark of this key was found. It does not mean that a person wrote the text:",
    "another model, another key or heavy rewriting leaves no mark that this detector can see.",
    "“Too short” means that the text holds too few independent tokens for any verdict.",
)

PASSAGE_CAVEATS = (
    "A passage’s p-value counts all the passages that were tried: for what share of keys anything in an",
    "unmarked text would look as striking. A passage is where the evidence lies: its first and last words",
    "may be off by a sentence or two, and short marked stretches may go unseen.",
)


def p_value(value: float) -> str:
    """A p-value with two significant digits."""
    if not math.isfinite(value):
        return "p unknown"
    return "p < 1e-300" if value < 1e-300 else f"p = {value:.2g}"


def one_in(value: float) -> str:
    """A p-value as a share: ``40 in 100``, or ``1 in N`` below a tenth, N to two significant digits."""
    if not math.isfinite(value):
        return "an unknown share"
    if value < 1e-300:
        return "fewer than 1 in 10^300"
    if value >= 0.1:
        return f"{100 * value:.0f} in 100"
    n = 1.0 / value
    if n >= 1e9:
        exponent = math.floor(math.log10(n))
        return f"1 in 10^{exponent}"
    scale = 10.0 ** max(math.floor(math.log10(n)) - 1, 0)
    return f"1 in {round(n / scale) * scale:,.0f}"


def sentence(detection: Detection) -> str:
    """The numbers behind a verdict, in one line."""
    length = f"effective length {detection.effective_length:.0f} of {detection.tokens_scored} tokens scored"
    if detection.verdict is Verdict.TOO_SHORT:
        return f"{length}: too few independent tokens for a verdict"
    verb = "score" if detection.p_value >= 0.1 else "scores"
    return (
        f"{p_value(detection.p_value)} ({one_in(detection.p_value)} unmarked texts {verb} this high), "
        f"z = {detection.z:.2f}, {length}"
    )


def located(found: Located) -> str:
    """What was found in a text, in one line."""
    share = f", about {100 * found.share:.0f}% of its tokens marked" if found.passages else ""
    whole = f"whole text {found.detection.verdict.value}, {p_value(found.detection.p_value)}"
    return f"{count_of(found.passages)} at level {found.fpr:g}{share}; {whole}"


def count_of(passages: Sequence[Passage]) -> str:
    """How many passages there are."""
    return {0: "no marked passage", 1: "1 marked passage"}.get(
        len(passages), f"{len(passages)} marked passages"
    )


def passage(found: Passage) -> str:
    """The numbers behind a passage, in one line."""
    return (
        f"characters {found.start} to {found.end}, {p_value(found.p_value)} over all passages tried, "
        f"z = {found.z:.2f}, {found.tokens} tokens, about {100 * found.share:.0f}% of them marked"
    )


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
    said = CAVEATS if passages is None else (*CAVEATS, *PASSAGE_CAVEATS)
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
        "p-value": p_value(detection.p_value).removeprefix("p = ").removeprefix("p "),
        "unmarked texts this high": one_in(detection.p_value),
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
        found = ("marked" if passages else "not marked", count_of(passages))
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
    rows = "".join(f"<li>{_escape(passage(each))}</li>" for each in passages)
    return f"<p>Marked passages:</p>\n<ol>{rows}</ol>\n"


def _group(place: int | None, inside: Sequence[Span], passages: Sequence[Passage]) -> str:
    if place is None:
        return "".join(_span(span) for span in inside)
    said = _escape(f"marked passage {place + 1}: {passage(passages[place])}")
    note = f"; in marked passage {place + 1}, {p_value(passages[place].p_value)}"
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
