"""A dossier as Markdown and as PDF: the same blocks (headings, paragraphs, lists, tables) in two forms.

The PDF is set in Source Sans Pro, which covers Latin, Greek and Cyrillic. Equal dossiers give equal
bytes. Boundary: a dossier's JSON values in, pages out; `dewmark_desk.compliance` measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from fpdf import FPDF

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
    paper = _Paper()
    paper.set_title(f"Marking dossier of {dossier['deployment']['host']}")
    paper.set_creation_date(datetime.fromisoformat(dossier["issued"]))
    for block in _blocks(dossier):
        paper.add(block)
    return bytes(paper.output())


def _blocks(dossier: Mapping[str, Any]) -> Iterator[_Block]:
    found = dossier["findings"]
    yield from _opening(dossier)
    yield from _deployment(dossier)
    yield from _effective(found)
    yield from _reliable(found)
    yield from _robust(found)
    yield from _quality(found)
    given = dossier.get("given")  # dossiers of earlier versions have none
    if given is not None:
        yield from _quality_report(given["quality_report"])
        yield from _policy(given["policy_proof"])
        yield from _layers(given["layers"])
    yield from _not_covered(dossier)
    yield from _access(dossier)
    if given is not None:
        yield from _code(dossier["code"])
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
    known = false.get("one_key")  # dossiers of earlier versions have none
    if known:
        yield _Block(
            "p",
            "Under one key false alarms come together: r is the correlation of two texts' scores, r matched "
            "the one that describes how much keys differ. Rates at 1%, of this key as its scores predict it "
            "(and at most, with 95% confidence) and of keys between the 1st and the 99th percentile:",
        )
        rows = [
            (
                row["domain"],
                f"{row['texts']}",
                f"{row['r']:.3f}",
                f"{row['r_matched']:.3f}",
                f"{row['this_key']['rate']:.2%} (≤ {row['this_key']['high']:.2%})",
                f"{row['of_98_percent_of_keys']['low']:.2%} to {row['of_98_percent_of_keys']['high']:.2%}",
                row["verdict"],
            )
            for row in known
        ]
        names = ("domain", "texts", "r", "r matched", "this key", "98% of keys", "this key is")
        yield _Block("table", rows=(names, *rows))


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


def _quality_report(report: Mapping[str, Any] | None) -> Iterator[_Block]:
    if report is None:
        yield _Block("p", "No report of dewmark quality was given, which tests equivalence on more texts.")
        return
    yield _Block(
        "p",
        f"The report of dewmark quality ({report['texts']} texts, {report['scheme']} on {report['host']}): "
        f"{report['outcome']}.",
    )
    rows = []
    for name, each in report["measures"].items():
        compared = each["compared"]
        interval = compared["difference"]
        said = f"{interval['value']:+.3f} ({interval['low']:+.3f} to {interval['high']:+.3f})"
        rows.append((name, said, f"±{compared['margin']:g}", str(compared["outcome"])))
    yield _Block("table", rows=(("measure", "difference (95%)", "margin", "outcome"), *rows))


def _policy(proof: Mapping[str, Any] | None) -> Iterator[_Block]:
    yield _Block("h2", "Policy: what is left unmarked, and the proof of it")
    if proof is None:
        yield _Block("p", "Not measured: give --policy-proof, the file of dewmark policy prove.")
        return
    yield _Block(
        "p",
        f"Policy {proof['policy']}, {proof['requests']} requests, {proof['max_new_tokens']} tokens at most, "
        "each answered with the mark and without. JSON and tool calls follow a grammar, code is free text. "
        "Answers that parse, and the exact test of equal rates on the pairs that differ:",
    )
    rows = [
        (
            row["kind"],
            *(f"{row[name]} of {row['requests']}" for name in ("unmarked", "marked")),
            f"{row['p_value']:.2g}",
        )
        for row in proof["parsed"]
    ]
    yield _Block("table", rows=(("answers", "unmarked", "marked", "p"), *rows))
    yield _Block(
        "p", "The detector's own scores of words, by what the policy's log says of their spans (0 ± 1 each):"
    )
    rows = [
        (row["reason"], f"{row['words']}", f"{row['mean']:+.3f} ± {row['error']:.3f}")
        for row in proof["spans"]
    ]
    yield _Block("table", rows=(("span", "words", "mean score"), *rows))


def _layers(layers: Mapping[str, Any]) -> Iterator[_Block]:
    yield _Block("h2", "Both layers: signed metadata and the mark")
    signer = layers["manifest_signer"] or "not stated: whether manifests are attached is not known here"
    page = layers["public_page"] or "none was named"
    rows = (
        ("the mark", "in the choice of words; survives copying and some editing, proves less"),
        ("C2PA manifests, signed by", signer),
        ("lost when", "invisible characters are dropped, such as in a PDF or in ASCII"),
        ("marks that the detector reads", layers["reads"]),
        ("public detector, on the reader's machine", page),
    )
    yield _Block("table", rows=(("what", "how"), *rows))


def _code(code: Mapping[str, Any]) -> Iterator[_Block]:
    yield _Block("h2", "The Code's measures")
    yield _Block("p", code["source"])
    rows = [(row["measure"], row["answered"], row["left"]) for row in code["measures"]]
    yield _Block("table", rows=(("measure", "answered under", "what is left"), *rows))


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
        ("per text", "C2PA manifest with a soft binding: dewmark provenance sign"),
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


# In points.
_MARGIN = 52.0
_SIZES = {"h1": 20.0, "h2": 12.5, "p": 9.0, "item": 9.0, "table": 8.0}
_BEFORE = {"h1": 0.0, "h2": 18.0, "p": 6.0, "item": 3.0, "table": 8.0}
_LEADING = 1.42
_GAP = 12.0  # between the columns of a table
_SOFT, _RULE = (91, 97, 110), (201, 205, 212)


class _Paper(FPDF):
    """Numbered A4 pages in Source Sans Pro."""

    def __init__(self) -> None:
        super().__init__(unit="pt", format="A4")
        fonts = Path(str(resources.files("font_source_sans_pro"))) / "files"
        self.add_font("Source Sans Pro", "", fonts / "SourceSansPro-Regular.ttf")
        self.add_font("Source Sans Pro", "B", fonts / "SourceSansPro-Bold.ttf")
        self.set_margin(_MARGIN)
        self.set_auto_page_break(True, _MARGIN)
        self.c_margin = 0.0
        self.set_draw_color(*_RULE)
        self.set_line_width(0.4)
        self.add_page()

    def footer(self) -> None:
        """The page's number."""
        self.set_y(-34.0)
        self.set_font("Source Sans Pro", size=8.0)
        self.set_text_color(*_SOFT)
        self.cell(0.0, 10.0, str(self.page_no()), align="C")

    def add(self, block: _Block) -> None:
        """Set a block; a heading or a line that introduces something stays with what follows it."""
        size, bold = _SIZES[block.kind], block.kind in ("h1", "h2")
        self.set_font("Source Sans Pro", "B" if bold else "", size)
        self.set_text_color(0)
        self.ln(_BEFORE[block.kind])
        if (bold or block.text.endswith(":")) and self.will_page_break(160.0 if bold else 100.0):
            self.add_page()
        if block.kind == "table":
            self._table(block.rows, size)
            return
        if block.kind == "item":
            self.cell(10.0, size * _LEADING, "•")
        self.multi_cell(0.0, size * _LEADING, block.text, align="L", new_x="LMARGIN", new_y="NEXT")

    def _table(self, rows: Sequence[Cells], size: float) -> None:
        """A table whose first row is its head; the widest columns are wrapped until it fits the page."""
        self.set_font(style="B")  # the wider one
        widths = [max(map(self.get_string_width, column)) + _GAP for column in zip(*rows, strict=True)]
        self.set_font(style="")
        while sum(widths) > self.epw:
            widths[widths.index(max(widths))] -= min(4.0, sum(widths) - self.epw)
        widths[-1] += self.epw - sum(widths)
        with self.table(
            rows,
            col_widths=widths,
            line_height=size * _LEADING,
            padding=(2.0, _GAP, 2.0, 0.0),
            text_align="L",
            v_align="TOP",
            borders_layout="HORIZONTAL_LINES",
        ):
            pass
