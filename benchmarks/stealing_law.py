"""How many texts a forger needs: `dewmark.attacks.stealing.law` against a simulation without a host.

    python benchmarks/stealing_law.py --out law.json

Words and contexts are those of the package's own texts, in the leading coordinates of both spaces. A writer
stands in for the host: at each place of a real passage it chooses among 16 words of running text by the
scheme's own race, with probabilities k^-s for the k-th; s sets how much choice there is. Attackers are the
library's own: one key, learned from 1 to 50,000 texts (with R members, and told which texts share one, from
R times as many); clustering of a ring; alignment under a public sign group. The attacker's strength and the
share that it spends on the tail are searched with the victim's detector, in the attacker's favour.

A text is *marked* if p, times the number of members, is below 0.01. It is *attributable* if its tail is
significant as well, by the rule of `dewmark.dew.attribution` for a ring of that size. Writes the JSON file
after every part; a part that is there is not run again.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri
from script_inputs import RINGS, named_key, passes, script_parser, share_in_ring

import dewmark
from dewmark.attacks.stealing import law
from dewmark.attacks.stealing.clustering import (
    Clusters,
    expectation_maximisation,
    linked,
    spectral,
    told,
)
from dewmark.attacks.stealing.observed import Observed
from dewmark.attacks.stealing.regression import (
    Baseline,
    fitted_tilt,
    head_mask,
    pairs_of,
    posterior_mean,
    spend_on_tail,
)
from dewmark.attacks.stealing.signs import align, sign_rows
from dewmark.dew.attribution import LARGE
from dewmark.encoders.word_vectors import register_texts

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
LEVEL, CANDIDATES, VOCABULARY = 0.01, 16, 512
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 5000, 10_000, 20_000, 50_000)
STRENGTHS = (4.0, 16.0)
SHARES = (0.5, 0.75, 0.9)  # of the strength, on a tail
TAILS = (0.5, 0.4)  # shares of the energy
BLOCK = 64  # texts written at once


@dataclass(frozen=True)
class World:
    """Units T (P, a) and contexts C (P, b) of running text in public eigenbases, and their variances."""

    T: F32
    C: F32
    variances: F64
    expected: F64
    length: int
    odds: F32  # (CANDIDATES,)
    alpha: float

    @functools.cached_property
    def head(self) -> NDArray[np.bool_]:
        """The coordinates that are learned first."""
        return head_mask(self.variances)

    @functools.cached_property
    def heads(self) -> dict[float, NDArray[np.bool_]]:
        """The same, by the share of the tail."""
        return {tail: head_mask(self.variances, share=1.0 - tail) for tail in TAILS}

    def write(self, W: F32, texts: int, rng: np.random.Generator, *, bias: float | None = None) -> F32:
        """Matrices (texts, a, b) of texts marked under W (a, b) or (texts, a, b); ``bias``: a forger's.

        The subtracted mean is the text's own, as in detection.
        """
        found = np.empty((texts, *self.variances.shape), dtype=np.float32)
        for first in range(0, texts, BLOCK):
            some = slice(first, min(first + BLOCK, texts))
            number = some.stop - some.start
            starts = rng.integers(len(self.C) - self.length, size=number)
            C = self.C[starts[:, None] + np.arange(self.length)]
            mine = W if W.ndim == 2 else W[some]
            each = [mine] * number if mine.ndim == 2 else list(mine)
            along = np.stack([c @ w.T for c, w in zip(C, each, strict=True)])  # (texts, length, a)
            block = rng.integers(len(self.T), size=VOCABULARY)  # scored at once; each place draws from it
            picked = rng.integers(VOCABULARY, size=(number, self.length, CANDIDATES))
            u = np.take_along_axis(along @ self.T[block].T, picked, axis=2)
            if bias is None:
                keyed = np.sqrt(self.alpha) * u + np.sqrt(1.0 - self.alpha) * rng.standard_normal(u.shape)
                times = -log_ndtr(keyed) / self.odds
            else:
                times = np.log(rng.exponential(size=u.shape)) - np.log(self.odds) - bias * u
            best = times.argmin(axis=2)
            T = self.T[block[np.take_along_axis(picked, best[..., None], axis=2)[..., 0]]]
            T = T - T.mean(axis=1, keepdims=True)
            found[some] = [t.T @ c for t, c in zip(T, C, strict=True)]
        return found

    def z(self, M: F32, W: F32, block: NDArray[np.bool_] | None = None) -> F64:
        """z-scores (texts,) of matrices under W, over a block of coordinates or all."""
        M, W = (M, W) if block is None else (M * block, W * block)
        sizes = np.sqrt(np.einsum("nab,nab->n", M, M, dtype=np.float64))
        product = np.einsum("nab,nab->n", M, np.broadcast_to(W, M.shape), dtype=np.float64)
        return np.asarray(product / sizes)

    def residuals(self, M: F32) -> F32:
        """What an attacker works with: matrices less their expectation in unmarked text."""
        return M - np.float32(self.length) * self.expected.astype(np.float32)


def package_pairs(**settings: float) -> tuple[F32, F32]:
    """Units and contexts of the package's own English texts, under some settings of DEW."""
    data = resources.files("dewmark") / "data"
    texts = [data.joinpath("ordinary/en.txt").read_text(encoding="utf-8"), *register_texts()]
    lines = data.joinpath("requests.jsonl").read_text(encoding="utf-8").splitlines()
    texts += [" ".join(str(value) for value in json.loads(line).values()) for line in lines]
    bound = dewmark.load_scheme(
        "dew", key=named_key("stealing law"), settings={"count_once": False} | settings
    )
    T, C = (np.concatenate(side) for side in zip(*pairs_of(bound.reader, texts), strict=True))
    known = (np.abs(T).sum(axis=1) > 0.0) & (np.abs(C).sum(axis=1) > 0.0)  # words outside a lexicon have none
    return T[known], C[known]


