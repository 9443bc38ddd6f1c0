"""The report of an experiment: Markdown, one self-contained HTML page, LaTeX tables, CSV and figures.

It opens with the commands, the configuration and the findings; our tables, the paper's beside them and the
figures follow. The findings are a few sentences computed from the results: which schemes find most under each
attack, by thresholds that the attack has not moved; how far unattacked thresholds mislead; how many words the
attacks changed; whether schemes rank as in the paper.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dewmark import storage
from dewmark.reports.html_page import embedded_png, escape, html_page
from dewmark.stats.rates import Rate
from dewmark.version import __version__
from dewmark_lab.evaluation.results import CLEAN, Evaluation
from dewmark_lab.reports import experiment_plots
from dewmark_lab.reports.experiment_tables import report_tables, results_csv
from dewmark_lab.reports.paper import PaperTable, beside_paper, paired_with_paper, paper_as_table, paper_table
from dewmark_lab.reports.plots import small_png
from dewmark_lab.reports.run_results import (
    SHIFTED,
    RunResults,
    attack_label,
    is_truncation,
    preferred_operating_point,
    read_run,
    rewriting_attacks,
)
from dewmark_lab.reports.tables import Table, to_csv, to_html, to_latex, to_markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 15px/1.55 system-ui, sans-serif; } main { max-width: 80rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; }
.wide { overflow-x: auto; } table { font-size: .85rem; } th, td { padding: .25rem .55rem; }
thead th[colspan] { text-align: center; border-left: 1px solid var(--line); }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--card); font-weight: 500; }
tr.group th { font-style: italic; color: var(--soft); }
.soft { font-size: .85rem; margin: .5rem 0 0; }
pre { overflow-x: auto; background: var(--page); border-radius: 6px; padding: .6rem .8rem; font-size: .8rem; }
figure { margin: 0; } figcaption { font-size: .85rem; } img { margin-bottom: .5rem; background: #fff; }
"""

_AT_A_GLANCE = (
    "Share of marked texts found at {level}. Filled: thresholds from unmarked texts after the same attack. "
    "Hollow: from unattacked ones. A gap between them is a shifted null, not robustness."
)
_SCORES = (
    "Scores of marked and unmarked texts. If orange lies to the right of the grey outline, the attack raises "
    "the score of unmarked texts too."
)
_ROC = (
    "ROC curves, mean over seeds. Solid: against unmarked texts after the same attack. Dashed: against "
    "unattacked ones."
)
_TRADE_OFF = "Robustness against text quality, matched null; a line joins the strengths of one scheme."

Drawn = tuple[str, str, "Figure | None"]  # file name, caption, figure


@dataclass(frozen=True)
class _Report:
    """The content of a report; ``pictures`` are (file name, caption, PNG)."""

    title: str
    findings: Sequence[str]
    commands: Sequence[str]
    settings: str
    tables: Sequence[Table]
    pictures: Sequence[tuple[str, str, bytes]]


def write_report(
    run_dir: Path,
    *,
    title: str,
    table: str,
    configuration: Mapping[str, Any],
    commands: Sequence[str],
) -> list[Path]:
    """Write report.md, report.html, table.tex, table.csv, results.csv and figures/*.png to the run's folder.

    ``table`` is the recipe's name: the paper's table of that name is shown beside ours. table.csv is the
    first table of the report, table.tex has all of ours, results.csv every number of the evaluation.
    """
    run, paper = read_run(run_dir), paper_table(table)
    ours = every = report_tables(run, paper)
    if paper is not None:
        beside = beside_paper(run, paper)
        every = [*ours[:1], *([beside] if beside else []), *ours[1:], paper_as_table(paper)]
    report = _Report(
        title=title,
        findings=[*findings(run, paper), *(run.evaluation.notes if run.evaluation else ())],
        commands=commands,
        settings=json.dumps(configuration, indent=1, ensure_ascii=False, default=str),
        tables=every,
        pictures=[
            (name, caption, small_png(figure))
            for name, caption, figure in _draw(run, configuration)
            if figure is not None
        ],
    )
    files = {
        "report.md": _markdown(report).encode(),
        "report.html": _page(report).encode(),
        "table.tex": "\n".join(map(to_latex, ours)).encode(),
        "table.csv": "".join(map(to_csv, ours[:1])).encode(),
        **({"results.csv": results_csv(run.evaluation).encode()} if run.evaluation else {}),
        **{f"figures/{name}.png": picture for name, _, picture in report.pictures},
    }
    for name, data in files.items():
        with storage.atomic_write(run_dir / name) as stream:
            stream.write(data)
    return [run_dir / name for name in files]


