"""Several conditions side by side: one table of a recipe that was run under each of them.

``conditions.csv`` has a line per condition, scheme and attack: the shares of texts with p < 0.01 and
p < 1e-4, marked and, beside them, unmarked after the same treatment; the mean z; and, for unattacked texts,
how their wording differs from that of the unmarked texts. ``conditions.md`` shows them as tables.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dewmark import storage
from dewmark.stats.rates import Interval
from dewmark_lab.evaluation.divergence import Divergence
from dewmark_lab.evaluation.quality import MEASURES
from dewmark_lab.evaluation.results import CLEAN, ResultCell
from dewmark_lab.reports.run_results import QualityFigures, RunResults, attack_label, is_truncation, read_run

FILE = "conditions.csv"
_LEVELS = (0.01, 1e-4)
_COLUMNS = (
    *("condition", "scheme", "attack", "texts", "tokens", "mean_z"),
    *("found_0.01", "found_0.01_low", "found_0.01_high", "found_0.0001", "found_0.0001_low"),
    *("found_0.0001_high", "unmarked_texts", "unmarked_0.01", "unmarked_0.0001", "log_perplexity"),
    *(f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")),
    *("divergence", "divergence_keys_sd", "divergence_of_average"),
)

Line = Mapping[str, str]


def write_conditions(out: Path, folders: Mapping[str, Path], *, title: str, command: str) -> list[Path]:
    """Write conditions.csv and conditions.md from the results of each condition's folder."""
    runs = {label: read_run(folder) for label, folder in folders.items()}
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for label, run in runs.items():
        for line in _lines(run):
            writer.writerow({"condition": label, **line})
    data = stream.getvalue()
    lines = list(csv.DictReader(io.StringIO(data)))
    parts = [f"# {title}\n", f"```bash\n{command}\n```\n", _NOTE]
    for label in runs:
        mine = [line for line in lines if line["condition"] == label]
        parts += [f"## {label}\n", _table(mine), _wording(mine)]
    files = {FILE: data, "conditions.md": "\n".join(part for part in parts if part)}
    for name, text in files.items():
        with storage.atomic_write(out / name) as file:
            file.write(text.encode())
    return [out / name for name in files]


_NOTE = (
    "Share of marked texts with p < 0.01 / p < 1e-4; in brackets the share of unmarked texts with p < 0.01 "
    "after the same treatment, which should be 0.01.\n"
)


def _table(lines: Sequence[Line]) -> str:
    """A Markdown table of one condition, with a row per scheme and a column per attack."""
    cells = {(line["scheme"], line["attack"]): line for line in lines}
    attacks = list(dict.fromkeys(attack for _, attack in cells))
    table = [["", *map(attack_label, attacks)], ["---", *["---:"] * len(attacks)]]
    for scheme in dict.fromkeys(scheme for scheme, _ in cells):
        found = (cells.get((scheme, attack)) for attack in attacks)
        table.append([f"`{scheme}`", *("–" if line is None else _cell(line) for line in found)])
    return "".join(f"| {' | '.join(row)} |\n" for row in table)


def _cell(line: Line) -> str:
    if not line["found_0.01"]:
        return "–"
    text = f"{float(line['found_0.01']):.3f} / {float(line['found_0.0001']):.3f}"
    return f"{text} ({float(line['unmarked_0.01']):.3f})" if line["unmarked_0.01"] else text


def _wording(lines: Iterable[Line]) -> str:
    """The wording of unattacked texts, as differences from the unmarked ones with half their interval."""
    shown = [line for line in lines if line["attack"] == CLEAN and line["distinct_content"]]
    if not shown:
        return ""
    heads = ["", "distinct content words", "unlisted words", "repetition", "log-perplexity"]
    heads += ["divergence under one key", "of the key average"]
    table = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for line in shown:
        values = [_difference(line, name) for name in MEASURES]
        values.append(f"{float(line['log_perplexity']):+.3f}" if line["log_perplexity"] else "–")
        spread = f"{line['divergence']} ± {line['divergence_keys_sd']}" if line["divergence"] else "–"
        table.append([f"`{line['scheme']}`", *values, spread, line["divergence_of_average"] or "–"])
    return (
        "Differences from the unmarked text of the same prompt and seed; divergences in nats per step.\n\n"
        + "".join(f"| {' | '.join(row)} |\n" for row in table)
    )


def _difference(line: Line, name: str) -> str:
    if not line[name]:
        return "–"
    half = (float(line[f"{name}_high"]) - float(line[f"{name}_low"])) / 2.0
    return f"{float(line[name]):+.3f} ± {half:.3f}"


def _lines(run: RunResults) -> Iterable[dict[str, object]]:
    for cell in run.evaluation.cells if run.evaluation else ():
        if not is_truncation(cell.attack):
            line = {"scheme": cell.scheme, "attack": cell.attack, "texts": cell.texts, **_shares(cell)}
            if cell.attack == CLEAN:
                line |= _quality(run.quality.get(cell.scheme), run.divergence.get(cell.scheme))
            yield line


def _shares(cell: ResultCell) -> dict[str, object]:
    found: dict[str, object] = {"tokens": f"{cell.tokens:g}", "mean_z": f"{cell.score:.3f}"}
    for level in _LEVELS:
        share = cell.share(level)
        if share is not None:
            found[f"found_{level:g}"] = f"{share.found.rate:.4f}"
            found |= {f"found_{level:g}_{end}": f"{getattr(share.found, end):.4f}" for end in ("low", "high")}
            if share.unmarked is not None:
                found["unmarked_texts"] = share.unmarked.trials
                found[f"unmarked_{level:g}"] = f"{share.unmarked.rate:.4f}"
    return found


def _quality(quality: QualityFigures | None, divergence: Divergence | None) -> dict[str, object]:
    found: dict[str, object] = {}
    if divergence is not None:
        found["divergence"] = f"{divergence.mean:.4f}"
        found["divergence_keys_sd"] = f"{divergence.keys_sd:.4f}"
        found["divergence_of_average"] = f"{divergence.of_average.value:.4f}"
    if quality is None:
        return found
    if quality.over_unmarked is not None:
        found["log_perplexity"] = f"{quality.over_unmarked.value:.4f}"
    for name in MEASURES:
        interval: Interval | None = quality.paired.get(name)
        if interval is not None:
            found |= {
                name: f"{interval.value:.4f}",
                f"{name}_low": f"{interval.low:.4f}",
                f"{name}_high": f"{interval.high:.4f}",
            }
    return found
