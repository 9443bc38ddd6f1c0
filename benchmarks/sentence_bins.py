"""How often a paraphrased sentence stays in its bin: SemStamp's hyperplanes and k-SemStamp's clusters.

    python benchmarks/sentence_bins.py --original A.jsonl:300:500 --rewritten B.jsonl:300:500 --texts C.jsonl

Row i of B paraphrases row i of A; rows that the artifacts learned from do not belong here. A sentence and its
paraphrase are each other's nearest sentence in the other text, by the unchanged encoder. ``--texts`` are
texts of the host: neighbours are their successive sentences, which should not share a bin more often than
chance. SemStamp's shares are means over draws of its hyperplanes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
from script_inputs import read_texts, script_parser

from dewmark.arrays import F32
from dewmark.artifacts import load_artifact
from dewmark.baselines.sentence.rejection_sampling import SentenceBins
from dewmark.baselines.sentence.semstamp import CentroidBins, HyperplaneBins, KSemStamp, SemStamp
from dewmark.baselines.sentence.sentence_space import SentenceSpace, adapt, encode
from dewmark.core.whitening import normalize_rows
from dewmark.text.sentences import sentences
from dewmark.workspace import Workspace


def shares(bins: SentenceBins, original: F32, rewritten: F32, before: F32, after: F32) -> list[float]:
    """Same bin: all paraphrases, those of sentences clear of the margin, neighbours; and clear sentences."""
    (mine, lead), (theirs, _) = bins.assign(original), bins.assign(rewritten)
    (first, clear), (second, _) = bins.assign(before), bins.assign(after)
    same = mine == theirs
    return [
        float(each.mean()) for each in (same, same[lead > 0.0], first == second, clear > 0.0) if len(each)
    ]


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    for name in ("original", "rewritten", "texts"):
        parser.add_argument(f"--{name}", required=True, metavar="FILE[:FIRST:LAST]")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    read = {
        name: [_complete(text) for text in read_texts(getattr(args, name), 10 * args.tokens)]
        for name in ("original", "rewritten")
    }
    space, clusters = (
        SentenceSpace.of(load_artifact(None, scheme=name), Workspace(Path()))
        for name in ("semstamp", "ksemstamp")
    )
    pairs = [
        pair
        for a, b in zip(read["original"], read["rewritten"], strict=True)
        if a and b
        for pair in _paired(a, b, space)
    ]
    rows = [_complete(text) for text in read_texts(args.texts, args.tokens)]
    neighbours = [pair for row in rows for pair in pairwise(row)]
    sides = [[pair[side] for pair in each] for each in (pairs, neighbours) for side in (0, 1)]
    raw = [encode(space.encoder, side) for side in sides]
    identity = np.eye(len(space.mean), dtype=np.float32)
    spaces = {
        "encoder unchanged": [normalize_rows(each) for each in raw],
        "centred": [adapt(each, space.mean, identity) for each in raw],
        "trained": [adapt(each, space.mean, space.matrix) for each in raw],
    }
    print(f"{len(pairs)} paraphrased sentences, {len(neighbours)} neighbours")
    columns = (
        "bins",
        "paraphrase in the same bin",
        "clear of the margin",
        "neighbours",
        "sentences that are clear",
    )
    print("|", " | ".join(columns), "|\n" + "| --- " * len(columns) + "|")
    draw = np.random.default_rng(0)
    for name, vectors in spaces.items():
        normals = normalize_rows(draw.normal(size=(args.draws * 3, vectors[0].shape[1])))
        found = [
            shares(HyperplaneBins(normals[i : i + 3], SemStamp.margin), *vectors)
            for i in range(0, len(normals), 3)
        ]
        _print(f"hyperplanes, {name}", np.mean(found, axis=0))
    vectors = [adapt(each, clusters.mean, clusters.matrix) for each in raw]
    for margin in (0.01, KSemStamp.margin):
        _print(f"clusters, margin {margin}", shares(CentroidBins(clusters.centroids, margin), *vectors))
    bins, _ = CentroidBins(clusters.centroids, 0.0).assign(vectors[2])
    print("clusters hold", np.round(np.sort(np.bincount(bins, minlength=8)) / len(bins), 3).tolist())


def _complete(text: str) -> list[str]:
    return [text[s.start : s.end] for s in sentences(text) if s.complete]


def _paired(a: list[str], b: list[str], space: SentenceSpace) -> list[tuple[str, str]]:
    cosines = normalize_rows(encode(space.encoder, a)) @ normalize_rows(encode(space.encoder, b)).T
    there, back = cosines.argmax(axis=1), cosines.argmax(axis=0)
    return [(a[i], b[j]) for i, j in enumerate(there) if back[j] == i]


def _print(name: str, values: Iterable[float]) -> None:
    print(f"| {name} |", " | ".join(f"{100 * value:.1f}%" for value in values), "|", flush=True)


if __name__ == "__main__":
    main()