def _draw(run: RunResults, configuration: Mapping[str, Any]) -> list[Drawn]:
    """The figures; None for those that the run has no numbers for."""
    evaluation = run.evaluation
    if evaluation is None or not evaluation.cells:
        return []
    rate = evaluation.rates[0]
    level = f"{100 * rate:g}%"
    drawn: list[Drawn] = [
        ("at-a-glance", _AT_A_GLANCE.format(level=level), experiment_plots.at_a_glance(evaluation, rate=rate))
    ]
    if run.scores:
        scores = experiment_plots.score_distributions(run.scores, evaluation, rate=rate)
        drawn.append(("scores", _SCORES, scores))
        drawn.append(("roc", _ROC, experiment_plots.roc_curves(run.scores, evaluation)))
    bands = "; bands are exact 95% intervals" if experiment_plots.has_bands(evaluation) else ""
    by_length = experiment_plots.by_length(evaluation, whole=_text_length(configuration), rate=rate)
    drawn.append(("by-length", f"Share of marked texts found at {level}, by length{bands}.", by_length))
    marked = {name: each for name, each in run.quality.items() if each.kind == "marked"}
    plain = [each.perplexity for each in run.quality.values() if each.kind != "marked" and each.perplexity]
    for name, quality, unmarked, label in (
        (
            "robustness-perplexity",
            {name: each.perplexity.mean for name, each in marked.items() if each.perplexity},
            plain[0].mean if plain else None,
            "median perplexity under the judge",
        ),
        (
            "robustness-preference",
            {name: each.mean for name, each in run.preference.items()},
            0.0,
            "net preference score (0: as good as unmarked)",
        ),
    ):
        families = experiment_plots.families(evaluation.schemes, configuration)
        figure = experiment_plots.robustness_against_quality(
            families, evaluation, quality, unmarked=unmarked, label=label, rate=rate
        )
        drawn.append((name, _TRADE_OFF, figure))
    return drawn


def _text_length(configuration: Mapping[str, Any]) -> float | None:
    """The number of tokens of every text, if the run fixed it."""
    decoding = configuration.get("decoding", {})
    shortest, longest = decoding.get("min_new_tokens"), decoding.get("max_new_tokens")
    return longest if shortest == longest else None


def _markdown(report: _Report) -> str:
    parts = [f"# {report.title}\n", f"Written by dewmark {__version__}.\n"]
    if report.commands:
        parts.append("```bash\n" + "\n".join(report.commands) + "\n```\n")
    if report.findings:
        parts += ["## Findings\n", *(f"- {finding}" for finding in report.findings), ""]
    parts += map(to_markdown, report.tables)
    parts += [f"![{caption}](figures/{name}.png)\n\n{caption}\n" for name, caption, _ in report.pictures]
    parts.append(f"## Configuration\n\n```json\n{report.settings}\n```\n")
    return "\n".join(parts)


def _page(report: _Report) -> str:
    items = "".join(f"<li>{escape(finding)}</li>" for finding in report.findings)
    said = f"<article><h2>Findings</h2><ul>{items}</ul></article>\n" if items else ""
    commands = f"<pre>{escape(chr(10).join(report.commands))}</pre>" if report.commands else ""
    figures = [
        f"<article><figure>{embedded_png(data, caption)}"
        f"<figcaption>{escape(caption)}</figcaption></figure></article>\n"
        for _, caption, data in report.pictures
    ]
    tables = list(map(to_html, report.tables))
    body = (
        f"<h1>{escape(report.title)}</h1>\n{commands}{said}"
        f"<details><summary>Configuration</summary><pre>{escape(report.settings)}</pre></details>\n"
        f"{''.join([*tables[:2], *figures[:1], *tables[2:], *figures[1:]])}"
    )
    return html_page(report.title, body, style=_STYLE)


_MAX_NAMED = 4  # schemes listed by name in a sentence; beyond, it gives their number
_MIN_RANKED = 4  # schemes needed for a rank correlation


