"""Train the artifact of every learned baseline for one host, one after the other, in one command.

    python benchmarks/train_rivals.py --host gemma3-270m --out artifacts --lexicon en-de.txt

A lexicon has two words per line, separated by spaces or a tab (the MUSE dictionaries are such files); X-SIR
makes its clusters from all of them together. The host writes the training texts once, and all schemes share
them; a stopped run continues. Use the results with ``--set artifact=OUT/SCHEME``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from script_inputs import script_parser

SCHEMES = ("sir", "xsir", "atw", "ts", "semstamp", "ksemstamp")


def main() -> None:
    """Run the trainings."""
    parser = script_parser(__doc__)
    parser.add_argument("schemes", nargs="*", default=SCHEMES, metavar="SCHEME")
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--encoder", default="use-m3")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lexicon", type=Path, action="append", default=[])
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for scheme in args.schemes:
        command = [sys.executable, "-m", "dewmark", "train", scheme, "--out", str(args.out / scheme)]
        command += ["--host", args.host, "--encoder", args.encoder, "--device", args.device]
        if scheme == "xsir" and args.lexicon:
            command += ["--lexicon", str(joined(args.lexicon, args.out / "lexicon.tsv"))]
        print(" ".join(command), flush=True)
        subprocess.run(command, check=True)


def joined(files: list[Path], out: Path) -> Path:
    """All pairs of the files in one file, separated by tabs, each pair once."""
    pairs = dict.fromkeys(
        tuple(line.split())
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if len(line.split()) == 2
    )
    out.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    return out


if __name__ == "__main__":
    main()
