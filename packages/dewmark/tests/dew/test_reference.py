"""Every fast path computes what `dewmark.dew.reference` says: the alignments, the race and the test.

Detection computes in float32; z and p differ from the reference by less than 2e-5. Marking keeps the words'
vectors in float16; u differs by less than 2e-3, perturbed logits by less than 4e-3, and the same token wins.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import log_ndtr, ndtri
from tests.many_keys import score_under

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import score_text
from dewmark.dew import reference
from dewmark.dew.form import FormKey
from dewmark.dew.matrix import cuts_of, text_matrices
from dewmark.dew.noise import form_noise, innovations, keyed_noise, roots
from dewmark.dew.reading import Pairs
from dewmark.dew.ring import KeyUse
from dewmark.dew.scheme import DEW
from dewmark.dew.word_step import key_tensors
from dewmark.encoders.contexts import register_texts
from dewmark.encoders.lexicon import Lexicon, load_lexicon
from dewmark.sampling import CandidateRace, RandomStreams, warp
from dewmark.stats.two_sums import larger_of
from dewmark.text.words import form_of
from dewmark.workspace import NO_READER, Workspace, no_host
from dewmark_lab.testing.fake_host import FakeHost

KEY = Key(bytes(range(32)))
KEYS = [KEY, *(Key(i.to_bytes(32, "big")) for i in range(1, 6))]
WORKSPACE = Workspace(cache=Path("unused"))
DATA = files("dewmark") / "data"
ROUNDING = 2e-5  # of z and p, in float32
HALF_PRECISION = 2e-3  # of u

PROSE = " ".join(" ".join(text.split()) for text in register_texts() if text.strip())
ORDINARY = {code: (DATA / "ordinary" / f"{code}.txt").read_text("utf-8") for code in ("ar", "de", "ko", "zh")}


def first(count: int, text: str = PROSE) -> str:
    return " ".join(text.split()[:count])


def negative(kind: str) -> str:
    return str(json.loads((DATA / "negatives" / f"{kind}.jsonl").read_text("utf-8").splitlines()[0])["text"])


TEXTS = {
    "four words": "a bridge leads home",
    "three words": "a bridge leads",
    "short": first(25),
    "a paragraph": first(120),
    "long": first(305),
    "more than 2d words": first(900),
    "longest": first(4000),
    "German": ORDINARY["de"],
    "Arabic": ORDINARY["ar"],
    "Korean": ORDINARY["ko"],
    "Chinese": ORDINARY["zh"],
    "numbers": " ".join(map(str, range(40))),
    "English and unknown words": "the xyzzy bridge plugh over qwzx the old xyzzy plugh qwzx river and hill",
    "code": negative("code"),
    "a list": negative("lists"),
    "one word": "the " * 40,
    "few words": "the old bridge over the river. " * 80,
    "two words of one meaning": "the bridges bridge the bridges bridge " * 30,
    "a drill": "one two three four five six seven eight nine ten " * 30,
    "frequent words": "it is in the house and it is in the water and it is in the light and the night",
}
PROMPTS = {"none": "", "one word": "Suddenly", "a sentence": "Tell me about the old bridge over the river."}


@cache
def lexicon() -> Lexicon:
    return load_lexicon(workspace=WORKSPACE)


@cache
def expected(text: str) -> tuple[float, float]:
    return reference.detect(text, KEY, lexicon())


@pytest.fixture(scope="module")
def bound():
    return DEW().bind(KEY, no_host(), WORKSPACE).reading_with(NO_READER)


# The default


def test_the_constants_are_those_of_the_default() -> None:
    default = DEW()
    assert (default.k, default.m, default.alpha, default.beta) == (3, 256, 0.65, 0.3)
    assert (default.strength, default.flatten) == (0.35, 2.5)
    mixture = default.bind(KEY, no_host(), WORKSPACE).race.mixture
    assert (mixture.tail, mixture.tail_beta, mixture.used_beta) == (0.3, 0.6, 0.9)
    assert (mixture.gamma, mixture.independent) == (0.5, 32)
    assert (mixture.steps, mixture.kept) == (4, 8)


def test_it_needs_no_torch() -> None:
    probe = "import sys, dewmark.dew.reference; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


# Testing


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_detection_gives_z_and_p_of_the_reference(bound, text, prompt) -> None:
    found = score_text(bound, text, prompt=prompt or None)
    z, p = expected(text)
    assert found.z == pytest.approx(z, abs=ROUNDING)
    assert found.p_value == pytest.approx(p, abs=ROUNDING)
    assert (found.p_value == 1.0) == (p == 1.0)


def test_the_texts_reach_every_case() -> None:
    """No pairs and one, either limit, pairs that recur, and texts of which too little is left to test."""
    lengths = {name: reference.pairs(text, lexicon()).w.sum() for name, text in TEXTS.items()}
    assert lengths["three words"] == lengths["numbers"] == 0
    assert lengths["four words"] == 1
    assert 200 < lengths["long"] <= 2 * lexicon().dim < lengths["more than 2d words"]
    assert reference.pairs(TEXTS["a drill"], lexicon()).w.max() > 1
    nothing = {name for name, text in TEXTS.items() if expected(text)[1] == 1.0}
    assert nothing == {"three words", "numbers"}


def test_many_keys_give_z_and_p_of_the_reference() -> None:
    texts = list(TEXTS.values())
    workspace = dataclasses.replace(WORKSPACE, expectations=NO_READER)
    found = score_under(DEW(), KEYS, texts, no_host(), workspace)
    for text, row in zip(texts, found, strict=True):
        for key, one in zip(KEYS, row, strict=True):
            z, p = reference.detect(text, key, lexicon())
            assert one.z == pytest.approx(z, abs=ROUNDING)
            assert one.p_value == pytest.approx(p, abs=ROUNDING)


@pytest.mark.parametrize("name", ["short", "a paragraph", "more than 2d words", "German"])
def test_every_member_of_a_ring_has_z_of_the_reference_with_its_own_matrix(name) -> None:
    """16 members have matrices of their own, 16 share them under signs."""
    ring = DEW().bind(Key(bytes(range(32)), members=32), no_host(), WORKSPACE).reading_with(NO_READER)
    reading = ring.reader.read(ring.tokenize([TEXTS[name]]), ring.tokenize([""]))
    (text,) = text_matrices(reading, limit=ring.scheme.flatten)
    epoch = ring.matrices.current
    meaning, form = epoch.scores(text.F), epoch.form_scores(text.form)
    pairs, z = reference.pairs(TEXTS[name], lexicon()), np.zeros((2, 32))
    for place in range(32):
        member = ring.matrices.use(place).member
        key = ring.matrices.key(KeyUse(member=member))
        z[:, member] = reference.z_score(pairs, key.W.astype(np.float64)), pairs.form.z(key.form)
        np.testing.assert_allclose(
            [meaning.flat[place], form.flat[place]], z[:, member], atol=ROUNDING, rtol=0
        )
    own = Key(bytes(range(32)), members=32).independent_member(5)
    expected_z = reference.z_score(pairs, reference.key_matrix(own, lexicon()))
    assert z[0, 5] == pytest.approx(expected_z, abs=ROUNDING)
    assert z[1, 5] == pytest.approx(pairs.form.z(FormKey.of(own)), abs=1e-9)
    assert score_text(ring, TEXTS[name]).z == pytest.approx(larger_of(*z)[1].max(), abs=ROUNDING)


def test_an_exact_decomposition_changes_z_by_a_few_tenths(monkeypatch) -> None:
    """What the reference says about its three rounds; texts with few directions are decomposed exactly."""

    def exact(M, q):
        left, s, right = np.linalg.svd(M)
        return left[:, :q], s[:q], right[:q].T

    W = reference.key_matrix(KEY, lexicon())
    z = {name: reference.z_score(reference.pairs(text, lexicon()), W) for name, text in TEXTS.items()}
    monkeypatch.setattr(reference, "leading_directions", exact)
    for name, text in TEXTS.items():
        differs = abs(reference.z_score(reference.pairs(text, lexicon()), W) - z[name])
        assert differs < 0.5
        if name in ("four words", "short", "a list", "a drill"):
            assert differs < 1e-4


# Marking


SIZE = 400  # tokens
CPU = torch.device("cpu")
PROMPT = "the old house on the hill"
WRITTEN = (
    "the",
    "the water in",
    "the water in the night",
    "one of the day and the sea of the day and the sea",
    "the hill of the bridge",
)
DECODINGS = [Decoding(), Decoding(temperature=0.7, top_p=0.9), Decoding(top_k=20), Decoding(min_p=0.02)]
STEPS = 12


@pytest.fixture(scope="module", params=["words", "bytes"])
def host(request) -> FakeHost:
    return FakeHost(SIZE, kind=request.param)


@pytest.fixture(scope="module")
def marking(host, tmp_path_factory):
    marking = DEW().bind(KEY, host.info, Workspace(cache=tmp_path_factory.mktemp("cache")))
    marking.session(torch.zeros(1, 0, dtype=torch.long))  # its tables are kept for all tests
    return marking


def begin(marking, written: str, *, seed: int = 0):
    """A session that began at the prompt, and the ids of the prompt and the words after it."""
    encode = marking.host.tokenizer.encode
    prompt = encode([PROMPT])[0].ids
    ids = torch.tensor([[*prompt, *encode([written])[0].ids]])
    return marking.session(ids[:, : len(prompt)], seeds=[seed]), ids


@cache
def pieces(host: FakeHost) -> tuple[str, ...]:
    return tuple(host.info.tokenizer.decode([[i] for i in range(host.info.vocab_size)]))


def candidate_vectors(host: FakeHost, written: str) -> reference.Candidates:
    """Every token of a host's vocabulary after a text whose last word is open."""
    words = reference.forms(written)
    begins, extends = [], []
    for piece in pieces(host):
        part = piece.strip() if piece.isascii() and piece.strip().isalnum() else ""
        begins.append(form_of(part) if part != piece else "")
        extends.append(form_of(words[-1] + part) if part and part == piece else "")
    begun = reference.candidates(begins, lexicon(), written=words)
    longer = reference.candidates(extends, lexicon(), written=words[:-1])
    which = np.array([bool(word) for word in extends])
    t, c = (np.where(which[:, None], longer[i], begun[i]) for i in (0, 1))
    return reference.Candidates(t, c, np.where(which, longer.q, begun.q))


