"""The engines' and authors' own values: vLLM's goldens, SGLang's detector, synthid-text, lm-watermarking.

`vectors/engines.json` has its sources, versions and licences beside the values. vLLM's are the 23 cases of
its `watermarking_goldens.json`, computed again by the classes of the release.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.schemes.toy_host import HOST, VOCAB

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import KeyFileError
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme
from dewmark.workspace import Tokenized, Workspace
from dewmark_lab.schemes.engines.gumbel import MurmurHash

VECTORS = json.loads((Path(__file__).parent / "vectors" / "engines.json").read_text())
LM_TABLE = 2971215073  # the seed of lm-watermarking's table


def engine(name: str, *numbers: int, **settings: object) -> BoundScheme:
    return SCHEMES[name](**settings).bind(Key.of_numbers(numbers), HOST, Workspace(cache=Path()))


def result(bound: BoundScheme, ids: list[int], prompt: list[int] = ()):
    """Scored tokens, their sum and the p-value."""
    texts = Tokenized("", tuple(ids), ()), Tokenized("", tuple(prompt), ())
    (evidence,) = bound.evidence(bound.read([texts[0]], [texts[1]]), test=bound.tests[0])
    found = bound.test(evidence, test=bound.tests[0], fpr=0.01)
    return len(evidence), evidence.total, found.p_value


@pytest.mark.parametrize("case", VECTORS["vllm"]["cases"], ids=lambda case: case["name"])
def test_vllm_goldens(case) -> None:
    settings = {"context_width": case["context_width"], "deduplicate_contexts": case["deduplicate_contexts"]}
    name = "vllm-gumbel"
    if case["alpha"] is not None:
        name, settings["alpha"] = "vllm-dual-key-gumbel", case["alpha"]
    tokens, _, p_value = result(engine(name, case["key"], **settings), case["ids"])
    assert tokens == case["tokens"]
    assert p_value == pytest.approx(case["p_value"], rel=1e-9, abs=1e-300)


def test_sglang_hashes() -> None:
    """The hash of a context enters each token's; a context of fewer ids than the window is a shorter one."""
    for case in VECTORS["sglang"]["hashes"]:
        context = np.array([[-1, *case["context"]]])
        words = MurmurHash([case["key"]], 0).words(context, np.array([[case["token"]]]))
        assert int(words[0, 0]) == case["token_hash"]


def test_sglang_detections() -> None:
    for case in VECTORS["sglang"]["cases"]:
        settings = {name: case[name] for name in ("context_window", "mixing_probability")}
        bound = engine("sglang-gumbel", *case["key"], **settings)
        tokens, total, p_value = result(bound, case["ids"], case["prompt"])
        assert tokens == case["tokens"]
        assert total + tokens == pytest.approx(case["score"], rel=1e-12)
        assert p_value == pytest.approx(case["p_value"], rel=1e-9)


@pytest.mark.parametrize("keys", [(42,), (42, 7)])
def test_sglang_session_writes_what_the_detector_finds(keys) -> None:
    """400 rows of one token each: u of the chosen token among 50 alike is the largest of 50."""
    bound, source = engine("sglang-gumbel", *keys), np.random.default_rng(1)
    ids = torch.from_numpy(source.integers(3, 300, (400, 5)))
    scores = torch.full((400, VOCAB), -torch.inf)
    scores[:, 10:60] = 0.0
    chosen, sound = bound.session(ids, seeds=range(400)).choose(ids, scores, Decoding())
    assert bool(sound.all())
    contexts = ids[:, -4:].numpy()
    every = bound.hash.words(contexts, np.broadcast_to(np.arange(10, 60), (400, 50)))
    assert (every.argmax(axis=1) + 10 == chosen.numpy()).mean() > 0.99  # ties after rounding to float32
    with pytest.raises(KeyFileError, match="at most 2 numbers, got 3"):
        engine("sglang-gumbel", 1, 2, 3)


def test_synthid_text_has_a_function_of_its_own() -> None:
    given = VECTORS["synthid_text"]
    ids = np.array(given["ids"])
    contexts = np.lib.stride_tricks.sliding_window_view(ids[:-1], 4)
    expected = np.array([[int(bit) for bit in row] for row in given["bits"]])
    found = {
        bits: engine("transformers-synthid", *given["keys"], bits=bits).bits(contexts, ids[4:, None])[:, 0]
        for bits in ("hash", "table")
    }
    np.testing.assert_array_equal(found["hash"], expected)
    margin = 4.5 * 0.5 / np.sqrt(expected.size)
    assert abs((found["table"] == expected).mean() - 0.5) < margin


@pytest.mark.parametrize("case", VECTORS["lm_watermarking"]["cases"], ids=lambda case: case["seeding"])
def test_lm_watermarking_green_tokens(case) -> None:
    """Each position as the authors judge it. Ours counts a pair of seed and token once, they an n-gram."""
    given = VECTORS["lm_watermarking"]
    assert given["vocabulary"] == VOCAB
    self_hashed = case["seeding"] == "selfhash"
    settings = {"seeding_scheme": "selfhash", "table_seed": LM_TABLE} if self_hashed else {}
    bound = engine("transformers-kgw", given["key"], context_width=case["context_width"], **settings)
    ids, width = np.array(given["ids"]), case["context_width"]
    before = np.concatenate((np.zeros(width, dtype=np.int64), ids))
    contexts = np.lib.stride_tricks.sliding_window_view(before[:-1], width)
    start = width - self_hashed
    green = bound.pair_scores(contexts[start:], ids[start:]) > 0.0
    assert "".join(str(int(each)) for each in green) == case["green"]
    assert (len(green), int(green.sum())) == (case["tokens"], case["green_tokens"])
    tokens, total, _ = result(bound, given["ids"])
    if not self_hashed:
        assert (tokens, round(total + tokens * bound.share)) == (case["tokens_once"], case["green_once"])
    assert tokens <= case["tokens_once"]


def test_transformers_kgw_waits_for_a_whole_window_and_drops_a_leading_bos() -> None:
    bound = engine("transformers-kgw", 15485863, context_width=3)
    scores = torch.zeros(1, VOCAB)
    for length, marked in ((1, False), (2, False), (3, True)):
        ids = torch.arange(10, 10 + length)[None]
        assert torch.equal(bound.session(ids)(ids, scores), scores) != marked
    ids = list(range(10, 60))
    assert result(bound, [1, *ids]) == result(bound, ids)  # 1 is special
