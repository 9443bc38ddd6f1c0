"""How far keyed sampling moves the next token's distribution, averaged over keys (docs/results/beyond.md).

    python benchmarks/distortion.py --config words: --config tokens: units=token

With unrelated candidates the choice, averaged over keys, is exactly a draw from the host's distribution.
Related candidates (" big", " large") share noise under one key. Over keys, the alignments of the candidates
in one context are jointly normal with covariance ⟨t_i, t_j⟩, so no key needs to be drawn: at positions in
real text the benchmark simulates the race. It prints the total variation distance between the host's
probabilities and the mean choice, and by how many nats the mean choice is less likely than a draw from the
host (the gain in log-perplexity), each beside the same number of draws with independent noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr
from script_inputs import parse_with_configs, script_parser

import dewmark
from dewmark.arrays import F64
from dewmark.dew.reading import TokenReader
from dewmark.dew.scheme import DEW
from dewmark.lab.bench.workloads import prompts
from dewmark.scheme import BoundScheme
from dewmark.text.growing_text import Spelling, TokenStream


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--places", type=int, default=20)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.25, 0.5, 1.0])
    args = parse_with_configs(parser)
    host = dewmark.load_host(args.host)
    texts = host.info.tokenizer.encode(prompts(args.places))
    logits = [
        each[-1].double().numpy() for each in host.next_logits([""] * len(texts), [t.ids for t in texts])
    ]
    print("| configuration | α | mean distance | largest | independent noise | nats | independent noise |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, settings in args.config:
        scheme = dewmark.load_scheme("dew", key=dewmark.Key(bytes(32)), host=host.info, **settings)
        for alpha in args.alpha:
            found, base = [], []
            for i, (text, scores) in enumerate(zip(texts, logits, strict=True)):
                # the last row of logits predicts the last id; the ids before it are the context
                top = np.argsort(-scores)[: DEW().candidates]
                p = np.exp(scores[top] - scores[top].max())
                rows = candidates(scheme, text.ids[:-1], top)
                rng = np.random.default_rng(i)
                found.append(moved(p / p.sum(), rows, alpha, args.draws, rng))
                base.append(moved(p / p.sum(), np.zeros((len(p), 1)), alpha, args.draws, rng))
            (distances, nats), (chance, noise) = np.transpose(found), np.transpose(base)
            print(
                f"| {name} | {alpha:g} | {distances.mean():.4f} | {distances.max():.4f} "
                f"| {chance.mean():.4f} | {_mean(nats)} | {_mean(noise)} |",
                flush=True,
            )


def _mean(values: F64) -> str:
    """A mean over positions with its standard error."""
    return f"{values.mean():+.4f} ± {values.std(ddof=1) / np.sqrt(len(values)):.4f}"


def candidates(scheme: BoundScheme, before: tuple[int, ...], top: NDArray[np.int64]) -> F64:
    """ê_T of each candidate (m, d_T); a zero row if it carries no mark."""
    reader = scheme.reader
    if isinstance(reader, TokenReader):
        return np.asarray(reader.token_rows[top], dtype=np.float64)
    stream = TokenStream(Spelling(scheme.host.tokenizer, scheme.host.vocab_size), before)
    made = stream.candidates(top.tolist())
    rows = np.zeros((len(top), reader.tokens.dim))
    marked = [i for i, each in enumerate(made) if each.form is not None]
    rows[marked] = reader.tokens.vectors([made[i].form for i in marked])
    return rows


def moved(p: F64, rows: F64, alpha: float, draws: int, rng: np.random.Generator) -> tuple[float, float]:
    """Total variation and nats between p (m,) and the mean choice of the race over random keys."""
    marked = np.any(rows != 0, axis=1)
    counts = np.zeros(len(p))
    for start in range(0, draws, 2000):
        size = min(2000, draws - start)
        u = rng.normal(size=(size, rows.shape[1])) @ rows.T / np.maximum(np.linalg.norm(rows, axis=1), 1e-12)
        fresh = rng.normal(size=(size, len(p)))
        x = np.where(marked, np.sqrt(alpha) * u + np.sqrt(1.0 - alpha) * fresh, fresh)
        winners = np.argmin(-log_ndtr(x) / p, axis=1)
        counts += np.bincount(winners, minlength=len(p))
    change = counts / draws - p
    return float(0.5 * np.abs(change).sum()), float(-change @ np.log(p))


if __name__ == "__main__":
    main()
