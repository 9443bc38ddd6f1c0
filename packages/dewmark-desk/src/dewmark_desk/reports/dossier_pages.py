"""A dossier as Markdown and as PDF: the same blocks (headings, paragraphs, lists, tables) in two forms.

The PDF is set with matplotlib, whose fonts cover the text and which the library needs anyway. Equal dossiers
give equal bytes. Boundary: a dossier's JSON values in, pages out; `dewmark_desk.compliance` measures.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dewmark_lab.reports.plots import styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.ft2font import FT2Font

DOSSIER = "dossier"

Cells = Sequence[str]


@dataclass(frozen=True, slots=True)
class _Block:
    """``kind`` is h1, h2, p, item or table; a table's first row is its head."""

    kind: str
    text: str = ""
    rows: tuple[Cells, ...] = ()


def dossier_markdown(dossier: Mapping[str, Any]) -> str:
    """The dossier as Markdown."""
    lines: list[str] = []
    last = ""
    for block in _blocks(dossier):
        if not (block.kind == last == "item"):
            lines.append("")
        last = block.kind
        if block.kind == "table":
            head, *rows = block.rows
            lines.append(_markdown_row(head))
            lines.append("|" + " --- |" * len(head))
            lines += map(_markdown_row, rows)
        else:
            prefix = {"h1": "# ", "h2": "## ", "item": "- "}.get(block.kind, "")
            lines.append(prefix + block.text)
    return "\n".join(lines[1:]) + "\n"


def dossier_pdf(dossier: Mapping[str, Any]) -> bytes:
    """The dossier as PDF, A4."""
    from matplotlib.backends.backend_pdf import PdfPages

    stream = io.BytesIO()
    title = f"Marking dossier of {dossier['deployment']['host']}"
    with styled(), PdfPages(stream, metadata={"CreationDate": None, "Title": title}) as pdf:
        for figure in _pages(list(_blocks(dossier))):
            pdf.savefig(figure)
    return stream.getvalue()


def _blocks(dossier: Mapping[str, Any]) -> Iterator[_Block]:
    found = dossier["findings"]
    yield from _opening(dossier)
    yield from _deployment(dossier)
    yield from _effective(found)
    yield from _reliable(found)
    yield from _robust(found)
    yield from _quality(found)
    yield from _not_covered(dossier)
    yield from _access(dossier)
    yield from _method(dossier)


def _opening(dossier: Mapping[str, Any]) -> Iterator[_Block]:
    deployment = dossier["deployment"]
    yield _Block("h1", "Marking dossier")
    yield _Block(
        "p",
        f"Provider: {dossier['provider'] or 'not named'}. Contact: {dossier['contact'] or 'not named'}. "
        f"Issued {dossier['issued']} by {dossier['software']}. It accompanies Article 50(2) of Regulation "
        "(EU) 2024/1689, which asks providers to mark generated text in a machine-readable way that is "
        "effective, interoperable, robust and reliable as far as technically feasible. It reports "
        "measurements of one deployment. It is neither legal advice nor a certificate.",
    )
    yield _Block("h2", "In short")
    for each in _summary(dossier["findings"], deployment["host"]):
        yield _Block("item", each)


def _summary(found: Mapping[str, Any], host: str) -> Iterator[str]:
    """The findings in a sentence each."""
    for row in found["power_by_length"]:
        if row["tokens"] is None and row["at"]:
            tokens = f"median {row['median_tokens']} tokens"
            yield f"Effective: of {host}'s {row['texts']} ({tokens}), {_found(row)}."
    unmarked = [row["at"][0] for row in found["false_positives"]["domains"] if row["at"]]
    if unmarked:
        alarms, texts = (sum(each[name] for each in unmarked) for name in ("found", "texts"))
        called = "1 is" if alarms == 1 else f"{alarms} are"
        level, said = unmarked[0]["level"], found["false_positives"]["sentence"]
        yield (
            f"Reliable: of {texts} unmarked texts of {len(unmarked)} kinds, {called} called marked at "
            f"{level:g}, where {level * texts:.1f} are expected by chance. {said}"
        )
    attacked = [row for row in found["robustness"] if row["attack"] != "none" and row["at"]]
    if attacked:
        ranked = sorted(attacked, key=lambda row: row["at"][0]["found"])
        yield (
            f"Robust: after {ranked[-1]['attack']}, {_found(ranked[-1])}; after {ranked[0]['attack']}, "
            f"{_found(ranked[0])}."
        )
    if found["quality"]:
        row = found["quality"][0]
        yield (
            f"Quality: {row['measure']} {row['marked']:.3f} against {row['unmarked']:.3f} without the mark "
            f"(difference {row['difference']:+.3f} ± {1.96 * row['standard_error']:.3f}, 95%)."
        )
    little = [row["format"] for row in found["formats"]]
    if little:
        yield f"Not covered: {', '.join(little)} and whatever else leaves the host little choice of words."


