"""The speed tables of docs/bench.md, from the results of ``benchmarks/default_speed.py``.

    python benchmarks/speed_table.py speed.json [MORE.json ...]

Keeps the results in docs/results/default-speed.json (of two runs of one cell the later file's), and writes
the tables between the comments ``<!-- speed -->`` and ``<!-- /speed -->`` of the page. Without a file it
writes the tables of the results that are kept.

A result has one entry per host, way of running it and batch size, such as ``llama-3.2-3b graphed, batch 16``,
with the milliseconds of a step under each mark (three quartiles) and the median ratio to no mark in the same
rounds. Further entries say what detection takes.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "docs" / "results" / "default-speed.json"
_CELL = re.compile(r"(\S+) (eager|graphed), batch (\d+)")
_MARKS = {
    "none": "no mark, ms a step",
    "dew": "**DEW, the default**",
    "kgw": "KGW",
    "synthid": "SynthID",
    "exp": "EXP",
    "transformers kgw": "KGW of transformers",
    "transformers synthid": "SynthID of transformers",
    "vllm gumbel": "Gumbel of vLLM",
}
_HOSTS = {"llama-3.2-3b": "Llama-3.2-3B", "smollm2-135m": "SmolLM2-135M"}
_HOW = {"graphed": "in a CUDA graph", "eager": "eager"}


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """A step under one mark: ``ms`` are its quartiles, ``ratio`` is to no mark, None where not measured.

    ``interval`` is the ratio's 95% interval, None where there were too few rounds for one.
    """

    host: str
    how: str
    batch: int
    mark: str
    ms: tuple[float, ...]
    ratio: float | None
    interval: tuple[float, float] | None = None

    @property
    def median(self) -> float:
        """Milliseconds of a step."""
        return self.ms[len(self.ms) // 2]


def speed_pages(report: Mapping[str, Any]) -> dict[str, str]:
    """The tables of a report by the page that shows them."""
    rows = speed_rows(report)
    columns = list(dict.fromkeys((row.host, row.how) for row in rows))
    columns.sort(key=lambda column: column[1] != "graphed")
    where = f"{report['device']}, torch {report['torch']}"
    steps = "".join(
        f"**{_HOSTS.get(host, host)}, {_HOW[how]}** ({where}):\n\n{step_table(rows, host, how)}\n"
        for host, how in columns
    )
    found = f"**Detection** ({where}):\n\n{detection_table(report)}" if "detection" in report else ""
    return {"docs/bench.md": f"{overhead_table(rows, columns)}\n{steps}{found}"}


def merge(reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One report of several runs; a file may hold several itself. Of two entries the later one counts."""
    merged: dict[str, Any] = {}
    for report in reports:
        nested = [each for each in report.values() if isinstance(each, Mapping) and "device" in each]
        merged |= merge(nested) if nested else report
    return merged


def speed_rows(report: Mapping[str, Any]) -> list[SpeedRow]:
    """The marking steps of a report, in its order."""
    found = []
    for name, cell in report.items():
        match = _CELL.fullmatch(name)
        if match is None or not isinstance(cell, Mapping):
            continue
        for mark, taken in cell.items():
            ms = taken["ms"] if isinstance(taken["ms"], Sequence) else (taken["ms"],)
            interval = tuple(taken["interval"]) if taken.get("interval") else None
            about = match[1], match[2], int(match[3]), mark
            found.append(SpeedRow(*about, tuple(ms), taken.get("ratio"), interval))
    return found


def overhead_table(rows: Sequence[SpeedRow], hosts: Sequence[tuple[str, str]]) -> str:
    """Markdown: for hosts and ways of running them, a step without a mark, and what each mark adds to it."""
    cells = {(row.host, row.how, row.batch, row.mark): row for row in rows}
    marks = _marks(rows)
    lines = [
        (
            f"{_HOSTS.get(host, host)} {how}, {batch}",
            *(_short(cells.get((host, how, batch, m))) for m in marks),
        )
        for host, how in hosts
        for batch in sorted({row.batch for row in rows if (row.host, row.how) == (host, how)})
    ]
    return _markdown(("host, batch", *(_MARKS.get(mark, mark) for mark in marks)), lines)


def step_table(rows: Sequence[SpeedRow], host: str, how: str) -> str:
    """Markdown: ms of a step (quartiles), ms per token, and the overhead, by mark and batch size."""
    mine = [row for row in rows if (row.host, row.how) == (host, how)]
    batches = sorted({row.batch for row in mine})
    cells = {(row.batch, row.mark): row for row in mine}
    lines = [
        (_MARKS.get(mark, mark).replace(", ms a step", ""), *(_long(cells.get((n, mark))) for n in batches))
        for mark in _marks(mine)
    ]
    return _markdown(("", *(f"batch {batch}" for batch in batches)), lines)


def detection_table(report: Mapping[str, Any]) -> str:
    """Markdown: milliseconds of detection per text (quartiles), by device."""
    lines = []
    for device, taken in report.get("detection", {}).items():
        lines.append((device, *(_quartiles(taken[how]) for how in ("ms_batched", "ms_single"))))
    return _markdown(("ms a text of 200 tokens", "in batches of 100", "one at a time"), lines)


def replace_block(text: str, name: str, block: str) -> str:
    """A page with the lines between its comments ``name`` and ``/name`` replaced."""
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the page has no block {name!r}")
    return pattern.sub(lambda match: f"{match[1]}{block}{match[2]}", text)


def _marks(rows: Sequence[SpeedRow]) -> list[str]:
    """The marks of rows: those with a name in its order, then the others."""
    found = dict.fromkeys(row.mark for row in rows)
    return [mark for mark in _MARKS if mark in found] + [mark for mark in found if mark not in _MARKS]


def _short(row: SpeedRow | None) -> str:
    if row is None or row.ratio is None:
        return ""
    if row.mark == "none":
        return f"{row.median:.2f}"
    within = ""
    if row.mark == "dew" and row.interval:
        within = " ({:+.1f} to {:+.1f})".format(*(100 * (ratio - 1) for ratio in row.interval))
    return f"{100 * (row.ratio - 1):+.1f}%{within}"


def _long(row: SpeedRow | None) -> str:
    if row is None:
        return ""
    cost = f"{_quartiles(row.ms)}; {row.median / row.batch:.3g} a token"
    return cost if row.mark == "none" or row.ratio is None else f"{cost}; {100 * (row.ratio - 1):+.1f}%"


def _quartiles(ms: Sequence[float]) -> str:
    if len(ms) != 3:
        return f"{ms[0]:.2f}"
    return f"{ms[1]:.2f} ({ms[0]:.2f} to {ms[2]:.2f})"


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = (head, ["---"] * len(head), *lines)
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*", metavar="SPEED.json")
    args = parser.parse_args()
    if args.files:
        report = merge(json.loads(file.read_text(encoding="utf-8")) for file in args.files)
        KEPT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    report = json.loads(KEPT.read_text(encoding="utf-8"))
    for name, block in speed_pages(report).items():
        page = ROOT / name
        page.write_text(replace_block(page.read_text(encoding="utf-8"), "speed", block), encoding="utf-8")
        print(f"{name}:\n{block}")


if __name__ == "__main__":
    main()
