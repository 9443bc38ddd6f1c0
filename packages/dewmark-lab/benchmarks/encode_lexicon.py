"""Encode the forms of a lexicon and reduce their vectors, on any device.

    python benchmarks/encode_lexicon.py FORMS.tsv --device cuda --out DIR

FORMS.tsv has one form per line, followed by its frequency and its language, separated by tabs. Writes
DIR/reduced-I.npz in a few parts: the leading principal coordinates of P M(w) as float16, each row's energy,
and in the first part the mean, the basis and the spread. `dewmark build-lexicon` does the same
and quantises the result in one go; this is the part that is slow without a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from dewmark.core.whitening import normalize_rows
from dewmark.encoders import load_encoder
from dewmark_lab.lexicon_build import WordVectors, load_word_statistics, reduce_vectors

_CHUNK = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("forms", type=Path)
    parser.add_argument("--encoder", default="use-m3")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--coordinates", type=int, default=176)
    parser.add_argument("--parts", type=int, default=7)
    parser.add_argument("--limit", type=int, help="encode only the first so many forms")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    lines = options.forms.read_text(encoding="utf-8").splitlines()[: options.limit]
    rows = [line.split("\t") for line in lines]
    forms, languages = [row[0] for row in rows], [row[2] for row in rows]
    encoder = load_encoder(options.encoder, device=options.device)
    vectors = np.empty((len(forms), encoder.dim), dtype=np.float16)
    start = time.perf_counter()
    for i in range(0, len(forms), _CHUNK):
        vectors[i : i + _CHUNK] = normalize_rows(encoder.encode(forms[i : i + _CHUNK]))
        sys.stderr.write(f"\r{min(i + _CHUNK, len(forms))} of {len(forms)} forms")
    sys.stderr.write("\n")
    print(f"encoded {len(forms)} forms in {time.perf_counter() - start:.1f} s")
    statistics = load_word_statistics(WordVectors(encoder, None))
    start = time.perf_counter()
    found = reduce_vectors(vectors, statistics, languages=languages, r=options.coordinates)
    kept = found.spread[: options.coordinates].sum() / found.spread.sum()
    print(f"reduced in {time.perf_counter() - start:.1f} s; energy kept {kept:.4f}")
    options.out.mkdir(parents=True, exist_ok=True)
    for part, index in enumerate(np.array_split(np.arange(len(forms)), options.parts)):
        once = {"mean": found.mean, "basis": found.basis, "spread": found.spread} if part == 0 else {}
        np.savez(
            options.out / f"reduced-{part}.npz",
            coordinates=found.coordinates[index],
            energy=found.energy[index],
            **once,
        )


if __name__ == "__main__":
    main()
