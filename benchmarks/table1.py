"""Table 1 of the paper on a packaged host, under both protocols of keys, within a time budget.

    python benchmarks/table1.py run OUT --device cuda --jobs 3 --minutes 8 --artifacts ARTIFACTS
    python benchmarks/table1.py report OUT [FEWER…] --to docs/results/main

It writes what `dewmark reproduce main` writes, in an order that makes a run useful whenever it stops: first
all rows of the paper with one key for its three seeds, then the same rows under the keys of the other two
seeds, then rows that the paper does not have. Workers share the rows: each takes the next one that nobody
has. A worker appends one line per cell (row, key, seed, kind of text, attack) to OUT/cells-N.jsonl and its
marked texts to OUT/texts-N.jsonl.gz; what is there is not made again. With ``--artifacts`` the learned
schemes use ARTIFACTS/SCHEME, which `benchmarks/train_rivals.py` may still be writing: their rows wait for it.

``report`` turns the cells into the report of `dewmark reproduce`. Slow rows may come from further folders,
whose runs had fewer ``--texts``: copy OUT/unmarked.json there first, and they share its negatives. The host
itself judges perplexity unless ``--judge`` names another model.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from script_inputs import script_parser

from dewmark.artifacts import CARD
from dewmark.attacks.base import load_attack
from dewmark.attacks.translation.machine_translation import NeuralEngine
from dewmark.hosts import load_host
from dewmark.lab.evaluation.protocol import evaluate
from dewmark.lab.evaluation.quality import quality, words_kept
from dewmark.lab.evaluation.results import CLEAN, MARKED, PER_SEED, UNMARKED, ScoreRow, write_scores
from dewmark.lab.evaluation.score_files import detection_numbers
from dewmark.lab.experiments.recipe import Recipe, SchemeEntry, load_recipe
from dewmark.lab.experiments.workers import LoadedModels
from dewmark.lab.prompts import prompt_texts, truncate
from dewmark.models.devices import torch_device

ROWS = (  # the rows of each group differ only in their test or score, so they share their texts
    ("dew-paper-2.0", "dew-paper-2.0-z", "dew-paper-2.0-key"),
    ("dew-paper-2.5", "dew-paper-2.5-key"),
    ("sir", "sir-exact"),
    ("xsir", "xsir-exact"),
    ("atw", "atw-exact"),
    ("ts",),
    ("kgw",),
    ("synthid",),
    ("unbiased",),
    ("morphmark",),
    ("dipmark",),
    ("ksemstamp",),
)
MORE = (("dew-default",), ("exp",), ("semstamp",), ("pasa",), ("simkey",), ("waterpool",))
SEEDS = 3
HOST = "smollm2-135m"
AFTER = {"translate": "translate-neural-pt", "round-trip": "round-trip-neural-pt"}
SCORED_AT_ONCE = 100


class Worker:
    """One process: its models, its files, and the units of work it takes."""

    def __init__(self, options: argparse.Namespace, number: int) -> None:
        self.options, self.number = options, number
        self.out: Path = options.out
        self.started = time.perf_counter()
        self.models = LoadedModels(options.device)
        self.host = self.models.host(options.host)
        self.judge = load_host(options.judge, device=options.device) if options.judge else self.host
        recipe = load_recipe("main", profile="local").on_host(options.host)
        labels = [label for group in (*ROWS, *MORE) for label in group]
        recipe = recipe.narrowed(schemes=labels, tokens=options.tokens, texts=options.texts)
        self.recipe = dataclasses.replace(
            recipe, decoding=dataclasses.replace(recipe.decoding, top_k=options.top_k)
        )
        self.entries = {entry.label: self._with_artifact(entry) for entry in self.recipe.schemes}
        opened = prompt_texts(self.recipe.prompts, options.texts)
        tokenizer = self.host.info.tokenizer
        self.prompts = truncate(opened, tokenizer, tokens=self.recipe.prompt_tokens)

    def run(self) -> None:
        """Take units until none is left or the time is up."""
        units = list(self._units())
        if self.number == 0:
            self.unmarked()
        pending = True
        while pending and not self._late():
            pending = False
            for unit in units:
                if self._late():
                    return
                waiting = self._unit(*unit)
                pending = pending or waiting
            if pending:
                time.sleep(2.0)

    def _units(self) -> Iterator[tuple[tuple[str, ...], int, tuple[int, ...]]]:
        """Groups of rows, a key, and the seeds whose texts are written with it at once: of drafts, one."""
        wanted = self.options.rows
        paper, more = (
            [tuple(label for label in group if not wanted or label in wanted) for group in each]
            for each in (ROWS, MORE)
        )
        paper, more = ([group for group in each if group] for each in (paper, more))
        one = [(0, seed) for seed in range(SEEDS)]
        others = [(seed, seed) for seed in range(1, SEEDS)] if "per-seed" in self.options.protocols else []
        phases = [(paper, one), (paper, others), (more if self.options.more else [], one)]
        for groups, pairs in phases:
            for group in groups:
                if pairs is others or self.entries[group[0]].build().needs.drafts:
                    yield from ((group, key, (seed,)) for key, seed in pairs)
                else:
                    yield group, 0, tuple(range(SEEDS))

    def _unit(self, group: tuple[str, ...], key: int, seeds: tuple[int, ...]) -> bool:
        """Do a group of rows under a key; returns whether it must wait for an artifact."""
        entry = self.entries[group[0]]
        name = f"{group[0]}-{key}-{''.join(map(str, seeds))}"
        if self._finished(name):
            return False
        needed = self.options.artifacts and entry.build().needs.artifact
        if needed and not (self.options.artifacts / entry.scheme / CARD).exists():
            return True
        with claimed(self.out / "claims" / name) as mine:
            if mine and not self._finished(name):  # another worker may have finished it meanwhile
                begun = time.perf_counter()
                self._texts_and_scores(group, key, seeds)
                self._append({"unit": f"{name} done", "seconds": round(time.perf_counter() - begun, 1)})
        return False

    def _texts_and_scores(self, group: tuple[str, ...], key: int, seeds: tuple[int, ...]) -> None:
        entry = self.entries[group[0]]
        begun = time.perf_counter()
        bound = self.models.scheme(entry, key)
        texts = self._written(bound, seeds)
        self._log(group[0], f"key {key}: {len(texts)} texts in {time.perf_counter() - begun:.1f} s")
        with gzip.open(self.out / f"texts-{self.number}.jsonl.gz", "at", encoding="utf-8") as stream:
            stream.write(json.dumps({"row": group[0], "key": key, "seeds": seeds, "texts": texts}) + "\n")
        self._quality(group[0], key, seeds, texts)
        kinds = ((MARKED, self._attacked(texts, seeds)), (UNMARKED, self.unmarked()))
        for kind, by_attack in kinds:
            for attack, changed in by_attack.items():
                size = len(changed) // (len(seeds) if kind == MARKED else SEEDS)
                for place, seed in enumerate(seeds):
                    at = size * (place if kind == MARKED else seed)
                    mine, before = changed[at : at + size], by_attack[CLEAN][at : at + size]
                    for label in group:
                        self._score(label, key, seed, kind, attack, before, mine)
        self._log(group[0], f"key {key}: scored after {time.perf_counter() - begun:.1f} s")

    def _score(
        self,
        label: str,
        key: int,
        seed: int,
        kind: str,
        attack: str,
        before: Sequence[str],
        texts: Sequence[str],
    ) -> None:
        entry = self.entries[label]
        bound = self.models.scheme(self.entries[label], key)
        found: list[dict[str, Any]] = []
        for start in range(0, len(texts), SCORED_AT_ONCE):
            batch = [text.replace("\0", " ") for text in texts[start : start + SCORED_AT_ONCE]]
            found += detection_numbers(bound, batch, test=entry.test, score=entry.score)
        kept = [words_kept(a, b) for a, b in zip(before, texts, strict=True)] if attack != CLEAN else []
        self._append(
            {
                "row": label,
                "key": key,
                "seed": seed,
                "kind": kind,
                "attack": attack,
                "score": [round(each["score"], 4) for each in found],
                "p": [float(f"{each['p_value']:.4g}") for each in found],
                "tokens": [each["tokens"] for each in found],
                **({"kept": round(sum(kept) / len(kept), 4)} if kept else {}),
            }
        )

    def _written(self, bound: Any, seeds: Sequence[int]) -> list[str]:  # noqa: ANN401 - a bound scheme or None
        """The texts of all prompts under each seed, with the seeds that `dewmark reproduce` uses."""
        made = self.host.generate(
            [row["text"] for _ in seeds for row in self.prompts],
            scheme=bound,
            seeds=[1_000_000 * seed + i for seed in seeds for i in range(len(self.prompts))],
            # eight drafts of each row's sentence are written at once
            batch_size=self.options.batch // 8 if bound and bound.scheme.needs.drafts else self.options.batch,
            decoding=self.recipe.decoding,
        )
        return [each.text for each in made]

    def _attacked(self, texts: list[str], seeds: Sequence[int]) -> dict[str, list[str]]:
        numbers = [1_000_000 * seed + i for seed in seeds for i in range(len(self.prompts))]
        made = {CLEAN: texts}
        for share in (0.3, 0.5):
            made[f"delete-{share}"] = load_attack("delete", r=share).apply(texts, seeds=numbers)
        if self.options.translate:
            quiet: Any = {"task": "", "progress": lambda *_: None}
            device = self.options.device
            there, back = NeuralEngine("en", "pt", device), NeuralEngine("pt", "en", device)
            made[AFTER["translate"]] = there.translate([text or " " for text in texts], **quiet)
            made[AFTER["round-trip"]] = back.translate(
                [text or " " for text in made[AFTER["translate"]]], **quiet
            )
        return made

    def unmarked(self) -> dict[str, list[str]]:
        """The host's unmarked texts after every attack; the first worker that asks makes them."""
        file = self.out / "unmarked.json"
        while not file.exists():
            with claimed(self.out / "claims" / "unmarked") as mine:
                if mine and not file.exists():
                    texts = self._written(None, range(SEEDS))
                    self._quality("none", 0, range(SEEDS), texts)
                    found = self._attacked(texts, range(SEEDS))
                    draft = file.with_suffix(".part")
                    draft.write_text(json.dumps(found), encoding="utf-8")
                    draft.rename(file)
                    self._log("none", "unmarked texts are there")
            time.sleep(0.5)
        made: dict[str, list[str]] = json.loads(file.read_text(encoding="utf-8"))
        return made

    def _quality(self, label: str, key: int, seeds: Sequence[int], texts: Sequence[str]) -> None:
        for place, seed in enumerate(seeds):
            mine = texts[place * len(self.prompts) : (place + 1) * len(self.prompts)]
            found = quality(self.judge, [row["text"] for row in self.prompts], mine)
            rows = [one.to_dict() for one in found]
            names = ("perplexity", "tokens", "distinct_1", "distinct_2", "distinct_3", "repetition")
            values = {name: [_short(row[name]) for row in rows] for name in names}
            self._append({"row": label, "key": key, "seed": seed, "quality": values})

    def _with_artifact(self, entry: SchemeEntry) -> SchemeEntry:
        if not self.options.artifacts or not entry.build().needs.artifact:
            return entry
        folder = str(self.options.artifacts / entry.scheme)
        return dataclasses.replace(entry, settings={**entry.settings, "artifact": folder})

    def _finished(self, name: str) -> bool:
        return any(row.get("unit") == f"{name} done" for row in cells(self.out))

    def _append(self, row: dict[str, Any]) -> None:
        with (self.out / f"cells-{self.number}.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")

    def _late(self) -> bool:
        return time.perf_counter() - self.started > 60.0 * float(self.options.minutes)

    def _log(self, *words: str) -> None:
        print(f"[{time.perf_counter() - self.started:6.1f}] {self.number}", *words, flush=True)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Whether this process holds a name alone; the system releases it if the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def cells(out: Path) -> Iterator[dict[str, Any]]:
    """All lines that workers have written; a last line that a killed worker left unfinished is skipped."""
    for file in sorted(out.glob("cells-*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                yield json.loads(line)


def report(outs: Sequence[Path], to: Path) -> None:
    """Write scores, evaluations and the report of both protocols."""
    from dewmark.reports.experiment_report import write_report

    by_place = {
        (row["row"], row["key"], row["seed"], row["kind"], row["attack"]): row
        for out in outs
        for row in cells(out)
        if "attack" in row
    }
    order = [label for group in (*ROWS, *MORE) for label in group]
    to.mkdir(parents=True, exist_ok=True)
    shown: set[str] = set()
    for folder, one in ((to, True), (to / PER_SEED, False)):
        rows = [
            ScoreRow(label, attack, seed, kind, f"{i}", score, p, tokens, row.get("kept"))
            for (label, key, seed, kind, attack), row in sorted(
                by_place.items(), key=lambda pair: order.index(pair[0][0])
            )
            if (key == 0 if one else key == seed)
            for i, (score, p, tokens) in enumerate(zip(row["score"], row["p"], row["tokens"], strict=True))
        ]
        complete = {
            label for label in order if {row.seed for row in rows if row.scheme == label} >= {0, 1, 2}
        }
        shown |= complete
        rows = [row for row in rows if row.scheme in complete]
        if rows:
            folder.mkdir(exist_ok=True)
            write_scores(folder / "scores.jsonl", rows)
            evaluate(rows).save(folder / "evaluation.json")
    judged = [
        {"scheme": row["row"], "seed": row["seed"], "id": f"{i}", "kind": kind, **values}
        for out in outs
        for row in cells(out)
        if "quality" in row and row["key"] == 0
        for kind in [UNMARKED if row["row"] == "none" else MARKED]
        for i, one in enumerate(zip(*row["quality"].values(), strict=True))
        for values in [dict(zip(row["quality"], one, strict=True))]
    ]
    judged.sort(key=lambda row: ["none", *order].index(row["scheme"]))
    (to / "quality.jsonl").write_text("".join(json.dumps(row) + "\n" for row in judged), encoding="utf-8")
    configuration = joined_configuration(outs, shown)
    configuration["attacks"] = sorted({attack for *_, attack in by_place} - {CLEAN})
    text = json.dumps(configuration, indent=1, ensure_ascii=False)
    (to / "configuration.json").write_text(text + "\n", encoding="utf-8")
    title = "Detectability, robustness and text quality"
    script = "python benchmarks/table1.py"
    (host,), top_k = configuration["hosts"], configuration["decoding"]["top_k"]
    changed = (f" --host {host}" if host != HOST else "") + (f" --top-k {top_k}" if top_k else "")
    trained = {
        str(Path(each["settings"]["artifact"]).parent)
        for each in configuration["schemes"]
        if "artifact" in each["settings"]
    }
    changed += "".join(f" --artifacts {folder}" for folder in sorted(trained))
    commands = [
        f"{script} run {out.name}{changed} --texts {each['texts']} --device {each['device']} --more "
        f"--rows {' '.join(each['rows'])}"
        for out, each in zip(outs, configuration["runs"], strict=True)
    ]
    commands.append(f"{script} report {' '.join(out.name for out in outs)} --to {to.name}")
    for file in write_report(to, title=title, table="main", configuration=configuration, commands=commands):
        print(file)


def joined_configuration(outs: Sequence[Path], shown: set[str]) -> dict[str, Any]:
    """The first run's configuration, with the rows that are shown and which of them each run made."""
    schemes: dict[str, dict[str, Any]] = {}
    runs = []
    read = [json.loads((out / "configuration.json").read_text(encoding="utf-8")) for out in outs]
    for out, each in zip(outs, read, strict=True):
        made = {row["row"] for row in cells(out) if "attack" in row} & shown
        schemes |= {entry["label"]: entry for entry in each["schemes"] if entry["label"] in made}
        about = {name: each[name] for name in ("texts", "batch", "device")}
        runs.append({"rows": [label for label in schemes if label in made], **about})
    return {**read[0], "schemes": list(schemes.values()), "runs": runs}


def configuration_of(worker: Worker, options: argparse.Namespace) -> dict[str, Any]:
    """What a report says about the run: the recipe, and how it was run."""
    recipe: Recipe = dataclasses.replace(worker.recipe, keys="both", lengths=())
    return {
        **recipe.to_dict(),
        "schemes": [dataclasses.asdict(entry) for entry in worker.entries.values()],
        "hosts": {options.host: worker.host.info.identity},
        "judge": options.judge or options.host,
        "batch": options.batch,
        "device": str(torch_device(options.device)),
    }


def main() -> None:
    """Run workers, or write the report."""
    parser = script_parser(__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("out", type=Path)
    run.add_argument("--host", default=HOST)
    run.add_argument("--judge", help="by default the host")
    run.add_argument("--device", default="auto")
    run.add_argument("--texts", type=int, default=300)
    run.add_argument("--tokens", type=int, default=200)
    run.add_argument("--top-k", type=int, default=0, help="50 is the default of transformers")
    run.add_argument("--batch", type=int, default=900)
    run.add_argument("--rows", nargs="*", default=[], help="only these rows")
    run.add_argument("--more", action="store_true", help="also rows that the paper does not have")
    run.add_argument("--protocols", nargs="+", default=["one", "per-seed"])
    run.add_argument("--no-translation", dest="translate", action="store_false")
    run.add_argument("--artifacts", type=Path)
    run.add_argument("--jobs", type=int, default=1)
    run.add_argument("--minutes", type=float, default=1e9, help="take no new row after this time")
    run.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    written = verbs.add_parser("report")
    written.add_argument("outs", type=Path, nargs="+", metavar="OUT")
    written.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    if options.verb == "report":
        report(options.outs, options.to)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if options.worker is None and options.jobs > 1:
        command = [sys.executable, *sys.argv]
        workers = [subprocess.Popen([*command, "--worker", str(i)]) for i in range(options.jobs)]
        sys.exit(max(abs(worker.wait()) for worker in workers))
    worker = Worker(options, options.worker or 0)
    if worker.number == 0:
        text = json.dumps(configuration_of(worker, options), indent=1, default=str)
        (options.out / "configuration.json").write_text(text + "\n", encoding="utf-8")
    worker.run()


if __name__ == "__main__":
    main()