def make_world(
    pairs: tuple[F32, F32], *, units: int, contexts: int, length: int, choice: float, alpha: float
) -> World:
    """The packaged text in its leading coordinates; ``choice`` is s."""
    base = Baseline.of([pairs]).leading(units, contexts)
    T = (pairs[0] @ base.V_T).astype(np.float32)
    C = (pairs[1] @ base.V_C).astype(np.float32)
    T /= np.linalg.norm(T, axis=1, keepdims=True)
    C /= np.linalg.norm(C, axis=1, keepdims=True)
    variances = np.outer(T.var(axis=0, dtype=np.float64), np.square(C).mean(axis=0, dtype=np.float64))
    # the text's own mean is subtracted, so the expectation is small; it is fitted, as an attacker would
    world = World(T, C, variances, np.zeros_like(variances), length, _odds(choice), alpha)
    plain = world.write(np.zeros_like(variances, dtype=np.float32), 1000, np.random.default_rng(1), bias=0.0)
    scale = variances.sum()
    return World(T, C, variances / scale, plain.mean(axis=0) / length, length, world.odds, alpha)


def _odds(s: float) -> F32:
    odds = (1.0 + np.arange(CANDIDATES)) ** -s
    return (odds / odds.sum()).astype(np.float32)


def judge(world: World, M: F32, W: F32, *, rings: Sequence[int] = RINGS) -> dict[str, Any]:
    """Mean z-scores, and the shares of texts that are marked and attributable, by the size of the ring."""
    whole = world.z(M, W)
    tails = {tail: world.z(M, W, ~head) for tail, head in world.heads.items()}
    lines = {ring: -float(ndtri(LEVEL / ring)) for ring in rings}
    tested = {ring: tails[TAILS[ring > LARGE]] > _tail_lines(world, M, W, ring) for ring in rings}
    return {
        "z": float(whole.mean()),
        "tail": {tail: float(each.mean()) for tail, each in tails.items()},
        "marked": {ring: float(np.mean(whole > line)) for ring, line in lines.items()},
        "attributable": {ring: float(np.mean((whole > line) & tested[ring])) for ring, line in lines.items()},
    }


