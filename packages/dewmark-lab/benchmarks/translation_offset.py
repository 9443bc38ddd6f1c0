r"""What a key does to translations under a threshold from English (docs/results/paper-translation.md).

    python benchmarks/translation_offset.py --original en.jsonl --translated de=de.jsonl \
        --translated fr=fr.jsonl --keys 500 --host smollm2-135m --out raw.json [--set whiten_contexts=true]

Files are JSONL with ``text`` or ``response``; row i of a translation translates row i of the original. All
are scored by the paper's Algorithm 2 (mean of λ tanh(γu) over the tokens of a text) under many keys.
Thresholds for 1 and 5% come from half of the English texts, or from half of the translations, and are applied
to the translations of the other half, then the other way round. ``--scores FILE.npz`` keeps the scores (keys,
languages, texts); ``--from FILE.npz`` makes the table of kept ones.

**Marked texts** are replayed: scores of translations are lifted by ``--separation`` of their own standard
deviations, what a mark keeps after translation; by default what the paper's AUROC for λ 2.0 says. The slope
of the translations' scores on the originals' under one key says how much of a mark a translation could keep
at most.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri
from script_inputs import named_key, script_parser

import dewmark
from dewmark.config import parse_settings
from dewmark.dew.paper.scheme import BoundDewPaper

LEVELS = (0.01, 0.05)
SEPARATION = {"de": 0.774, "fr": 0.838}  # √2 Φ⁻¹(AUROC) of the paper's 0.7079 and 0.7232
OFFSETS = (1.0, 1.45, 1.81, 2.0)
BOUNDS = (0.1, 0.2, 0.243, 0.3, 0.438, 0.5, 0.691, 0.857)


class Scorer:
    """The paper's score of fixed texts under any key."""

    def __init__(self, texts: Sequence[str], *, host: str, settings: dict[str, Any]) -> None:
        bound = dewmark.load_scheme(named_key("offset"), host=host, scheme="dew-paper", settings=settings)
        assert isinstance(bound, BoundDewPaper)
        self.scheme, self.reader = bound.scheme, bound.reader
        self.reading = self.reader.read(self.reader.tokenize(texts), self.reader.tokenize([""] * len(texts)))
        self.contexts = self.reading.context_rows
        pairs = self.reading.texts
        self.tokens = np.concatenate([each.tokens for each in pairs])
        self.windows = np.concatenate([each.windows for each in pairs])
        self.text = np.repeat(np.arange(len(pairs)), [len(each.tokens) for each in pairs])
        self.weights = np.concatenate([each.weights for each in pairs])
        self.lengths = np.bincount(self.text, self.weights, minlength=len(pairs))

    def under(self, key: dewmark.Key, *, limit: bool = False) -> np.ndarray:
        """The scores (texts,) under a key; with ``limit``, ‖ê_C R_C‖ is taken as √n."""
        fold = self.scheme.fold_of(key, self.reader)
        Q = fold.rows(self.reading.token_rows)
        scaled = self.contexts if limit else fold.contexts(self.contexts)
        u = np.concatenate(
            [
                np.einsum("ij,ij->i", Q[self.tokens[part]], scaled[self.windows[part]])
                for part in (slice(i, i + 8192) for i in range(0, len(self.tokens), 8192))
            ]
        )
        scores = self.scheme.strength * np.tanh(self.scheme.gamma * u)
        return np.bincount(self.text, self.weights * scores, minlength=len(self.lengths)) / self.lengths


def passing(calibration: np.ndarray, tested: np.ndarray, level: float) -> np.ndarray:
    """The share of tested texts (K, N) above the threshold of other texts (K, N), for each of K keys.

    Each half of the tested texts is compared with the threshold from the other half of the texts: that of a
    normal law with their mean and deviation, because a quantile of a few dozen texts is too rough.
    """
    n = calibration.shape[1]
    shares = np.zeros(len(tested))
    for half in (0, 1):
        other = calibration[:, 1 - half :: 2]
        beyond = -ndtri(level) * other.std(axis=1, ddof=1) * np.sqrt(1.0 + 1.0 / other.shape[1])
        threshold = other.mean(axis=1) + beyond
        shares += (tested[:, half::2] > threshold[:, None]).sum(axis=1)
    return shares / n


