"""Why rows of our Table 1 differ from the paper's: what the attacks keep, and the host's vocabulary.

    python benchmarks/table1_causes.py words --rewrites pairs.jsonl --unmarked OUT/unmarked.json
    python benchmarks/table1_causes.py vocabulary --lexicon en-pt.tsv --unmarked OUT/unmarked.json
    python benchmarks/table1_causes.py keys OUT --rows dew-paper-2.0 dew-paper-2.0-key
    python benchmarks/table1_causes.py copied OUT --rows synthid kgw exp --texts 100
    python benchmarks/table1_causes.py signs --rows sir atw --unmarked OUT/unmarked.json
    python benchmarks/table1_causes.py clusters --encoders use-m3 minilm --unmarked OUT/unmarked.json
    python benchmarks/table1_causes.py ranks docs/results/main/table.csv docs/results/ksemstamp/table.csv

``words``: the share of words that an LLM's paraphrases (JSONL with ``text`` and ``paraphrase``) and our
attacks keep. ``vocabulary``: how many tokens the words of translated texts have, and the cosine of the host's
embeddings of words that translate each other (centred; beside pairs at random), where both are one token.
``keys``: unmarked texts with p < 0.01 and their mean score by key. ``copied``: marked texts of a run are
translated again and tested as they are, without the words that the English text has too, and without as many
others. ``signs``: the mean product of the signs that the network of SIR or ATW gives a text's context and the
same context after an attack (1: all agree, 0: half of them), over prefixes of a quarter, a half, three
quarters and all of its words; a token that is kept scores by that sign. ``clusters``: how often a sentence is
in the same one of k-SemStamp's eight clusters after an attack, for clusters of each encoder's own vectors and
for the packaged ones, beside chance; only texts whose number of sentences the attack keeps. ``ranks``: rank
correlations of the tables' columns with those of the paper's Table 1. Each measurement is printed as a line
of JSON, which ``--to`` appends to a file.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2
from scipy.stats import spearmanr
from script_inputs import script_parser
from table1 import AFTER, MORE, ROWS, cells

from dewmark import Key, load_scheme
from dewmark.artifacts import load_artifact
from dewmark.attacks.translation.machine_translation import NeuralEngine
from dewmark.baselines.learned.sir import BoundSIR
from dewmark.baselines.sentence.sentence_space import SentenceSpace, adapt, encode
from dewmark.core.whitening import normalize_rows
from dewmark.encoders import load_encoder
from dewmark.hosts import host_info
from dewmark.lab.evaluation.quality import words_kept
from dewmark.lab.evaluation.results import CLEAN, UNMARKED
from dewmark.lab.evaluation.score_files import detection_numbers
from dewmark.lab.experiments.recipe import load_recipe
from dewmark.lab.experiments.workers import LoadedModels
from dewmark.storage import read_jsonl
from dewmark.text.sentences import sentences
from dewmark.workspace import Workspace

LEVEL = 0.01
BESIDE = {  # our columns, and the attacks of the paper that they stand for
    "unattacked": ("none",),
    "delete-0.5": ("paraphrase",),
    AFTER["round-trip"]: ("paraphrase",),
    AFTER["translate"]: ("translate-de", "translate-fr"),
}
QUIET: dict[str, Any] = {"task": "", "progress": lambda *_: None}


def words(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The mean share of a text's words that each attack keeps, in any position."""
    unmarked = json.loads(options.unmarked.read_text(encoding="utf-8"))
    rewrites = [(row["text"], row["paraphrase"]) for _, row in read_jsonl(options.rewrites)]
    found = {"paraphrase by an LLM": rewrites}
    for attack, texts in unmarked.items():
        if attack != CLEAN:
            found[attack] = list(zip(unmarked[CLEAN], texts, strict=True))
    return [
        {"attack": attack, "kept": float(np.mean([words_kept(*pair) for pair in pairs])), "texts": len(pairs)}
        for attack, pairs in found.items()
    ]