def _tail_lines(world: World, M: F32, W: F32, ring: int) -> F64:
    """What the tail's z of each text (texts,) must reach in a ring of this size."""
    heads = world.z(M, W, world.heads[TAILS[ring > LARGE]])
    shares = np.array([share_in_ring(float(z), ring) for z in heads])
    return np.asarray(-ndtri(np.maximum(LEVEL * shares, 1e-300)))


def attack(
    world: World,
    W: F32,
    learned: F64,
    rng: np.random.Generator,
    *,
    texts: int,
    rings: Sequence[int] = RINGS,
) -> dict[str, Any]:
    """The best that a forger can do, for each ring in the way that serves him best there."""
    aims: list[tuple[float, float | None, float | None]] = [(strength, None, None) for strength in STRENGTHS]
    aims += [(STRENGTHS[-1], tail, share) for tail in TAILS for share in SHARES]
    tried = []
    for strength, tail, share in aims:
        steered = learned
        if tail is not None and share is not None:
            steered = spend_on_tail(learned, world.variances, world.heads[tail], share=share)
        scale = np.sqrt((np.square(steered) * world.variances).sum())
        M = world.write((steered / scale).astype(np.float32), texts, rng, bias=strength)
        tried.append(judge(world, M, W, rings=rings))
    return {
        "z": max(each["z"] for each in tried),
        "marked": {ring: max(each["marked"][ring] for each in tried) for ring in rings},
        "attributable": {ring: max(each["attributable"][ring] for each in tried) for ring in rings},
    }


def curve(world: World, rng: np.random.Generator, *, sizes: tuple[int, ...], texts: int) -> dict[str, Any]:
    """One key, or one member of a ring, told which texts are its: forgeries from 1 … texts."""
    W = rng.standard_normal(world.variances.shape).astype(np.float32)
    genuine = judge(world, world.write(W, texts, rng), W)
    print(json.dumps({"genuine": genuine}), flush=True)
    total, seen, rows = np.zeros_like(world.variances), 0, []
    for size in sizes:
        while seen < size:
            number = min(size - seen, 512)
            total += world.residuals(world.write(W, number, rng)).sum(axis=0, dtype=np.float64)
            seen += number
        count = float(size * world.length)
        tilt = fitted_tilt(total, count, world.variances)
        learned = posterior_mean(total, count, world.variances, tilt=tilt)
        z, length = genuine["z"], world.length
        cosines = {
            name: float(
                (learned * W * world.variances)[block].sum()
                / np.sqrt(
                    (np.square(learned) * world.variances)[block].sum()
                    * (np.square(W) * world.variances)[block].sum()
                )
            )
            for name, block in (("head", world.head), ("tail", ~world.head))
        }
        predicted = {
            name: law.cosine_after(world.variances[block], count, tilt=z / np.sqrt(length))
            for name, block in (("head", world.head), ("tail", ~world.head))
        }
        row = {"texts": size, "tilt": tilt, "cosine": cosines, "law": predicted}
        row |= attack(world, W, learned, rng, texts=texts)
        rows.append(row)
        print(json.dumps(row), flush=True)
    half = {ring: passes({row["texts"]: row["attributable"][ring] for row in rows}) for ring in RINGS}
    return {"genuine": genuine, "rows": rows, "texts of a member for half": half}