def random_logits(seed: int) -> torch.Tensor:
    return torch.randn(1, SIZE, generator=torch.Generator().manual_seed(seed)) * 2.0


def fresh_normals(seed: int, step: int) -> np.ndarray:
    """r of each token of the vocabulary, from the random numbers of a row's seed."""
    return ndtri(RandomStreams([seed], device=CPU).uniforms(step, SIZE)[0].numpy())


@pytest.mark.parametrize("written", WRITTEN)
def test_marking_gives_every_token_u_of_the_reference(host, marking, written) -> None:
    """Tokens begin words, extend the open one or make none; some words are used up, one context recurs."""
    session, ids = begin(marking, written)
    key = key_tensors(marking.own, CPU)
    aligned = session.read(ids).align(torch.arange(SIZE).unsqueeze(0), key.W)
    found = aligned.u[0].numpy()
    t, c, q = candidate_vectors(host, written)
    np.testing.assert_array_equal(aligned.pairs[0].numpy().view(np.uint64), q)
    h = form_noise(aligned.pairs, key.form)[0].numpy()
    np.testing.assert_allclose(h, FormKey.of(KEY).noise(q), atol=1e-12, rtol=0)
    u = np.einsum("id,de,ie->i", t, reference.key_matrix(KEY, lexicon()), c)
    np.testing.assert_array_equal(found != 0.0, u != 0.0)
    assert u.any() == (written not in (WRITTEN[0], WRITTEN[3]))
    np.testing.assert_allclose(found, u, atol=HALF_PRECISION, rtol=0)