def vocabulary(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Tokens per word of originals and translations, and cosines of translated words."""
    info = host_info(options.host)
    unmarked = json.loads(options.unmarked.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = []
    for attack in (CLEAN, AFTER["translate"]):
        spoken = sorted({word for text in unmarked[attack] for word in _words(text)})
        sizes = {word: len(ids) for word, ids in zip(spoken, _encoded(info, spoken), strict=True)}
        used = [sizes[word] for text in unmarked[attack] for word in _words(text)]
        one, mean = float(np.mean([size == 1 for size in used])), float(np.mean(used))
        rows.append({"host": options.host, "texts": attack, "words of one token": one, "tokens a word": mean})
    lines = options.lexicon.read_text(encoding="utf-8").splitlines()
    pairs = [(a, b) for a, b in (line.split("\t") for line in lines if line.count("\t") == 1) if a != b]
    first, second = (_encoded(info, [pair[side] for pair in pairs]) for side in (0, 1))
    both = [(a[0], b[0]) for a, b in zip(first, second, strict=True) if len(a) == len(b) == 1 and a != b]
    table = np.asarray(info.embeddings())
    sides = [table[[pair[side] for pair in both]].astype(np.float64) for side in (0, 1)]
    centre = np.concatenate(sides).mean(axis=0)
    english, foreign = (each - centre for each in sides)
    english, foreign = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (english, foreign))
    other = foreign[np.random.default_rng(0).permutation(len(foreign))]
    return [
        *rows,
        {
            "host": options.host,
            "pairs": len(pairs),
            "both of one token": len(both),
            "cosine of translations": float((english * foreign).sum(axis=1).mean()),
            "of pairs at random": float((english * other).sum(axis=1).mean()),
        },
    ]


def keys(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Unattacked unmarked texts under each key of a row: the share with p < 0.01, and their scores."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for cell in cells(options.out):
        if cell.get("kind") == UNMARKED and cell["attack"] == CLEAN and cell["row"] in options.rows:
            found.setdefault((cell["row"], cell["key"]), []).append(cell)
    rows = []
    for (row, key), mine in found.items():
        p, scores = (np.concatenate([cell[name] for cell in mine]) for name in ("p", "score"))
        share, mean = float((p < LEVEL).mean()), float(scores.mean())
        rows.append(
            {"row": row, "key": key, "texts": len(p), "share": share, "mean": mean, "sd": float(scores.std())}
        )
    return rows


def copied(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Shares of translated marked texts with p < 0.01, with and without the words copied from English."""
    models = LoadedModels(options.device)
    labels = [label for group in (*ROWS, *MORE) for label in group]
    recipe = load_recipe("main", profile="local").narrowed(schemes=labels)
    entries = {entry.label: entry for entry in recipe.schemes}
    engine = NeuralEngine("en", "pt", options.device)
    for row in options.rows:
        texts = _marked(options.out, row)[: options.texts]
        foreign = engine.translate([text or " " for text in texts], **QUIET)
        draw = np.random.default_rng(0)
        cut = [_without_copied(a, b, draw) for a, b in zip(texts, foreign, strict=True)]
        kinds = {"translated": foreign, "copied removed": [a for a, _ in cut], "others": [b for _, b in cut]}
        entry = entries[row]
        bound = models.scheme(entry, 0)
        shares = {
            kind: float(np.mean([each["p_value"] < LEVEL for each in _tested(bound, entry, changed)]))
            for kind, changed in kinds.items()
        }
        left = [len(_words(a)) / max(len(_words(b)), 1) for (a, _), b in zip(cut, foreign, strict=True)]
        yield {"row": row, "texts": len(texts), "copied words": 1.0 - float(np.mean(left)), **shares}


def signs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """How far the signs of contexts survive each attack, and how far those of different texts agree."""
    unmarked = json.loads(options.unmarked.read_text(encoding="utf-8"))
    for row in options.rows:
        bound = load_scheme(row, key=Key(bytes(32)), host="smollm2-135m")
        found = {
            attack: _signs(bound, [part for text in texts[: options.texts] for part in _prefixes(text)])
            for attack, texts in unmarked.items()
        }
        clean = found.pop(CLEAN)
        found["another text"] = np.roll(clean, 4, axis=0)
        for attack, changed in found.items():
            agree = (clean * changed).mean(axis=1)
            yield {"row": row, "attack": attack, "texts": options.texts, "agree": float(agree.mean())}


def clusters(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The share of sentences whose cluster an attack keeps, by encoder."""
    unmarked = json.loads(options.unmarked.read_text(encoding="utf-8"))
    packaged = SentenceSpace.of(load_artifact(None, scheme="ksemstamp"), Workspace(Path()))
    for attack in AFTER.values():
        pairs = [
            pair
            for texts in zip(unmarked[CLEAN][: options.texts], unmarked[attack], strict=False)
            for pair in _same_sentences(*texts)
        ]
        sides = [[pair[side] for pair in pairs] for side in (0, 1)]
        for name in options.encoders:
            encoder = load_encoder(name)
            before, after = (encode(encoder, side) for side in sides)
            mean, identity = before.mean(axis=0), np.eye(before.shape[1], dtype=np.float32)
            vectors = [adapt(each, mean, identity) for each in (before, after)]
            centroids, _ = kmeans2(vectors[0], len(packaged.centroids), minit="++", rng=0)
            yield {"row": "ksemstamp", "attack": attack, "encoder": name, **_kept_cluster(vectors, centroids)}
        vectors = [adapt(encode(packaged.encoder, side), packaged.mean, packaged.matrix) for side in sides]
        found = _kept_cluster(vectors, packaged.centroids)
        yield {"row": "ksemstamp", "attack": attack, "encoder": "packaged artifact", **found}


def ranks(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Spearman's correlation of our columns with the paper's, over its rows."""
    ours: dict[str, dict[str, str]] = {}
    for table in options.tables:
        with table.open(encoding="utf-8", newline="") as stream:
            ours |= {row["Watermark"]: row for row in csv.DictReader(stream)}
    tables = yaml.safe_load(files("dewmark").joinpath("data/paper_tables.yaml").read_text(encoding="utf-8"))
    paper = tables["tables"]["main"]
    rows = [row for row in paper["rows"] if row["scheme"] in ours]
    places = {(each.get("attack"), each.get("rate")): i for i, each in enumerate(paper["columns"])}
    perplexity = next(i for i, each in enumerate(paper["columns"]) if each["measure"] == "perplexity")
    pairs = [("text quality PPL", "perplexity", perplexity)]
    for column, attacks in BESIDE.items():
        for attack in attacks:
            for rate in (0.01, 0.05):
                if (attack, rate) in places:
                    name = f"{column} TPR@{100 * rate:.0f}%"
                    pairs.append((name, f"{attack} {100 * rate:.0f}%", places[attack, rate]))
    for column, name, place in pairs:
        mine = [float(ours[row["scheme"]][column]) for row in rows]
        found = float(spearmanr(mine, [row["values"][place][0] for row in rows]).statistic)
        yield {"column": column, "paper": name, "rows": len(rows), "spearman": round(found, 4)}


def _same_sentences(text: str, changed: str) -> list[tuple[str, str]]:
    mine, theirs = ([each[s.start : s.end] for s in sentences(each)] for each in (text, changed))
    return list(zip(mine, theirs, strict=True)) if len(mine) == len(theirs) else []


def _kept_cluster(vectors: list[Any], centroids: Any) -> dict[str, Any]:  # noqa: ANN401 - arrays
    before, after = ((each @ normalize_rows(centroids).T).argmax(axis=1) for each in vectors)
    chances = np.bincount(before) @ np.bincount(after, minlength=before.max() + 1)[: before.max() + 1]
    return {
        "sentences": len(before),
        "kept": float(np.mean(before == after)),
        "chance": float(chances / len(before) ** 2),
    }


def _signs(bound: Any, contexts: list[str]) -> NDArray[np.float64]:  # noqa: ANN401 - a bound scheme
    if isinstance(bound, BoundSIR):
        return bound.transform.signs(contexts).astype(np.float64)
    semantics = bound.halves.semantics
    ids = [list(each.ids) for each in bound.tokenize(contexts)]
    return semantics.signs(semantics.rows(ids)).astype(np.float64)


def _prefixes(text: str) -> list[str]:
    parts = text.split() or ["."]
    return [" ".join(parts[: max(len(parts) * quarter // 4, 1)]) for quarter in (1, 2, 3, 4)]


def _tested(bound: Any, entry: Any, texts: list[str]) -> list[dict[str, Any]]:  # noqa: ANN401 - a bound scheme
    return detection_numbers(bound, [text.replace("\0", " ") for text in texts], test=None, score=entry.score)


def _marked(out: Path, row: str) -> list[str]:
    """The texts of a row under its first key."""
    for file in sorted(out.glob("texts-*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            for line in stream:
                found = json.loads(line)
                if found["row"] == row and found["key"] == 0:
                    return list(found["texts"])
    raise SystemExit(f"{out} has no texts of {row}")


def _without_copied(text: str, foreign: str, draw: np.random.Generator) -> tuple[str, str]:
    """The translation without the words of the original, and without as many others."""
    known = {word.casefold() for word in _words(text)}
    parts = re.split(r"(\W+)", foreign)
    places = [i for i, part in enumerate(parts) if re.match(r"\w", part)]
    same = {i for i in places if parts[i].casefold() in known}
    rest = [i for i in places if i not in same]
    others = set(draw.choice(rest, size=min(len(same), len(rest)), replace=False).tolist()) if rest else set()
    first, second = ("".join("" if i in out else s for i, s in enumerate(parts)) for out in (same, others))
    return first, second


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _encoded(info: Any, spoken: list[str]) -> list[list[int]]:  # noqa: ANN401 - a host's description
    """The ids of each word as it stands inside a text, after a space."""
    return [list(each.ids) for each in info.tokenizer.encode([f" {word}" for word in spoken])]


def main() -> None:
    """Run one of the measurements."""
    parser = script_parser(__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    kept = verbs.add_parser("words")
    kept.add_argument("--rewrites", type=Path, required=True)
    spelled = verbs.add_parser("vocabulary")
    spelled.add_argument("--host", default="smollm2-135m")
    spelled.add_argument("--lexicon", type=Path, required=True)
    for each in (kept, spelled):
        each.add_argument("--unmarked", type=Path, required=True)
    by_key, untranslated = verbs.add_parser("keys"), verbs.add_parser("copied")
    for each in (by_key, untranslated):
        each.add_argument("out", type=Path)
        each.add_argument("--rows", nargs="+", required=True)
    semantic = verbs.add_parser("signs")
    semantic.add_argument("--rows", nargs="+", required=True)
    semantic.add_argument("--unmarked", type=Path, required=True)
    binned = verbs.add_parser("clusters")
    binned.add_argument("--encoders", nargs="+", required=True)
    binned.add_argument("--unmarked", type=Path, required=True)
    for each in (untranslated, semantic, binned):
        each.add_argument("--texts", type=int, default=100)
    untranslated.add_argument("--device", default="auto")
    ranked = verbs.add_parser("ranks")
    ranked.add_argument("tables", type=Path, nargs="+", metavar="TABLE.csv")
    for each in (kept, spelled, by_key, untranslated, semantic, binned, ranked):
        each.add_argument("--to", type=Path, help="append the lines to this file")
    options = parser.parse_args()
    measures = (words, vocabulary, keys, copied, signs, clusters, ranks)
    measure: Any = {each.__name__: each for each in measures}[options.verb]
    for row in measure(options):
        line = json.dumps({"measured": options.verb, **row})
        print(line, flush=True)
        if options.to:
            with options.to.open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")


if __name__ == "__main__":
    main()
