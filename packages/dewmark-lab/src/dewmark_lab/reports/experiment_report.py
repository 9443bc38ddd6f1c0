"""The report of an experiment: a Markdown page with figures, and a CSV file with every number.

The page has the commands, caveats, our tables, the paper's numbers beside ours, the figures and the
configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dewmark import storage
from dewmark.version import __version__
from dewmark_lab.evaluation.protocol import RATES
from dewmark_lab.reports import plots
from dewmark_lab.reports.experiment_tables import report_tables, results_csv
from dewmark_lab.reports.paper import beside_paper, paper_table
from dewmark_lab.reports.run_results import RunResults, read_run
from dewmark_lab.reports.tables import to_markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_AT_A_GLANCE = (
    "Share of marked texts found at {level}. Filled: thresholds from unmarked texts after the same attack. "
    "Hollow: from unattacked ones. A gap between them is a shifted null, not robustness."
)
_ROC = (
    "ROC curves, mean over seeds. Solid: against unmarked texts after the same attack. Dashed: against "
    "unattacked ones."
)
_TRADE_OFF = "Robustness against text quality, matched null; a line joins the strengths of one scheme."

Drawn = tuple[str, str, "Figure | None"]  # file name, caption, figure


def write_report(
    run_dir: Path,
    configuration: Mapping[str, Any],
    *,
    title: str,
    table: str,
    commands: Sequence[str],
    rates: Sequence[float] = RATES,
) -> list[Path]:
    """Write report.md, results.csv and figures/*.png to the run's folder.

    ``table`` is the recipe's name: the paper's table of that name is shown beside ours. results.csv has every
    number of the evaluation at the nominal ``rates``.
    """
    run, paper = read_run(run_dir, rates=rates), paper_table(table)
    tables = report_tables(run, paper)
    if paper is not None and (beside := beside_paper(run, paper)) is not None:
        tables.insert(1, beside)
    pictures = [
        (name, caption, plots.small_png(figure))
        for name, caption, figure in _draw(run, configuration)
        if figure is not None
    ]
    notes = run.evaluation.notes if run.evaluation else ()
    parts = [f"# {title}\n", f"Written by dewmark {__version__}.\n"]
    parts += ["```bash\n" + "\n".join(commands) + "\n```\n"] if commands else []
    parts += [*(f"- {note}" for note in notes), ""] if notes else []
    parts += map(to_markdown, tables)
    parts += [f"![{caption}](figures/{name}.png)\n\n{caption}\n" for name, caption, _ in pictures]
    settings = json.dumps(configuration, indent=1, ensure_ascii=False, default=str)
    parts.append(f"## Configuration\n\n```json\n{settings}\n```\n")
    files = {
        "report.md": "\n".join(parts).encode(),
        **({"results.csv": results_csv(run.evaluation).encode()} if run.evaluation else {}),
        **{f"figures/{name}.png": picture for name, _, picture in pictures},
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
    glance = plots.at_a_glance(evaluation, rate=rate)
    drawn: list[Drawn] = [("at-a-glance", _AT_A_GLANCE.format(level=level), glance)]
    if run.scores:
        drawn.append(("roc", _ROC, plots.roc_curves(run.scores, evaluation)))
    bands = "; bands are exact 95% intervals" if plots.has_bands(evaluation) else ""
    by_length = plots.by_length(evaluation, whole=_text_length(configuration), rate=rate)
    drawn.append(("by-length", f"Share of marked texts found at {level}, by length{bands}.", by_length))
    drawn.append(
        (
            "robustness-perplexity",
            _TRADE_OFF,
            plots.robustness_by_perplexity(evaluation, run.quality, rate=rate),
        )
    )
    return drawn


def _text_length(configuration: Mapping[str, Any]) -> float | None:
    """The number of tokens of every text, if the run fixed it."""
    decoding = configuration.get("decoding", {})
    shortest, longest = decoding.get("min_new_tokens"), decoding.get("max_new_tokens")
    return longest if shortest == longest else None
