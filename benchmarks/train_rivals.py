"""Train the artifact of every learned baseline for one host, several at a time.

    python benchmarks/train_rivals.py --out artifacts --device cuda --jobs 3 --paraphrases pairs.jsonl
    python benchmarks/train_rivals.py sir xsir --host gemma3-270m --lexicon en-pt.tsv --out artifacts-gemma

The host first writes the training texts, continuing sentences that no experiment uses as a prompt; all
schemes share them. SemStamp and k-SemStamp learn from real paraphrases: each text's round trip through
Portuguese, and the rows of ``--paraphrases`` (JSONL with ``text`` and ``paraphrase``). X-SIR makes its
clusters from all ``--lexicon`` files together: two words per line, separated by spaces or a tab, as in the
MUSE dictionaries. With ``--texts-file`` all schemes train on the rows of that file; the host writes nothing.

Each artifact goes to OUT/SCHEME, for ``--set artifact=OUT/SCHEME``; what is there is not trained again, and a
stopped training continues. OUT/trained.jsonl gets a line per artifact, with its seconds and its report.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import time
from pathlib import Path

from script_inputs import script_parser

from dewmark import hosts
from dewmark.artifacts import CARD
from dewmark.attacks.translation.machine_translation import NeuralEngine
from dewmark.config import cache_dir
from dewmark.encoders import load_encoder
from dewmark.lab.training.job import Job, train_artifact
from dewmark.lab.training.texts import FileTexts, HostTexts, Texts
from dewmark.registry import TRAINERS
from dewmark.storage import read_jsonl

SCHEMES = ("sir", "xsir", "ksemstamp", "ts", "atw", "semstamp")  # the longest first
PARAPHRASED = ("semstamp", "ksemstamp")
TEXTS, ROUND_TRIPS = 512, 320


def main() -> None:
    """Write the texts, then run the trainings, each in a process of its own."""
    parser = script_parser(__doc__)
    parser.add_argument("schemes", nargs="*", default=list(SCHEMES), metavar="SCHEME")
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--encoder", default="use-m3")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--paraphrases", type=Path)
    parser.add_argument("--texts-file", type=Path, help="JSONL with text, and paraphrase where there is one")
    parser.add_argument("--lexicon", type=Path, action="append", default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--texts", type=int, default=TEXTS, help="fewer only to try the script")
    parser.add_argument("--steps", type=int, help="fewer only to try the script")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.alone:
        train(options, options.schemes[0])
        return
    wanted = [scheme for scheme in options.schemes if not (options.out / scheme / CARD).exists()]
    if wanted and not options.texts_file:
        begun = time.perf_counter()
        source(options).take(options.texts, least=options.texts)
        print(f"{options.texts} texts after {time.perf_counter() - begun:.1f} s", flush=True)
    if set(wanted) & set(PARAPHRASED) and not options.texts_file:
        write_paraphrases(options)
    if "xsir" in wanted and options.lexicon:
        joined(options.lexicon, options.out / "lexicon.tsv")
    given = [word for word in sys.argv[1:] if word not in options.schemes]
    running: list[subprocess.Popen[bytes]] = []
    for scheme in wanted:
        while sum(process.poll() is None for process in running) >= options.jobs:
            time.sleep(0.2)
        running.append(subprocess.Popen([sys.executable, __file__, scheme, *given, "--alone"]))
    sys.exit(max((abs(process.wait()) for process in running), default=0))


def source(options: argparse.Namespace) -> HostTexts:
    """The texts that the host writes, or has written before."""
    load = functools.partial(hosts.load_host, options.host, device=options.device)
    info = hosts.host_info(options.host)
    return HostTexts(info, functools.cache(load), cache=cache_dir(), seed=0, progress=lambda *_: None)


def train(options: argparse.Namespace, scheme: str) -> None:
    """Train one artifact and add its line."""
    begun = time.perf_counter()
    texts: Texts = source(options)
    if options.texts_file:
        texts = FileTexts(options.texts_file)
    elif scheme in PARAPHRASED and (options.out / "paraphrases.jsonl").exists():
        texts = FileTexts(options.out / "paraphrases.jsonl")
    elif options.texts < TEXTS:
        small = options.out / "texts.jsonl"
        small.write_text(
            "".join(
                json.dumps({"text": each}) + "\n" for each in source(options).take(options.texts, least=1)
            )
        )
        texts = FileTexts(small)
    lexicon = options.out / "lexicon.tsv"
    job = Job(
        scheme=scheme,
        info=hosts.host_info(options.host),
        open_host=functools.cache(functools.partial(hosts.load_host, options.host, device=options.device)),
        encoder=load_encoder(options.encoder, device=options.device),
        texts=texts,
        out=options.out / scheme,
        progress=lambda *_: None,
        lexicon=lexicon if scheme == "xsir" and lexicon.exists() else None,
        device=options.device,
        steps=options.steps,
    )
    _, report = train_artifact(TRAINERS[scheme], job)
    row = {
        "scheme": scheme,
        "host": options.host,
        "seconds": round(time.perf_counter() - begun, 1),
        **report,
    }
    print(json.dumps(row), flush=True)
    with (options.out / "trained.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


def write_paraphrases(options: argparse.Namespace) -> None:
    """Write OUT/paraphrases.jsonl: texts with their round trips, and the rows of ``--paraphrases``."""
    file = options.out / "paraphrases.jsonl"
    if file.exists():
        return
    number = min(ROUND_TRIPS, options.texts)
    texts = source(options).take(number, least=number)
    quiet = {"task": "", "progress": lambda *_: None}
    foreign = NeuralEngine("en", "pt", options.device).translate(texts, **quiet)
    back = NeuralEngine("pt", "en", options.device).translate(foreign, **quiet)
    rows = [{"text": text, "paraphrase": again} for text, again in zip(texts, back, strict=True)]
    if options.paraphrases:
        rows += [row for _, row in read_jsonl(options.paraphrases)]
    draft = file.with_suffix(".part")
    draft.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    draft.rename(file)


def joined(files: list[Path], out: Path) -> None:
    """All pairs of the files in one file, separated by tabs, each pair once."""
    pairs = dict.fromkeys(
        tuple(line.split())
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if len(line.split()) == 2
    )
    out.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")


if __name__ == "__main__":
    main()
