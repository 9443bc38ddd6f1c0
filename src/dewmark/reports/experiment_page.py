"""The report of an experiment: Markdown, one self-contained HTML page, a LaTeX table, CSV, and its figures.

It opens with what was run (configuration and commands) and what it shows; then our tables, the paper's
beside them, and the figures. The page fetches nothing and runs no script.

What an experiment shows, in a few sentences that are computed from its results.

Who finds most under each attack, by thresholds that the attack has not moved; how far the unattacked
thresholds mislead; what the attacks did to the words; whether schemes stand in the paper's order.
"""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dewmark import storage
from dewmark.lab.evaluation.results import CLEAN, Evaluation
from dewmark.reports import figures
from dewmark.reports.experiment_tables import report_tables
from dewmark.reports.figures import families
from dewmark.reports.paper import PaperTable, beside_paper, pairs_beside, paper_as_table, paper_table
from dewmark.reports.plots import small_png
from dewmark.reports.run_files import RunFiles, read_run
from dewmark.reports.tables import (
    SHIFTED,
    Table,
    attack_name,
    is_cut,
    long_csv,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
)
from dewmark.stats.metrics import Rate
from dewmark.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["findings", "write_report"]

_NAMED = 4  # schemes that a sentence names; of more it gives the number

_LEAST = 4  # schemes that an order is compared of

_NULLS = ("matched", "human-matched", "clean", "human")


def findings(run: RunFiles, paper: PaperTable | None) -> list[str]:
    """The sentences, those of most weight first."""
    if run.evaluation is None:
        return []
    order = [] if paper is None else list(_order(run, paper))
    return [*_most_found(run.evaluation), *_shifted(run.evaluation), *_words(run.evaluation), *order]


def _most_found(evaluation: Evaluation) -> Iterator[str]:
    rate = evaluation.rates[0]
    for attack in (each for each in evaluation.attacks if not is_cut(each)):
        found: dict[str, Rate] = {}
        for scheme in evaluation.schemes:
            cell = evaluation.cell(scheme, attack)
            at = next((at for null in _NULLS if cell and (at := cell.at(null, rate))), None)
            if at is not None:
                found[scheme] = at.found
        if len(found) < 2:
            continue
        best = max(found, key=lambda scheme: found[scheme].rate)
        top = found[best]
        near = [scheme for scheme, each in found.items() if each.high >= top.low and scheme != best]
        lowest = min(found, key=lambda scheme: found[scheme].rate)
        null = "" if attack == CLEAN else ", negatives attacked likewise"
        yield (
            f"{attack_name(attack)}: most marked texts are found by {best}, {_share(top)} at {100 * rate:g}%"
            f"{null}{_also(near)}; fewest by {lowest}, {_share(found[lowest])}"
        )


def _share(rate: Rate) -> str:
    return f"{rate.rate:.3f} [{rate.low:.3f}, {rate.high:.3f}]"


def _also(near: Sequence[str]) -> str:
    if not near:
        return " (more than by any other, beyond their intervals)"
    names = ", ".join(near) if len(near) <= _NAMED else f"{len(near)} others"
    return f" (not told apart from it: {names})"


def _shifted(evaluation: Evaluation) -> Iterator[str]:
    """The worst of the shifted nulls: what a table of shares would hide."""
    attacked = [
        (cell, at)
        for cell in evaluation.cells
        for rate in evaluation.rates
        if cell.attack != CLEAN and not is_cut(cell.attack)
        if (at := cell.at("clean", rate)) is not None and at.attacked is not None
    ]
    shifted = [
        (at.attacked.rate / at.rate, cell, at)
        for cell, at in attacked
        if at.attacked is not None and at.shift_p is not None and at.shift_p < SHIFTED
    ]
    cells = len({(cell.scheme, cell.attack) for cell, _ in attacked})
    if shifted:
        moved = len({(cell.scheme, cell.attack) for _, cell, _ in shifted})
        times, cell, at = max(shifted, key=lambda each: each[0])
        yield (
            f"in {moved} of {cells} attacked cells unmarked texts pass an unattacked threshold more often "
            f"after the attack (p < {SHIFTED:g}), at most {100 * times * at.rate:.0f}% of them at "
            f"{100 * at.rate:g}% ({cell.scheme} under {cell.attack}): compare schemes by the matched null"
        )
    elif attacked:
        texts = min(at.attacked.trials for _, at in attacked if at.attacked is not None)
        yield (
            f"no attack makes unmarked texts pass an unattacked threshold significantly more often (p < "
            f"{SHIFTED:g}, from {texts} texts a cell)"
        )