def summary(shares: np.ndarray) -> dict[str, float]:
    """A distribution over keys."""
    found = {"mean": float(shares.mean()), "worst": float(shares.max())}
    found |= {f"q{int(100 * q)}": float(np.quantile(shares, q)) for q in (0.5, 0.9, 0.95, 0.99)}
    return found | {f"keys_over_{bound}": float(np.mean(shares > bound)) for bound in BOUNDS}


def report(scores: np.ndarray, languages: Sequence[str], separations: Mapping[str, float]) -> dict[str, Any]:
    """The table from scores (keys, languages, texts); the first language is the original."""
    english, found = scores[:, 0], {}
    inside = english.std(axis=1)
    for number, language in enumerate(languages):
        own = scores[:, number]
        offset = (own - english).mean(axis=1) / inside
        row: dict[str, Any] = {
            "offset_sd": float(offset.std()),
            "offset": {f"keys_over_{bound}": float(np.mean(offset > bound)) for bound in OFFSETS},
            "spread": float((own.std(axis=1) / inside).mean()),
        }
        centred = [each - each.mean(axis=1, keepdims=True) for each in (english, own)]
        within = (centred[0] * centred[1]).mean(axis=1) / np.square(centred[0]).mean(axis=1)
        row["slope_within_key"] = float(within.mean())
        row["correlation_within_key"] = float(
            np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(*centred, strict=True)])
        )
        lifted = own + separations.get(language, 0.0) * own.std(axis=1, keepdims=True)
        for level in LEVELS:
            for kind, tested in (("unmarked", own), ("marked", lifted)):
                row[f"{kind}, English threshold, {level}"] = summary(passing(english, tested, level))
                row[f"{kind}, own threshold, {level}"] = summary(passing(own, tested, level))
        found[language] = row
    return found


def main() -> None:
    args = _arguments()
    settings = parse_settings(args.set)
    if args.kept:
        kept = np.load(args.kept)
        scores, languages = kept["scores"].astype(np.float64), [str(name) for name in kept["languages"]]
    else:
        scores, languages = _score(args, settings)
    table = {
        "host": args.host,
        "settings": settings,
        "keys": len(scores),
        "limit": args.limit,
        "texts": scores.shape[2],
        "languages": report(scores, languages, dict(args.separation) or SEPARATION),
    }
    Path(args.out).write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(table["languages"], indent=1))


def _score(args: argparse.Namespace, settings: dict[str, Any]) -> tuple[np.ndarray, list[str]]:
    """Scores (keys, languages, texts) and the languages."""
    files = {"en": args.original, **dict(args.translated)}
    texts = {name: [_text(row) for row in _rows(Path(file))][: args.texts] for name, file in files.items()}
    counts = {len(each) for each in texts.values()}
    if len(counts) > 1:
        raise SystemExit(f"the files have {sorted(counts)} rows: give as many translations as originals")
    scorer = Scorer([t for each in texts.values() for t in each], host=args.host, settings=settings)
    print(f"{len(scorer.tokens)} tokens, {len(scorer.contexts)} windows", flush=True)
    found = []
    for i in range(args.keys):
        found.append(scorer.under(named_key(f"translation-{i}"), limit=args.limit))
        if i % 50 == 49:
            print(f"{i + 1} keys", flush=True)
    scores = np.array(found).reshape(args.keys, len(texts), -1)
    if args.scores:
        np.savez_compressed(args.scores, scores=scores.astype(np.float32), languages=list(texts))
    return scores, list(texts)


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _text(row: dict[str, Any]) -> str:
    return str(row.get("text", row.get("response", "")))


def _number(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    return name, float(value)


def _arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--original")
    parser.add_argument("--from", dest="kept", metavar="FILE.npz")
    parser.add_argument("--translated", action="append", default=[], type=lambda text: text.split("=", 1))
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--keys", type=int, default=500)
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument(
        "--limit",
        action="store_true",
        help="take ‖ê_C R_C‖ as √n, from which it differs by 3%%: three times as fast",
    )
    parser.add_argument("--separation", action="append", default=[], type=_number, metavar="LANGUAGE=D")
    parser.add_argument("--scores")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