def findings(run: RunResults, paper: PaperTable | None) -> list[str]:
    """The sentences, the most important first."""
    if run.evaluation is None:
        return []
    ranks = [] if paper is None else list(_rank_correlations(run, paper))
    return [
        *_best_schemes(run.evaluation),
        *_shifted_thresholds(run.evaluation),
        *_words_changed(run.evaluation),
        *ranks,
    ]


def _best_schemes(evaluation: Evaluation) -> Iterator[str]:
    rate = evaluation.rates[0]
    for attack in rewriting_attacks(evaluation):
        found: dict[str, Rate] = {}
        for scheme in evaluation.schemes:
            cell = evaluation.cell(scheme, attack)
            if cell is not None and (at := preferred_operating_point(cell, rate)) is not None:
                found[scheme] = at.found
        if len(found) < 2:
            continue
        best, worst = (end(found, key=lambda scheme: found[scheme].rate) for end in (max, min))
        near = [scheme for scheme, each in found.items() if each.high >= found[best].low and scheme != best]
        null = "" if attack == CLEAN else ", against negatives after the same attack"
        yield (
            f"{attack_label(attack)}: {best} finds most marked texts, {_share(found[best])} at "
            f"{100 * rate:g}%{null}{_also(near)}; {worst} finds fewest, {_share(found[worst])}"
        )


def _share(rate: Rate) -> str:
    return f"{rate.rate:.3f} [{rate.low:.3f}, {rate.high:.3f}]"


def _also(near: Sequence[str]) -> str:
    if not near:
        return " (its interval lies above all others)"
    names = ", ".join(near) if len(near) <= _MAX_NAMED else f"{len(near)} others"
    return f" (its interval overlaps those of {names})"


def _shifted_thresholds(evaluation: Evaluation) -> Iterator[str]:
    """How often an attack makes unmarked texts pass unattacked thresholds, and the worst case."""
    attacked = [
        (cell, at, at.attacked)
        for cell in evaluation.cells
        for rate in evaluation.rates
        if cell.attack != CLEAN and not is_truncation(cell.attack)
        if (at := cell.at("clean", rate)) is not None and at.attacked is not None
    ]
    shifted = [
        (passed.rate / at.rate, cell, at)
        for cell, at, passed in attacked
        if at.shift_p is not None and at.shift_p < SHIFTED
    ]
    if shifted:
        moved = len({(cell.scheme, cell.attack) for _, cell, _ in shifted})
        cells = len({(cell.scheme, cell.attack) for cell, *_ in attacked})
        times, cell, at = max(shifted, key=lambda each: each[0])
        yield (
            f"in {moved} of {cells} attacked cells, unmarked texts pass an unattacked threshold more often "
            f"after the attack (p < {SHIFTED:g}), up to {100 * times * at.rate:.0f}% of them at "
            f"{100 * at.rate:g}% ({cell.scheme} under {cell.attack}): compare schemes by the matched null"
        )
    elif attacked:
        texts = min(passed.trials for *_, passed in attacked)
        yield (
            f"no attack makes unmarked texts pass an unattacked threshold significantly more often (p < "
            f"{SHIFTED:g}, from {texts} texts per cell)"
        )


def _words_changed(evaluation: Evaluation) -> Iterator[str]:
    lost = {}
    for attack in evaluation.attacks:
        kept = [cell.kept for cell in evaluation.cells if cell.attack == attack and cell.kept is not None]
        if kept:
            lost[attack] = 1.0 - math.fsum(kept) / len(kept)
    if lost:
        shares = ", ".join(f"{share:.2f} by {attack}" for attack, share in lost.items())
        yield f"share of marked texts' words replaced or removed: {shares}"


def _rank_correlations(run: RunResults, paper: PaperTable) -> Iterator[str]:
    from scipy.stats import spearmanr

    correlations, schemes = [], set[str]()
    for heading, pairs in paired_with_paper(run, paper):
        ours, theirs = [pair[0] for pair in pairs.values()], [pair[1] for pair in pairs.values()]
        if len(pairs) >= _MIN_RANKED and len(set(ours)) > 1 and len(set(theirs)) > 1:
            correlations.append(f"{heading} {spearmanr(ours, theirs).statistic:+.2f}")
            schemes |= set(pairs)
    if correlations:
        yield (
            f"rank correlation with the paper's {paper.source} over the schemes that it shares with this run "
            f"({len(schemes)}): {', '.join(correlations)}"
        )
