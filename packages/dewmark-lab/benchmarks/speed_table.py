"""The speed tables of docs/bench.md, from the results of ``benchmarks/default_speed.py``.

    python benchmarks/speed_table.py speed.json [MORE.json ...]

Keeps the results in docs/results/default-speed.json (of two runs of one cell the later file's), and writes
the tables between the comments ``<!-- speed -->`` and ``<!-- /speed -->`` of both pages. Without a file it
writes the tables of the results that are kept.
"""

from __future__ import annotations

import json
from pathlib import Path

from script_inputs import script_parser

from dewmark_lab.reports.speed import merge, replace_block, speed_pages

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "docs" / "results" / "default-speed.json"


def main() -> None:
    """Write the tables."""
    parser = script_parser(__doc__)
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