def _found(row: Mapping[str, Any]) -> str:
    """A row's shares in words."""
    return " and ".join(
        f"{each['found']} of {each['texts']} are found at {each['level']:g}" for each in row["at"]
    )


def _deployment(dossier: Mapping[str, Any]) -> Iterator[_Block]:
    deployment = dossier["deployment"]
    rows = [
        ("host", deployment["host"]),
        ("technique", f"{deployment['scheme']}: {deployment['summary']}"),
        ("settings", _settings(deployment["settings"])),
        ("key", f"fingerprint {deployment['key_fingerprint']}"),
        ("configuration", deployment["config_hash"]),
        ("openings", _settings(deployment["decoding"])),
        ("chat requests", _chat(deployment)),
    ]
    yield _Block("h2", "The deployment")
    yield _Block("table", rows=(("what", "value"), *rows))


def _chat(deployment: Mapping[str, Any]) -> str:
    if deployment["chat_decoding"] is None:
        return "not measured: the host has no chat template"
    return f"the host's own template and settings: {_settings(deployment['chat_decoding'])}"


def _effective(found: Mapping[str, Any]) -> Iterator[_Block]:
    levels = _level_names(found["power_by_length"])
    yield _Block("h2", "Effective: how often is the mark found?")
    yield _Block(
        "p",
        "Share of marked texts that the detector calls marked, without knowing the prompt. In brackets the "
        "exact 95% interval; with few texts it is wide, and a deployment's own decision needs more.",
    )
    rows = [
        (row["texts"], "whole text" if row["tokens"] is None else f"first {row['tokens']}", *_shares(row))
        for row in found["power_by_length"]
    ]
    yield _Block("table", rows=(("texts", "tokens", *levels), *rows))
    for needed in found.get("length_needed", ()):
        reach = ", ".join(
            f"{share} at no length"
            if tokens is None
            else f"{share} at {tokens} tokens"
            if tokens > needed["measured_from"]
            else f"{share} at {needed['measured_from']} tokens or fewer"
            for share, tokens in needed["shortest"].items()
        )
        yield _Block("p", f"Model of the openings at {needed['level']:g}: {reach}.")
    yield _Block("p", "By language, whole texts; the host itself may write some of these languages badly:")
    rows = [(row["language"], *_shares(row)) for row in found["power_by_language"]]
    yield _Block("table", rows=(("language", *levels), *rows))
    yield _Block("p", "By entropy, the room that the host leaves for a mark (marked openings in thirds):")
    rows = [
        (row["entropy"], f"{row['from_bits']:g} to {row['to_bits']:g}", *_shares(row))
        for row in found["power_by_entropy"]
    ]
    yield _Block("table", rows=(("entropy", "bits per token", *levels), *rows))


def _reliable(found: Mapping[str, Any]) -> Iterator[_Block]:
    false = found["false_positives"]
    levels = _level_names(false["domains"])
    yield _Block("h2", "Reliable: false alarms under this key")
    yield _Block("p", f"{false['sentence']} Unmarked texts called marked, by domain:")
    rows = [
        (row["domain"], f"{row['texts']}", f"{row['without_verdict']}", *_shares(row, len(levels)))
        for row in false["domains"]
    ]
    yield _Block("table", rows=(("domain", "texts", "without verdict", *levels), *rows))


