"""A dossier as Markdown and as PDF: the same blocks (headings, paragraphs, lists, tables) in two forms.

The PDF is set with matplotlib, whose fonts cover the text and which the library needs anyway. Equal dossiers
give equal bytes. Boundary: a dossier's JSON values in, pages out; `dewmark.lab.compliance` measures.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dewmark.reports.plots import styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DOSSIER", "dossier_markdown", "dossier_pdf"]

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
    by_length = dossier["findings"]["power_by_length"]
    whole = next(row for row in by_length if row["tokens"] is None)
    yield _Block("h1", "Marking dossier")
    yield _Block(
        "p",
        f"Provider: {dossier['provider'] or 'not named'}. Contact: {dossier['contact'] or 'not named'}. "
        f"Issued {dossier['issued']} by {dossier['software']}. It accompanies Article 50(2) of Regulation "
        "(EU) 2024/1689, which asks providers to mark generated text in a machine-readable way that is "
        "effective, interoperable, robust and reliable as far as technically feasible. It reports "
        "measurements of one deployment. It is neither legal advice nor a certificate.",
    )
    share = whole["at"][0]
    yield _Block(
        "p",
        f"In short: of {share['texts']} {whole['texts']} by {deployment['host']} (median "
        f"{whole['median_tokens']} tokens), {share['found']} are found at a false-positive rate of "
        f"{share['level']:g}. {dossier['findings']['false_positives']['sentence']}",
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

_WIDTH, _HEIGHT, _MARGIN = 595.0, 842.0, 50.0
_SIZES = {"h1": 18.0, "h2": 12.5, "p": 9.0, "item": 9.0, "table": 7.0}
_BEFORE = {"h1": 0.0, "h2": 16.0, "p": 6.0, "item": 2.0, "table": 6.0}
_LEADING = 1.42
_MONO_WIDTH = 0.602  # of a character of DejaVu Sans Mono, in its size
_TEXT_COLUMNS = 98  # characters of a line of text
_CELL_COLUMNS = 96


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    size: float
    before: float = 0.0
    bold: bool = False
    mono: bool = False


def _lines(block: _Block) -> list[_Line]:
    size, before = _SIZES[block.kind], _BEFORE[block.kind]
    if block.kind == "table":
        return [
            _Line(text, size, before if i == 0 else 0.0, bold=i == 0, mono=True)
            for i, text in enumerate(_grid(block.rows))
        ]
    columns = round(_TEXT_COLUMNS * _SIZES["p"] / size)
    first, rest = ("• ", "  ") if block.kind == "item" else ("", "")
    wrapped = textwrap.wrap(block.text, columns, initial_indent=first, subsequent_indent=rest)
    return [
        _Line(text, size, before if i == 0 else 0.0, bold=block.kind in ("h1", "h2"))
        for i, text in enumerate(wrapped)
    ]


def _grid(rows: Sequence[Cells]) -> list[str]:
    """A table as lines of equal-width characters; long cells are wrapped."""
    limit = int((_WIDTH - 2 * _MARGIN) / (_SIZES["table"] * _MONO_WIDTH))
    wide = min(_CELL_COLUMNS, limit - 2)
    widths = [max(min(wide, max(len(row[i]) for row in rows)), 4) for i in range(len(rows[0]))]
    while sum(widths) + 2 * (len(widths) - 1) > limit:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in rows:
        cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        for i in range(max(map(len, cells))):
            parts = [
                (cell[i] if i < len(cell) else "").ljust(width)
                for cell, width in zip(cells, widths, strict=True)
            ]
            lines.append("  ".join(parts).rstrip())
    return lines


def _pages(blocks: Sequence[_Block]) -> Iterator[Figure]:
    from matplotlib.figure import Figure

    lines = [line for block in blocks for line in _lines(block)]
    figure, y, number = None, _HEIGHT, 0
    for i, line in enumerate(lines):
        step = line.size * _LEADING
        # a heading stays with what follows it
        ahead = sum(each.before + each.size * _LEADING for each in lines[i : i + (4 if line.bold else 1)])
        if figure is None or y + line.before + ahead > _HEIGHT - _MARGIN:
            if figure is not None:
                yield figure
            number += 1
            figure = Figure(figsize=(_WIDTH / 72.0, _HEIGHT / 72.0))
            figure.set_layout_engine("none")
            figure.text(0.5, 24.0 / _HEIGHT, str(number), ha="center", fontsize=8, color="#5b616e")
            y = _MARGIN
        y += line.before + step
        figure.text(
            _MARGIN / _WIDTH,
            1.0 - y / _HEIGHT,
            line.text.replace("$", r"\$"),
            fontsize=line.size,
            family="DejaVu Sans Mono" if line.mono else "DejaVu Sans",
            weight="bold" if line.bold else "normal",
        )
    if figure is not None:
        yield figure
