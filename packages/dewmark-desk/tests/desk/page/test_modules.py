"""The page's modules against their Python counterparts: spans, colours and numbers in words."""

from __future__ import annotations

import random

import pytest
from scipy.stats import norm

from dewmark.reports.detection_display import group_by_passage, level, one_in, spans
from dewmark.types import TokenScore
from dewmark_desk.documents import _is_western

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


def test_certainty_counts_keys(desk):
    values = [0.99, 0.4, 0.1, 0.06, 2.5e-5, 3e-9, 1e-12, 0.0]
    said = desk().page.evaluate(
        """async (values) => {
          const { pValue, shareOfKeys } = await import("/static/words.js");
          return values.map((p) => [shareOfKeys(p), pValue(p)]);
        }""",
        values,
    )
    assert said == [
        ["99 in 100 keys", "0.99"],
        ["40 in 100 keys", "0.4"],
        ["10 in 100 keys", "0.1"],
        ["1 in 17 keys", "0.06"],
        ["1 in 40,000 keys", "2.5e-5"],
        ["1 in 330,000,000 keys", "3e-9"],
        ["fewer than 1 in a billion keys", "1e-12"],
        ["fewer than 1 in a billion keys", "< 1e-77"],
    ]
    ours = [share for share, _ in said[:6]]
    assert ours == [f"{one_in(p)} keys" for p in values[:6]]


def headlines(page, results: list[dict[str, object]], text: str) -> list[str]:
    return page.evaluate(
        """async ([results, text]) => {
          const { headline } = await import("/static/findings.js");
          return results.map((each) => headline(each, Array.from(text)));
        }""",
        [results, text],
    )


def test_verdict_in_one_sentence(desk):
    text = "One here.\n\nTwo 🌧 is here\nand goes on.\n\nThree is here.\n\nFour."
    two, three = text.index("Two"), text.index("Three")

    def marked(extent: str | None, share: float, *places: tuple[int, int]) -> dict[str, object]:
        passages = [{"start": start, "end": end} for start, end in places]
        coverage = {"extent": extent, "share": share, "passages": passages}
        return {"verdict": "marked", "keys": 1, "tenant": "Acme", "coverage": coverage}

    none = {"keys": 1, "tenant": "Acme", "coverage": None}
    results = [
        marked("part", 0.33, (two, three + 14)),
        marked("part", 0.04, (two, two + 5)),
        marked("part", 0.5, (0, two), (three, len(text))),
        marked(None, 0.6, (three, three + 14)),
        marked("whole", 0.97, (0, len(text))),
        {"verdict": "marked", **none},
        {"verdict": "not_marked", **none},
        {"verdict": "not_marked", **none, "keys": 50},
        {"verdict": "too_short", **none},
        {"verdict": "too_short", **none, "leaves_no_room": True},
        {"verdict": "unsupported_language", **none, "language": {"code": "cy"}},
        {"verdict": "unsupported_language", **none, "language": {"code": None}},
    ]
    page = desk().page
    assert headlines(page, results, text) == [
        "About a third of this text, paragraphs 2 and 3, carries the mark of Acme.",
        "A small part of this text, part of paragraph 2, carries the mark of Acme.",
        "About half of this text, paragraphs 1, 3 and 4, carries the mark of Acme.",
        "This text carries the mark of Acme, most clearly in paragraph 3.",
        "This text carries the mark of Acme throughout.",
        "This text carries the mark of Acme.",
        "No mark of Acme was found in this text.",
        "No mark of the 50 keys was found in this text.",
        "This text is too short to say.",
        "This text leaves no room for a mark.",
        "There is no verdict on texts in Welsh.",
        "There is no verdict on texts in this language.",
    ]
    (one,) = headlines(page, [marked("part", 0.33, (0, 3))], "One line only, with no other paragraph.")
    assert one == "About a third of this text carries the mark of Acme."


def test_latin_1_is_recognised_as_by_the_service(desk):
    draw = random.Random(5)
    cases = [
        "Ein Käfer über Bäumen".encode("latin-1"),
        "Привет".encode("cp1251"),
        "Grüße aus Köln".encode()[:-9] + b"\xe9",
        *(bytes(draw.choices([32, 97, 195, 164, 228, 240, 159], k=draw.randint(1, 12))) for _ in range(300)),
    ]
    said = desk().page.evaluate(
        """async (cases) => {
          const { isWestern } = await import("/static/files.js");
          return cases.map((each) => isWestern(Uint8Array.from(each)));
        }""",
        [list(each) for each in cases],
    )
    assert said == [_is_western(each) for each in cases]
    assert {True, False} == set(said)


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