def rings(world: World, rng: np.random.Generator, *, members: int, number: int, texts: int) -> dict[str, Any]:
    """Texts of random members: pooled, clustered two ways, and told."""
    shape = world.variances.shape
    Ws = rng.standard_normal((members, *shape)).astype(np.float32)
    owners = rng.integers(members, size=number)
    genuine = world.write(Ws[owners], number, rng)
    z = float(np.mean(world.z(genuine, Ws[owners])))
    seen = Observed(world.residuals(genuine), np.full(number, float(world.length)), world.variances)
    tilt = z / np.sqrt(world.length)
    pooled = Clusters(np.ones((number, 1)), np.zeros(1))
    ways = {
        "pooled": pooled,
        "linked": linked(seen, members=members, tilt=tilt),
        "spectral": spectral(seen, members=members),
        "em": expectation_maximisation(seen, members=members, tilt=tilt, restarts=2),
        "told": told(seen, owners),
    }
    found: dict[str, Any] = {"members": members, "texts": number, "z": z}
    found["law"] = {"cluster_texts": law.cluster_texts(world.variances, ring=members, z=z)}
    for name, clusters in ways.items():
        learned = seen.estimate(clusters.odds[:, clusters.best])
        overlap = np.einsum("rab,ab->r", Ws, learned * world.variances)
        target = int(np.argmax(overlap))  # the member that the forgery resembles most
        found[name] = {
            "purity": clusters.purity(owners),
            **attack(world, Ws[target], learned, rng, texts=texts, rings=(members,)),
        }
        print(json.dumps({name: found[name]}), flush=True)
    return found


def public_signs(
    world: World, rng: np.random.Generator, *, members: int, bits: int, number: int, texts: int
) -> dict[str, Any]:
    """A ring of independent matrices, each under 2^bits public signs per side: align, forge one member."""
    a, b = world.variances.shape
    left, right = (sign_rows(256, rng.permutation(256)[:d]).T for d in (a, b))
    left, right = left[: 1 << bits].copy(), right[: 1 << bits].copy()
    Ws = rng.standard_normal((members, a, b)).astype(np.float32)
    owners, use = rng.integers(members, size=number), rng.integers(1 << bits, size=(number, 2))

    def matrix(owner: int, signs: NDArray[np.int64]) -> F32:
        return np.asarray(Ws[owner] * left[signs[0]][:, None] * right[signs[1]])

    M = np.empty((number, a, b), dtype=np.float32)
    z = np.empty(number)
    for first in range(0, number, BLOCK):
        some = range(first, min(first + BLOCK, number))
        mine = np.stack([matrix(owners[i], use[i]) for i in some])
        M[some] = world.write(mine, len(some), rng)
        z[some] = world.z(M[some], mine)
    seen = Observed(world.residuals(M), np.full(number, float(world.length)), world.variances)
    tilt = float(z.mean() / np.sqrt(world.length))
    aligned = align(seen, left, right, members=members, tilt=tilt)
    kept = aligned.used
    relative = np.column_stack((owners[kept], aligned.signs[kept] ^ use[kept]))  # constant if right
    kinds, counts = np.unique(relative, axis=0, return_counts=True)
    common = kinds[counts.argmax()]
    learned = aligned.W.astype(np.float64)
    target = matrix(int(common[0]), common[1:])
    ring = members * len(left) * len(right)
    found = {
        "members": members,
        "signs": len(left) * len(right),
        "texts": number,
        "length": world.length,
        "z": float(z.mean()),
        "law": {"aligned_pairs": law.aligned_pairs(world.variances, z=float(z.mean()), messages=ring)},
        "aligned_rightly": float(counts.max() / len(kept)),
        **attack(world, target, learned, rng, texts=texts, rings=(ring,)),
    }
    print(json.dumps(found), flush=True)
    return found