def _robust(found: Mapping[str, Any]) -> Iterator[_Block]:
    yield _Block("h2", "Robust: what survives an attack")
    yield _Block("p", "Share of the marked openings that is still found after each attack:")
    rows = [(row["attack"], *_shares(row)) for row in found["robustness"]]
    yield _Block("table", rows=(("attack", *_level_names(found["robustness"])), *rows))
    for name, reason in found["not_measured"].items():
        yield _Block("item", f"Not measured: {name}. {reason[:1].upper()}{reason[1:]}.")


def _quality(found: Mapping[str, Any]) -> Iterator[_Block]:
    yield _Block("h2", "Quality: marked against unmarked text")
    yield _Block("p", "The same openings continued with and without the mark; the difference is paired.")
    rows = [
        (
            row["measure"],
            f"{row['marked']:.3f}",
            f"{row['unmarked']:.3f}",
            f"{row['difference']:+.3f} ± {1.96 * row['standard_error']:.3f}",
            f"{row['pairs']}",
        )
        for row in found["quality"]
    ]
    yield _Block("table", rows=(("measure", "marked", "unmarked", "difference (95%)", "pairs"), *rows))


def _not_covered(dossier: Mapping[str, Any]) -> Iterator[_Block]:
    rows = [
        (row["format"], f"{row['median_tokens']}", f"{row['without_verdict']}", *_shares(row))
        for row in dossier["findings"]["formats"]
    ]
    yield _Block("h2", "Not covered")
    if rows:
        levels = _level_names(dossier["findings"]["formats"])
        yield _Block("p", "Outputs with little room for a mark, asked for as chat requests:")
        yield _Block("table", rows=(("output", "median tokens", "without verdict", *levels), *rows))
    for each in dossier["not_covered"]:
        yield _Block("item", each)


def _access(dossier: Mapping[str, Any]) -> Iterator[_Block]:
    access = dossier["access"]
    yield _Block("h2", "Interoperable: how to reach the detector")
    rows = [
        ("page for people", access["detector"]["page"]),
        ("interface for programs", access["detector"]["api"]),
        ("level", f"{access['detector']['level']:g}"),
        ("access", access["how_to_ask"]["access"]),
        ("verify signed reports", access["reports"]["verify"]),
        ("signpost to publish", "/.well-known/dewmark.json"),
        ("detection needs", dossier["deployment"]["detection_needs"]),
        ("per text", "C2PA soft-binding assertion: dewmark report bind"),
    ]
    yield _Block("table", rows=(("what", "where"), *rows))


def _method(dossier: Mapping[str, Any]) -> Iterator[_Block]:
    yield _Block("h2", "How this was measured")
    for each in dossier["method"]:
        yield _Block("item", each)
    yield _Block(
        "p",
        "Check it: dewmark report verify dossier.jws --signer signer.jwk. The signed document has these "
        "figures as JSON and the SHA-256 of this file.",
    )


def _level_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    levels = next((row["at"] for row in rows if row["at"]), ())
    return [f"at {each['level']:g}" for each in levels]


def _shares(row: Mapping[str, Any], columns: int = 0) -> list[str]:
    found = [
        f"{each['found']} of {each['texts']} ({each['low']:.2f}–{each['high']:.2f})" for each in row["at"]
    ]
    return found + ["–"] * (columns - len(found))


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _markdown_row(cells: Cells) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


# The PDF: text on A4, measured in points from the upper left corner.