@pytest.mark.parametrize(
    ("written", "decoding"),
    [(written, DECODINGS[(i + j) % 4]) for i, written in enumerate(WRITTEN) for j in range(2)],
)
def test_a_session_draws_the_tokens_of_the_reference(host, marking, written, decoding) -> None:
    """A whole text, token by token, from the whole vocabulary: each noise is drawn given the last ones.

    Tokens that make no plain word end it: the reference follows words, not bytes.
    """
    W, form, seed = reference.key_matrix(KEY, lexicon()), FormKey.of(KEY), len(written)
    session, ids = begin(marking, written, seed=seed)
    start, past, conditioned = ids.shape[1], [], 0
    skipped = start - len(marking.host.tokenizer.encode([PROMPT])[0].ids)
    plain = torch.tensor([piece.isascii() and piece.strip().isalnum() for piece in pieces(host)])
    for step in range(STEPS):
        scores = random_logits(100 * seed + step).masked_fill(~plain, -20.0)
        race = CandidateRace(scores, [decoding], marking.scheme.m)
        order, logits = race.candidates[0].numpy(), race.values[0].double().numpy()
        words = reference.Candidates(*(each[order] for each in candidate_vectors(host, written)))
        words = words.among(logits)
        r = fresh_normals(seed, skipped + step)[order]
        y = reference.keyed_noise(words, W, form, r)
        expected = reference.perturbed_logits(logits, words, W, y, past)

        texts, mixture, own = session.read(ids), marking.race.mixture, key_tensors(marking.own, CPU)
        aligned = texts.align(race.candidates, own.W, able=torch.isfinite(race.values))
        shares = roots(aligned, mixture)
        random = RandomStreams([seed], device=CPU).states(skipped + step)
        mine = keyed_noise(aligned, race.uniforms(random), own.form, shares)
        x = innovations(aligned, mine, texts.state, texts.tables.units, shares, mixture=mixture)
        gain = marking.scheme.strength * np.tanh(reference.GAMMA * aligned.u[0].numpy())
        found = logits + gain - np.log(-log_ndtr(x[0].numpy()))
        np.testing.assert_allclose(found, expected, atol=5 * HALF_PRECISION, rtol=0)

        chosen, _ = session.choose(ids, scores, decoding)
        conditioned += bool(past)
        best, past = reference.step(logits, words, W, form, r, past)
        assert best == expected.argmax()
        rest = warp(scores, decoding)[0].double().numpy() - np.log(
            -log_ndtr(fresh_normals(seed, skipped + step))
        )
        rest[order] = expected
        assert int(chosen) == rest.argmax()
        ids = torch.cat((ids, chosen.unsqueeze(1)), dim=1)
        written += pieces(host)[int(chosen)]
    assert conditioned > STEPS / 2


def test_a_bound_that_settles_slowly_is_as_far_as_the_reference_after_as_many_rounds() -> None:
    """Three equal directions in twenty: a round takes a few percent of what is left of the way."""
    rng = np.random.default_rng(3)
    left, right = (np.linalg.qr(rng.standard_normal((20, 20)))[0] for _ in range(2))
    M = (left * np.repeat([30.0, 0.5], (3, 17))) @ right.T
    nothing = np.arange(40)
    text = Pairs(nothing, nothing, np.ones(40), nothing)
    (cuts,) = cuts_of(M[None], [text], limit=reference.LIMIT)
    flat = M - (cuts.left.T * cuts.sizes) @ cuts.right
    np.testing.assert_allclose(flat, reference.flattened(M, 40.0), atol=1e-4)
    after = np.linalg.svd(flat, compute_uv=False)
    settled = reference.LIMIT * np.sqrt(np.sum(after**2) / 20)
    assert after[0] > 1.02 * settled