def plot(results: dict[str, Any], file: Path) -> None:
    """Attributable forgeries by the number of texts seen of one member, for strong texts and for chat."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    names = {1: "one key", 256: "ring of 256", 16_384: "ring of 16,384", 65_536: "ring of 65,536"}
    for axes, kind in zip(figure.subplots(1, 2, sharey=True), ("strong", "chat"), strict=True):
        part = results[kind]
        rows = part["rows"]
        for ring, name in names.items():
            shares = [row["attributable"][str(ring)] for row in rows]
            axes.plot([row["texts"] for row in rows], shares, marker="o", markersize=3, label=name)
        axes.axhline(0.05, color="gray", linewidth=0.8, linestyle=":")
        axes.set(xscale="log", xlabel="texts seen of one member", ylim=(-0.02, 1.02))
        axes.set_title(f"{kind}, mean z {part['genuine']['z']:.1f}", fontsize=10)
        axes.set_xticks([10**k for k in range(5)], [f"{10**k:,}" for k in range(5)])
        axes.minorticks_off()
    figure.axes[0].set_ylabel("forgeries attributable")
    figure.axes[0].legend(frameon=False)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="the largest number of texts")
    parser.add_argument("--texts", type=int, default=200, help="forged texts per point")
    parser.add_argument("--length", type=int, default=100, help="pairs per text")
    parser.add_argument(
        "--parts", default="strong,chat,default,ranks,alpha,form_share,rings,signs", help="by commas"
    )
    parser.add_argument("--plot", type=Path, help="only plot what --out has, into this file")
    options: argparse.Namespace = parser.parse_args()
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.plot is not None:
        plot(results, options.plot)
        return
    pairs = package_pairs()
    world_of = functools.partial(make_world, pairs, length=options.length)

    def run(name: str, part: Callable[[], dict[str, Any]]) -> None:
        if name in results or name.split(":")[0] not in options.parts.split(","):
            return
        started = time.perf_counter()
        results[name] = part()
        results[name]["seconds"] = time.perf_counter() - started
        options.out.write_text(json.dumps(results, indent=1) + "\n")

    sizes = tuple(size for size in SIZES if size <= options.most)
    few = tuple(size for size in sizes if size <= 64)
    default = {"units": 128, "contexts": 128, "choice": 0.6, "alpha": 0.95}
    kinds: dict[str, tuple[dict[str, float], tuple[int, ...]]] = {
        "strong": ({"length": 135}, (1, 2, 3, *sizes[2:])),
        "chat": ({"length": 37, "choice": 1.6}, sizes),
        "default": ({}, few),
        "ranks:48x64": ({"units": 48, "contexts": 64}, few),
        "ranks:96x96": ({"units": 96, "contexts": 96}, few),
        "alpha:0.3": ({"alpha": 0.3}, few),
        "alpha:0.6": ({"alpha": 0.6}, few),
        "alpha:1": ({"alpha": 1.0}, few),
        "form_share:0.2": ({"form_share": 0.2}, few),
        "form_share:0.5": ({"form_share": 0.5}, few),
    }
    for name, (changed, chosen) in kinds.items():

        def one(changed: dict[str, float] = changed, chosen: tuple[int, ...] = chosen) -> dict[str, Any]:
            settings = default | {"length": options.length} | changed
            share = settings.pop("form_share", 0.0)
            read = package_pairs(form_share=share) if share else pairs
            world = make_world(read, **settings)
            blocks = {"all": np.ones_like(world.head), "head": world.head, "tail": ~world.head}
            directions = {n: law.effective_directions(world.variances[each]) for n, each in blocks.items()}
            about = {"settings": settings | {"form_share": share}, "directions": directions}
            return about | curve(world, np.random.default_rng(7), sizes=chosen, texts=options.texts)

        run(name, one)
    small = default | {"units": 48, "contexts": 64}
    for members, number in ((16, 128), (16, 512), (16, 2048), (64, 512), (64, 2048), (256, 2048)):
        run(
            f"rings:{members}:{number}",
            lambda m=members, n=number: rings(
                world_of(**small), np.random.default_rng(m + n), members=m, number=n, texts=options.texts
            ),
        )
    signed = (("16x256", 16, 4, 100, 2000), ("1x4096", 1, 6, 100, 2000), ("1x4096", 1, 6, 300, 200))
    for name, members, bits, length, number in signed:
        run(
            f"signs:{name}:{length}:{number}",
            lambda m=members, k=bits, n=number, length=length: public_signs(
                make_world(pairs, **small, length=length),
                np.random.default_rng(n),
                members=m,
                bits=k,
                number=n,
                texts=options.texts,
            ),
        )


if __name__ == "__main__":
    main()
