"""Formulas of the baselines, held to numbers that the authors' own functions computed on fixed inputs.

`benchmarks/author_vectors.py` computes `vectors/authors.json` from checkouts of MarkLLM, the toolkit that the
DEW paper evaluates, and of the code of SIR's, Unigram's, SemStamp's and Kuditipudi's (EXP) authors; sources,
versions and licences are in the file. The inputs are `waves` and `words`, here as there.
"""

from __future__ import annotations

import json
import math
import types
from pathlib import Path

import numpy as np
import torch
from tests.schemes.test_atw import PLAIN, SEMANTICS, ToyModel, key
from tests.schemes.toy_host import HOST, VOCAB, bind

from dewmark.capabilities import evidence_of
from dewmark.decoding import Decoding
from dewmark.sampling import warp
from dewmark.stats.evidence import Evidence
from dewmark.workspace import Tokenized, Workspace
from dewmark_lab.schemes import pair_hash
from dewmark_lab.schemes.green.entropy import EWD
from dewmark_lab.schemes.green.morphmark import MorphMark
from dewmark_lab.schemes.independent_sums import gamma_test
from dewmark_lab.schemes.keyed_sampling.exp import keyed_race
from dewmark_lab.schemes.learned.atw import ATW, BoundATW
from dewmark_lab.schemes.learned.keyed_signs import LAYERS
from dewmark_lab.schemes.learned.sir import Transform
from dewmark_lab.schemes.reweight.dipmark import SLOTS, dip_factors, slot_masses
from dewmark_lab.schemes.sentence.semstamp import CentroidBins, HyperplaneBins, paper_test
from dewmark_lab.training.sir import losses

VECTORS = json.loads((Path(__file__).parent / "vectors" / "authors.json").read_text())
WIDTH = 40


def waves(*shape: int, start: int = 0) -> torch.Tensor:
    """The sines of (start + 1)², (start + 2)² and so on."""
    steps = np.arange(start + 1, start + int(np.prod(shape)) + 1, dtype=np.float64)
    return torch.from_numpy(np.sin(steps**2)).reshape(shape)


def words(rows: int, columns: int) -> np.ndarray:
    """Words that look random, uint32."""
    steps = np.arange(1, rows * columns + 1, dtype=np.uint64)
    mixed = (steps * np.uint64(0x9E3779B97F4A7C15)) ^ (steps * steps * np.uint64(0xD1B54A32D192ED03))
    return (mixed >> np.uint64(32)).astype(np.uint32).reshape(rows, columns)


LOGITS = 2.0 * waves(3, WIDTH)
ORDER = torch.argsort(waves(3, WIDTH, start=500), dim=1)
GREEN = waves(3, WIDTH, start=900) > 0.0


def reweighted(alpha: float) -> torch.Tensor:
    """Our DiP factors on the authors' order: the token at place i is alone in slot i."""
    slots = torch.argsort(ORDER, dim=1)
    assert WIDTH <= SLOTS
    p = LOGITS.softmax(dim=1)
    factors = dip_factors(slot_masses(p, slots), alpha)
    return p * factors.gather(1, slots)


def test_dipmark_reweights_as_the_toolkit() -> None:
    for alpha, expected in VECTORS["dipmark"].items():
        torch.testing.assert_close(
            reweighted(float(alpha)), torch.tensor(expected).double(), atol=1e-6, rtol=1e-5
        )


def test_unbiased_gamma_reweights_as_the_toolkit() -> None:
    expected = torch.tensor(VECTORS["unbiased_gamma"]).double()
    torch.testing.assert_close(reweighted(0.5), expected, atol=1e-6, rtol=1e-5)


def test_morphmark_moves_the_mass_that_the_toolkit_moves() -> None:
    p = LOGITS.softmax(dim=1)
    P_G = (p * GREEN).sum(dim=1, keepdim=True)
    for ours, theirs in {"linear": "linear", "exponential": "exp", "logarithmic": "log"}.items():
        r = MorphMark(form=ours).moved_share(P_G).clamp(max=1.0)
        found = torch.where(GREEN, p * (1.0 + r * (1.0 - P_G) / P_G), p * (1.0 - r))
        expected = torch.tensor(VECTORS["morphmark"][theirs]).double()
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_atw_multiplies_green_logits_as_the_toolkit() -> None:
    """Through a session whose green half is the vectors' own."""
    scheme = ATW(alpha=0.0, **PLAIN)
    workspace = Workspace(cache=Path(), open_host=lambda _: ToyModel())
    bound = BoundATW(
        scheme, HOST, "x", secret=scheme.secret_of(key(0)), semantics=SEMANTICS, workspace=workspace
    )
    prompt = torch.tensor([[9, 8]])
    ids = torch.cat((prompt, torch.arange(10, 30)[None]), dim=1)
    for row in range(3):
        session = bound.session(prompt)
        green = torch.zeros(1, VOCAB)
        green[0, :WIDTH] = GREEN[row].float()
        session._green = (scheme.context_length(20), green)
        logits = torch.zeros(1, VOCAB)
        logits[0, :WIDTH] = LOGITS[row].float()
        expected = torch.tensor(VECTORS["atw"][row])
        torch.testing.assert_close(session(ids, logits)[0, :WIDTH], expected, atol=1e-5, rtol=1e-5)


def test_ewd_spike_entropy_is_the_toolkit_s() -> None:
    """Ours is scaled to [0, 1]; the toolkit subtracts the least of the text instead."""
    bound = bind("ewd", gamma=0.5, delta=2.0, model=ToyModel())
    least = 1.0 / (1.0 + EWD(gamma=0.5, delta=2.0).modulus)
    found = bound.weigh(LOGITS[:2]) * (1.0 - least) + least
    np.testing.assert_allclose(found.numpy(), VECTORS["ewd"], rtol=1e-6)