def _words(evaluation: Evaluation) -> Iterator[str]:
    lost = {}
    for attack in evaluation.attacks:
        kept = [cell.kept for cell in evaluation.cells if cell.attack == attack and cell.kept is not None]
        if kept:
            lost[attack] = 1.0 - math.fsum(kept) / len(kept)
    if lost:
        told = ", ".join(f"{share:.2f} by {attack}" for attack, share in lost.items())
        yield f"words of marked texts that were replaced or removed: {told}"


def _order(run: RunFiles, paper: PaperTable) -> Iterator[str]:
    """Rank correlations with the paper's columns."""
    from scipy.stats import spearmanr

    told, schemes = [], set[str]()
    for heading, pairs in pairs_beside(run, paper):
        ours, theirs = [pair[0] for pair in pairs.values()], [pair[1] for pair in pairs.values()]
        if len(pairs) >= _LEAST and len(set(ours)) > 1 and len(set(theirs)) > 1:
            told.append(f"{heading} {spearmanr(ours, theirs).statistic:+.2f}")
            schemes |= set(pairs)
    if told:
        yield (
            f"the order of the schemes that the paper's {paper.source} has too ({len(schemes)}), rank "
            f"correlation with it: {', '.join(told)}"
        )


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

_STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f8; --card: #fff; --ink: #16181d; --soft: #5b616e; --line: #dcdfe4; }
@media (prefers-color-scheme: dark) {
  :root { --page: #111317; --card: #1a1d23; --ink: #e8eaee; --soft: #9aa1ad; --line: #30353e; }
}
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
main { max-width: 80rem; margin: 0 auto; padding: 2rem 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.05rem; margin-top: 0; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1rem 1.25rem; margin: 1.25rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }
th, td { text-align: right; padding: .25rem .55rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
thead th { font-weight: 600; } thead th[colspan] { text-align: center; border-left: 1px solid var(--line); }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--card); font-weight: 500; }
tr.group th { font-style: italic; color: var(--soft); }
small, footer, .soft, figcaption { color: var(--soft); } .soft { font-size: .85rem; margin: .5rem 0 0; }
pre { overflow-x: auto; background: var(--page); border-radius: 6px; padding: .6rem .8rem; font-size: .8rem; }
figure { margin: 0; } figcaption { font-size: .85rem; }
img { display: block; max-width: 100%; margin: 0 auto .5rem; background: #fff; border-radius: 6px; }
"""

_GLANCE = (
    "Share of marked texts found at {level}. Filled: thresholds from unmarked texts after the same attack. "
    "Hollow: from unattacked ones. A gap between them is a shifted null, not robustness."
)

_SCORES = (
    "Scores of marked and unmarked texts. Where orange lies to the right of the grey outline, the attack "
    "raises the score of unmarked texts too."
)

_ROC = (
    "ROC curves, mean over seeds. Solid: against unmarked texts after the same attack. Dashed: against "
    "unattacked ones."
)

Drawn = tuple[str, str, "Figure"]  # file name, what it shows, the figure


def write_report(
    run_dir: Path,
    *,
    title: str,
    table: str,
    configuration: Mapping[str, Any],
    commands: Sequence[str],
) -> list[Path]:
    """Write report.md, report.html, table.tex, table.csv, results.csv and figures/*.png beside the results.

    ``table`` is the recipe's name: the paper's table of that name is set beside ours. table.csv is the table
    that the report opens with, table.tex has all, results.csv every number of the evaluation.
    """
    run, paper = read_run(run_dir), paper_table(table)
    tables = report_tables(run, paper)
    if paper is not None:
        beside = beside_paper(run, paper)
        every = [*tables[:1], *([beside] if beside else []), *tables[1:], paper_as_table(paper)]
    else:
        every = tables
    drawn = _draw(run, configuration)
    settings = json.dumps(configuration, indent=1, ensure_ascii=False, default=str)
    notes = [*findings(run, paper), *(run.evaluation.notes if run.evaluation else ())]
    pictures = [(name, caption, small_png(figure)) for name, caption, figure in drawn]
    files = {
        "report.md": _markdown(title, notes, commands, settings, every, pictures),
        "report.html": _page(title, notes, commands, settings, every, pictures),
        "table.tex": "\n".join(map(to_latex, tables)),
        "table.csv": "".join(to_csv(each) for each in tables[:1]),
        **({"results.csv": long_csv(run.evaluation)} if run.evaluation else {}),
    }
    written = []
    for name, data in (
        *((name, text.encode("utf-8")) for name, text in files.items()),
        *((f"figures/{name}.png", picture) for name, _, picture in pictures),
    ):
        with storage.atomic_write(run_dir / name) as stream:
            stream.write(data)
        written.append(run_dir / name)
    return written


def _draw(run: RunFiles, configuration: Mapping[str, Any]) -> list[Drawn]:
    """The figures for which a run has the numbers."""
    evaluation = run.evaluation
    if evaluation is None or not evaluation.cells:
        return []
    rate = evaluation.rates[0]
    level = f"{100 * rate:g}%"
    drawn: list[tuple[str, str, Figure | None]] = [
        (
            "at-a-glance",
            _GLANCE.format(level=level),
            figures.at_a_glance(evaluation, rate=rate),
        )
    ]
    if run.scores:
        drawn += [
            (
                "scores",
                _SCORES,
                figures.score_distributions(run.scores, evaluation, rate=rate),
            ),
            (
                "roc",
                _ROC,
                figures.roc_curves(run.scores, evaluation),
            ),
        ]
    bands = "; bands are exact 95% intervals" if figures.has_bands(evaluation) else ""
    drawn.append(
        (
            "by-length",
            f"Share of marked texts found at {level}, by length{bands}.",
            figures.by_length(evaluation, whole=_tokens(configuration), rate=rate),
        )
    )
    drawn += _quality_figures(run, configuration)
    return [(name, caption, figure) for name, caption, figure in drawn if figure is not None]


def _tokens(configuration: Mapping[str, Any]) -> float | None:
    """How many tokens every text of a run has, if they all have as many."""
    decoding = configuration.get("decoding", {})
    ends = decoding.get("min_new_tokens"), decoding.get("max_new_tokens")
    return ends[1] if ends[0] == ends[1] else None


def _quality_figures(run: RunFiles, configuration: Mapping[str, Any]) -> list[tuple[str, str, Figure | None]]:
    evaluation = run.evaluation
    if evaluation is None:
        return []
    marked = {name: each for name, each in run.quality.items() if each.kind == "marked" and each.perplexity}
    perplexity = {name: each.perplexity.mean for name, each in marked.items() if each.perplexity}
    plain = [
        each.perplexity.mean for each in run.quality.values() if each.kind != "marked" and each.perplexity
    ]
    preference = {name: each.mean for name, each in run.preference.items()}
    joined = families(evaluation.schemes, configuration)
    caption = "Robustness against text quality, matched null; a line joins one scheme's strengths."
    return [
        (
            f"robustness-{name}",
            caption,
            figures.trade_offs(
                joined, evaluation, values, unmarked=unmarked, label=label, rate=evaluation.rates[0]
            ),
        )
        for name, values, unmarked, label in (
            ("perplexity", perplexity, plain[0] if plain else None, "median perplexity under the judge"),
            ("preference", preference, 0.0, "net preference score (0: as good as unmarked)"),
        )
    ]


def _markdown(
    title: str,
    notes: Sequence[str],
    commands: Sequence[str],
    settings: str,
    tables: Sequence[Table],
    pictures: Sequence[tuple[str, str, bytes]],
) -> str:
    parts = [f"# {title}\n", f"Written by dewmark {__version__}.\n"]
    if commands:
        parts.append("```bash\n" + "\n".join(commands) + "\n```\n")
    if notes:
        parts += ["## What this shows\n", *(f"- {note}" for note in notes), ""]
    parts += [to_markdown(table) for table in tables]
    parts += [f"![{caption}](figures/{name}.png)\n\n{caption}\n" for name, caption, _ in pictures]
    parts.append(f"## Configuration\n\n```json\n{settings}\n```\n")
    return "\n".join(parts)


def _page(
    title: str,
    notes: Sequence[str],
    commands: Sequence[str],
    settings: str,
    tables: Sequence[Table],
    pictures: Sequence[tuple[str, str, bytes]],
) -> str:
    listed = "".join(f"<li>{_escape(note)}</li>" for note in notes)
    said = f"<section><h2>What this shows</h2><ul>{listed}</ul></section>\n" if notes else ""
    asked = f"<pre>{_escape(chr(10).join(commands))}</pre>" if commands else ""
    drawn = [
        f'<section><figure><img alt="{_escape(caption)}" '
        f'src="data:image/png;base64,{base64.b64encode(data).decode("ascii")}">'
        f"<figcaption>{_escape(caption)}</figcaption></figure></section>\n"
        for _, caption, data in pictures
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{_escape(title)}</h1>\n{asked}{said}"
        f"<details><summary>Configuration</summary><pre>{_escape(settings)}</pre></details>\n"
        f"{''.join(map(to_html, tables[:2]))}{''.join(drawn[:1])}"
        f"{''.join(map(to_html, tables[2:]))}{''.join(drawn[1:])}"
        f"<footer>dewmark {__version__}</footer>\n</main>\n</body>\n</html>\n"
    )


def _escape(text: str) -> str:
    return html.escape(text, quote=True)