_WIDTH, _HEIGHT, _MARGIN = 595.0, 842.0, 52.0
_SIZES = {"h1": 20.0, "h2": 12.5, "p": 9.0, "item": 9.0, "table": 8.0}
_BEFORE = {"h1": 0.0, "h2": 18.0, "p": 6.0, "item": 3.0, "table": 8.0}
_LEADING = 1.42
_GAP = 12.0  # between the columns of a table
_SOFT, _RULE = "#5b616e", "#c9cdd4"


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the page: pieces of text at their places, and whether a rule follows it."""

    pieces: tuple[tuple[float, str], ...]
    size: float
    before: float = 0.0
    bold: bool = False
    ruled: bool = False
    together: int = 1
    """How many lines, with this one, stay on one page."""


def _lines(block: _Block) -> list[_Line]:
    if block.kind == "table":
        return _table(block.rows)
    size, before, bold = _SIZES[block.kind], _BEFORE[block.kind], block.kind in ("h1", "h2")
    indent = 10.0 if block.kind == "item" else 0.0
    wrapped = _wrap(block.text, size, _WIDTH - 2 * _MARGIN - indent, bold=bold)
    lines = []
    for i, text in enumerate(wrapped):
        bullet = ((0.0, "•"),) if indent and i == 0 else ()
        together = 5 if bold or text.endswith(":") else 1  # a heading stays with what follows it
        lines.append(
            _Line((*bullet, (indent, text)), size, before if i == 0 else 0.0, bold=bold, together=together)
        )
    return lines


def _table(rows: Sequence[Cells]) -> list[_Line]:
    """A table whose first row is its head; the widest columns are wrapped until it fits the page."""
    size, room = _SIZES["table"], _WIDTH - 2 * _MARGIN - _GAP * (len(rows[0]) - 1)
    widths = [
        max(_text_width(row[i], size, bold=number == 0) for number, row in enumerate(rows)) + 1.0
        for i in range(len(rows[0]))
    ]
    while sum(widths) > room:
        widths[widths.index(max(widths))] -= min(4.0, sum(widths) - room)
    places = [sum(widths[:i]) + _GAP * i for i in range(len(widths))]
    lines: list[_Line] = []
    for number, row in enumerate(rows):
        bold = number == 0
        cells = [_wrap(cell, size, width, bold=bold) for cell, width in zip(row, widths, strict=True)]
        height = max(map(len, cells))
        for i in range(height):
            pieces = tuple(
                (place, cell[i]) for place, cell in zip(places, cells, strict=True) if i < len(cell)
            )
            before = _BEFORE["table"] if number == i == 0 else 2.5 if i == 0 else 0.0
            together = height - i + (3 if bold else 0)
            lines.append(_Line(pieces, size, before, bold, ruled=i == height - 1, together=together))
    return lines


def _wrap(text: str, size: float, width: float, *, bold: bool) -> list[str]:
    """The text in lines of at most this width; a word that is wider is cut."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if _text_width(longer, size, bold=bold) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        line = word
        while _text_width(line, size, bold=bold) > width and len(line) > 1:
            fits = [n for n in range(1, len(line)) if _text_width(line[:n], size, bold=bold) <= width]
            cut = max(fits, default=1)
            lines.append(line[:cut])
            line = line[cut:]
    return [*lines, line]


@functools.cache
def _font(*, bold: bool) -> FT2Font:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")))
    font.set_size(100.0, 72.0)
    return font


@functools.cache
def _text_width(text: str, size: float, *, bold: bool) -> float:
    """The width of a text in points."""
    font = _font(bold=bold)
    font.set_text(text, 0.0)
    return float(font.get_width_height()[0]) / 64.0 * size / 100.0


def _pages(blocks: Sequence[_Block]) -> Iterator[Figure]:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    lines = [line for block in blocks for line in _lines(block)]
    figure, y, number = None, _HEIGHT, 0
    for i, line in enumerate(lines):
        ahead = sum(each.before + each.size * _LEADING for each in lines[i : i + line.together])
        if figure is None or y + ahead > _HEIGHT - _MARGIN:
            if figure is not None:
                yield figure
            number += 1
            figure = Figure(figsize=(_WIDTH / 72.0, _HEIGHT / 72.0))
            figure.set_layout_engine("none")
            figure.text(0.5, 26.0 / _HEIGHT, str(number), ha="center", fontsize=8, color=_SOFT)
            y = _MARGIN
        y += line.before + line.size * _LEADING
        for place, text in line.pieces:
            figure.text(
                (_MARGIN + place) / _WIDTH,
                1.0 - y / _HEIGHT,
                text.replace("$", r"\$"),
                fontsize=line.size,
                family="DejaVu Sans",
                weight="bold" if line.bold else "normal",
            )
        if line.ruled:
            at = 1.0 - (y + 3.0) / _HEIGHT
            ends = [_MARGIN / _WIDTH, 1.0 - _MARGIN / _WIDTH]
            figure.add_artist(Line2D(ends, [at, at], linewidth=0.4, color=_SOFT if line.bold else _RULE))
    if figure is not None:
        yield figure
