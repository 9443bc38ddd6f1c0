"""The page's modules against their Python counterparts: spans, colours and numbers in words."""

from __future__ import annotations

import random

import pytest
from scipy.stats import norm

from dewmark.reports.detection_display import group_by_passage, level, one_in, spans
from dewmark.types import TokenScore

pytestmark = pytest.mark.serve

LETTERS = "ab é世🌧\n"


def random_case(draw: random.Random) -> tuple[str, list[TokenScore], list[tuple[int, int]]]:
    """A text, tokens that overlap, are empty, leave gaps or exceed the text, and places in it."""
    text = "".join(draw.choices(LETTERS, k=draw.randint(1, 25)))
    tokens, at = [], 0
    while at < len(text) + 2:
        start = max(0, at - draw.choice([0, 0, 0, 1]))
        end = start + draw.choice([0, 1, 1, 2, 4])
        tokens.append(TokenScore("t", start, end, draw.gauss(0, 1.5), draw.random() < 0.9))
        at = max(at + draw.choice([0, 0, 1]), end)
    cuts = sorted(draw.sample(range(len(text) + 1), k=min(4, len(text) + 1)))
    return text, tokens, list(zip(cuts[::2], cuts[1::2], strict=False))


def test_spans_and_colours_agree_with_the_reports(desk):
    draw = random.Random(7)
    cases = [random_case(draw) for _ in range(300)]
    given = [
        [text, [token.to_dict() for token in tokens], [{"start": a, "end": b} for a, b in places]]
        for text, tokens, places in cases
    ]
    shown = desk().page.evaluate(
        """async (cases) => {
          const { spans, colour, placeOf } = await import("/static/spans.js");
          return cases.map(([text, tokens, places]) => spans(Array.from(text), tokens)
            .map((span) => [span.text, colour(span), placeOf(span, places)]));
        }""",
        given,
    )
    for (text, tokens, places), mine in zip(cases, shown, strict=True):
        rounded = [TokenScore(t.text, t.start, t.end, round(t.score, 4), t.scored) for t in tokens]
        wanted = [
            [span.text, name(span), -1 if place is None else place]
            for place, inside in group_by_passage(spans(text, rounded), places)
            for span in inside
        ]
        assert mine == wanted


def name(span) -> str:
    if not span.tokens:
        return ""
    if not span.scored:
        return "u"
    step = level(span.score)
    return f"{'p' if step > 0 else 'm'}{abs(step)}" if step else ""


def test_normal_distribution(desk):
    xs = [-6.5, -4.0, -2.33, -0.5, 0.0, 0.7, 1.96, 3.0, 5.0]
    ps = [0.05, 0.01, 0.005, 1e-4, 1e-6]
    cdf, above = desk().page.evaluate(
        """async ([xs, ps]) => {
          const { normalCdf, normalQuantileAbove } = await import("/static/words.js");
          return [xs.map(normalCdf), ps.map(normalQuantileAbove)];
        }""",
        [xs, ps],
    )
    assert cdf == pytest.approx(norm.cdf(xs), abs=1e-8)
    assert above == pytest.approx(norm.isf(ps), abs=1e-3)


def test_certainty_in_words(desk):
    values = [0.99, 0.4, 0.1, 0.06, 2.5e-5, 3e-9, 1e-12, 0.0]
    said = desk().page.evaluate(
        """async (rows) => {
          const { howSure, pValue } = await import("/static/words.js");
          return rows.map((row) => [howSure(row).join(" "), pValue(row.p_value)]);
        }""",
        [{"p_value": p, "one_in": one_in(p), "rounded": False} for p in values],
    )
    assert said == [
        ["99 in 100 unmarked texts score this high.", "0.99"],
        ["40 in 100 unmarked texts score this high.", "0.4"],
        ["10 in 100 unmarked texts score this high.", "0.1"],
        ["1 in 17 unmarked texts scores this high.", "0.06"],
        ["1 in 40,000 unmarked texts scores this high.", "2.5e-5"],
        ["1 in 330,000,000 unmarked texts scores this high.", "3e-9"],
        ["Fewer than 1 in a billion unmarked texts score this high.", "1e-12"],
        ["Fewer than 1 in a billion unmarked texts score this high.", "< 1e-300"],
    ]


def test_dropped_folder_is_read_recursively(desk):
    found = desk().page.evaluate(
        """async () => {
          const file = (name) => ({ isFile: true, file: (take) => take(new File(["x"], name)) });
          const folder = (entries) => ({
            isDirectory: true,
            createReader: () => ({ readEntries: (take) => take(entries.splice(0, 2)) }), // a few at a time
          });
          const inner = folder([file("c.txt"), file(".hidden")]);
          const root = folder([file("a.txt"), file("b.md"), inner, file("d.pdf")]);
          const { dropped } = await import("/static/files.js");
          const all = await dropped({ files: [], items: [{ webkitGetAsEntry: () => root }] });
          return all.map((each) => each.name);
        }"""
    )
    assert sorted(found) == ["a.txt", "b.md", "c.txt", "d.pdf"]
