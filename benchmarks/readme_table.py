"""The README's table, both settings side by side, from the results of ``dewmark reproduce chat``.

    python benchmarks/readme_table.py docs/results/chat/conditions.csv

Each cell is the share of marked texts with p < 0.01 / p < 1e-4; with ``--nulls`` the share of unmarked texts
with p < 0.01 after the same treatment follows in brackets.
"""

from __future__ import annotations

from pathlib import Path

from script_inputs import script_parser

from dewmark.reports.conditions import Selection, read_conditions, side_by_side

CONDITIONS = ("chat-200", "openings-200")
TREATMENTS = ("none", "delete-0.5", "round-trip", "translate", "brought-back")
ROWS = {
    "dew-default-reader": "**DEW on words, read by its host** (`dew-default-reader`)",
    "dew-default-gemma": "the same texts, read by another model (`dew-default-gemma`)",
    "dew-default": "**the same texts, no reader: the default** (`dew-default`)",
    "dew-tokens": "DEW on tokens, keyed sampling (`dew-tokens`)",
    "dew-paper-2.0-key": "DEW as published, under the key test (`dew-paper-2.0-key`)",
    "exp": "EXP (`exp`)",
    "synthid": "SynthID (`synthid`)",
    "kgw": "KGW (`kgw`)",
    "sir": "SIR (`sir`)",
}


def main() -> None:
    """Print the table."""
    parser = script_parser(__doc__)
    parser.add_argument("file", type=Path, metavar="CONDITIONS.csv")
    parser.add_argument("--nulls", action="store_true", help="add the shares of unmarked texts")
    args = parser.parse_args()
    lines = read_conditions(args.file)
    schemes = {line["scheme"] for line in lines}
    found = {(line["condition"], line["attack"]) for line in lines}
    columns = [
        (condition, attack)
        for condition in CONDITIONS
        for treatment in TREATMENTS
        # a translator's column also names its engine and language
        for attack in dict.fromkeys(each for _, each in found if each.split("-neural")[0] == treatment)
        if (condition, attack) in found
    ]
    rows = {scheme: name for scheme, name in ROWS.items() if scheme in schemes}
    print(side_by_side(lines, Selection(columns, rows, nulls=args.nulls)), end="")


if __name__ == "__main__":
    main()