def test_sir_network_signs_and_loss_are_the_authors() -> None:
    """Unit inputs and a mean of 0 turn our input stage off; √300 of their mean bias is never exactly ±1."""
    sizes = {"input": (6, 5), "first": (5, 5), "second": (5, 5), "output": (5, 8)}
    arrays: dict[str, np.ndarray] = {"mean": np.zeros(6)}
    start = 0
    for name, (rows, columns) in sizes.items():
        arrays[f"{name}.W"] = waves(columns, rows, start=start).numpy().T
        arrays[f"{name}.b"] = waves(columns, start=start + rows * columns).numpy()
        start += (rows + 1) * columns
    assert tuple(sizes) == LAYERS
    inputs = waves(4, 6, start=300)
    lengths = inputs.norm(dim=1, keepdim=True).numpy()
    scaled = {**arrays, "input.W": arrays["input.W"]}
    expected = np.array(VECTORS["sir"]["scaled"])
    for i in range(4):  # the first layer absorbs the length that ours divides by
        transform = Transform(None, {**scaled, "input.W": arrays["input.W"] * lengths[i]})
        signs = transform.of_vectors(inputs[i : i + 1].numpy())[0]
        np.testing.assert_array_equal(signs, np.sign(expected[i]))
    outputs = torch.tensor(VECTORS["sir"]["outputs"], dtype=torch.float64)
    found = losses(inputs, inputs.flip(0), outputs, outputs.flip(0), torch.tensor(0.1))
    assert math.isclose(float(sum(found)), VECTORS["sir"]["loss"], rel_tol=1e-6)


def test_ksemstamp_accepts_as_the_toolkit() -> None:
    """The nearest of eight centroids by cosine, accepted if its lead exceeds the margin."""
    centroids, sentences = (
        torch.nn.functional.normalize(each, dim=1).numpy() for each in (waves(8, 6), waves(12, 6, start=77))
    )
    nearest, lead = CentroidBins(centroids, 0.05).assign(sentences)
    assert [[int(i), bool(m > 0.0)] for i, m in zip(nearest, lead, strict=True)] == VECTORS["ksemstamp"]
    assert len({accepted for _, accepted in VECTORS["ksemstamp"]}) == 2


def test_unigram_biases_and_counts_as_the_authors() -> None:
    """On the authors' green list: their logits, and z over distinct tokens. Ours never counts repeats."""
    given = VECTORS["unigram"]
    green = np.array([each == "1" for each in given["green"]])
    bound = bind("unigram")
    bound.pair_hash = types.SimpleNamespace(
        words=lambda _, tokens: np.where(green[tokens], 0, 2**32 - 1).astype(np.uint32)
    )
    ids = tuple(3 + (i * i * 7 + i // 3) % 297 for i in range(150))
    texts = [Tokenized("", ids, ())], [Tokenized("", (), ())]
    (evidence,) = evidence_of(bound, *texts)
    found = bound.test(evidence, test="z")
    assert len(evidence) == len(set(ids)) < len(ids)
    assert math.isclose(found.z, given["z_unique"], rel_tol=1e-12)
    assert not math.isclose(found.z, given["z_all"], rel_tol=0.1)
    bound.vocabulary_hash = types.SimpleNamespace(below=lambda *_: torch.from_numpy(green.copy())[None])
    logits = 2.0 * waves(1, VOCAB).float()
    marked = bound.session(torch.tensor([[9]]))(torch.tensor([[9]]), logits)[0, 3:WIDTH]  # 0 to 2 are special
    torch.testing.assert_close(marked, torch.tensor(given["logits"][3:]))


def test_exp_draws_and_scores_as_the_toolkit_and_the_authors() -> None:
    given, found = VECTORS["exp"], words(60, WIDTH)
    logits = (3.0 * waves(60, WIDTH)).float()
    keyed = torch.from_numpy(found.astype(np.int64))
    for name, decoding in (("chosen", Decoding()), ("chosen_of_5", Decoding(top_k=5))):
        chosen, sound = keyed_race(warp(logits, decoding), keyed)
        assert bool(sound.all())
        assert chosen.tolist() == given[name]
    taken = found[np.arange(60), given["chosen"]]
    scores = -np.log1p(-pair_hash.to_uniforms(taken))
    assert math.isclose(scores.sum(), given["score"], rel_tol=1e-12)
    evidence = Evidence.independent(scores - 1.0, np.ones(60), np.arange(60), variance=1.0)
    assert math.isclose(gamma_test(evidence).p_value, given["p_value"], rel_tol=1e-9)


def test_semstamp_bins_margin_and_z_are_the_authors() -> None:
    """Their bins are numbered from the first hyperplane's bit downwards, ours upwards."""
    given = VECTORS["semstamp"]
    normals, vectors = np.array(given["normals"]), waves(24, 6, start=77).numpy()
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    bins, lead = HyperplaneBins(normals, 0.1).assign(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    theirs = np.array([int(f"{each:03b}"[::-1], 2) for each in range(8)])[bins]
    assert theirs.tolist() == given["bins"]
    assert (lead >= 0.0).tolist() == given["clear"]
    assert len(set(given["clear"])) == 2
    partition, counts = np.zeros((8, 8), dtype=bool), np.zeros((8, 8), dtype=np.int64)
    for before, accepted in enumerate(given["accepted"]):
        partition[before, accepted] = True
    np.add.at(counts, (theirs[:-1], theirs[1:]), 1)
    assert math.isclose(paper_test(counts, partition).z, given["z"], rel_tol=1e-12)
