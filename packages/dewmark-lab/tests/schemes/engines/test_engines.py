"""The schemes that read engines' own marks, held to what those engines compute.

`vectors/vllm.json` was computed by vLLM's own primitives on the CPU (`benchmarks/engine_vectors.py`);
transformers runs here. `vectors/vllm_sbw.json` comes from a retyped copy of the functions proposed for vLLM
in pull request 56859.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from tests.schemes.toy_host import HOST, VOCAB, key, numbers, raw_logits
from transformers import WatermarkDetector, WatermarkingConfig
from transformers.generation.logits_process import (
    SynthIDTextWatermarkLogitsProcessor,
    WatermarkLogitsProcessor,
)

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import score_text
from dewmark.errors import ConfigError, KeyFileError
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme
from dewmark.workspace import Tokenized, Workspace
from dewmark_lab.schemes.engines.engine_scheme import first_rows, id_windows, philox
from dewmark_lab.schemes.engines.gumbel import PhiloxHash, fused_tail

FOLDER = Path(__file__).parent / "vectors"
VECTORS = json.loads((FOLDER / "vllm.json").read_text())
NOTHING = Tokenized("", (), ())
KGW_KEY = 15485863
SYNTHID_KEYS = (654, 400, 836, 123, 340, 443, 597, 160, 57)


def engine(name: str, *numbers: int, **settings: object) -> BoundScheme:
    """A scheme bound to an engine's key."""
    return SCHEMES[name](**settings).bind(Key.of_numbers(numbers), HOST, Workspace(cache=Path()))


def tokenized(ids: list[int]) -> Tokenized:
    return Tokenized("", tuple(ids), ())


def test_philox_has_the_published_values() -> None:
    """Random123's known answers: zeros, ones, digits of π."""
    expected = {
        (0,) * 6: (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        (0xFFFFFFFF,) * 6: (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0): (
            0xD16CFE09,
            0x94FDCCEB,
            0x5001E420,
            0x24126EA1,
        ),
    }
    for words, output in expected.items():
        a, b, c, d, *halves = (np.array([word], dtype=np.uint64) for word in words)
        assert tuple(int(word[0]) for word in philox((a, b, c, d), tuple(halves))) == output


def test_uniforms_are_those_of_vllm_bit_for_bit() -> None:
    contexts, tokens = np.array(VECTORS["contexts"]), np.array([VECTORS["candidates"]])
    for case in VECTORS["uniforms"]:
        wide = np.concatenate((contexts, contexts), axis=1)[:, : case["width"]]
        found = PhiloxHash(case["key"]).uniforms(wide, tokens)
        np.testing.assert_array_equal(found, np.array(case["values"], dtype=np.float32))


@pytest.mark.parametrize("size", [5, 8, 301])
def test_vllm_hashes_a_whole_vocabulary_as_its_single_ids(size) -> None:
    contexts, ids = np.arange(12).reshape(3, 4), np.arange(size)
    whole = PhiloxHash(2**40 + 7).uniforms(contexts, ids[None])
    for order in (ids[::-1], ids[1:]):
        np.testing.assert_array_equal(whole[:, order], PhiloxHash(2**40 + 7).uniforms(contexts, order[None]))


@pytest.mark.parametrize("name", ["vllm-gumbel", "vllm-dual-key-gumbel"])
def test_p_values_are_those_of_vllm(name: str) -> None:
    """On marked, unmarked, repetitive and very short ids."""
    for case in VECTORS[name]:
        bound = engine(name, case["key"], **case["settings"])
        readings = bound.read([tokenized(case["ids"])], [NOTHING])
        (evidence,) = bound.evidence(readings, test=bound.tests[0])
        found = bound.test(evidence, test=bound.tests[0], fpr=0.01)
        assert len(evidence) == case["tokens"]
        assert found.p_value == pytest.approx(case["p_value"], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.5, 0.0, 1.0])
def test_exact_distribution_of_the_two_keys_agrees_with_simulation(alpha: float) -> None:
    """200,000 draws: a share of 0.01 has a standard error of 2.2e-4. vLLM's Gamma distribution gives less."""
    n = 20
    x, y = np.random.default_rng(0).gamma(n, size=(2, 200_000))
    sums = (1.0 - alpha) * x + alpha * y
    for level in (0.5, 0.01):
        total = float(np.quantile(sums, 1.0 - level))
        margin = 4.5 * math.sqrt(level * (1.0 - level) / 200_000)
        assert abs(fused_tail(total, n, alpha) - level) < margin
    assert 0.0 < fused_tail(10.0 * n, n, alpha) < 1e-20
    if alpha in (0.0, 1.0):
        assert fused_tail(30.0, n, alpha) == pytest.approx(stats.gamma.sf(30.0, n))


def test_vllm_session_chooses_as_vllm_does() -> None:
    """From random logits, like `marked_ids` in the script of the vectors."""
    bound = engine("vllm-gumbel", 42)
    bound.host = HOST.__class__("wide", "wide", 1000, HOST.tokenizer, HOST.embeddings)
    expected = next(case["ids"] for case in VECTORS["vllm-gumbel"] if case["key"] == 42)
    source = torch.Generator().manual_seed(7)
    prompt = torch.tensor([[5, 6, 7]])
    session, ids = bound.session(prompt, seeds=[0]), prompt
    for _ in expected:
        chosen, sound = session.choose(ids, 2.0 * torch.randn(1, 1000, generator=source), Decoding())
        assert bool(sound.all())
        ids = torch.cat((ids, chosen[:, None]), dim=1)
    assert ids[0, 3:].tolist() == expected


@pytest.mark.parametrize(("seeding", "width"), [("lefthash", 1), ("selfhash", 4), ("selfhash", 1)])
def test_green_lists_and_counts_are_those_of_transformers(seeding: str, width: int) -> None:
    settings = {"seeding_scheme": seeding, "context_width": width}
    theirs = WatermarkLogitsProcessor(vocab_size=VOCAB, device="cpu", hashing_key=KGW_KEY, **settings)
    bound = engine("transformers-kgw", KGW_KEY, **settings)
    ids, logits = torch.tensor([[9, 50, 60, 70], [12, 51, 60, 71]]), raw_logits(2, VOCAB)
    assert torch.equal(bound.session(ids)(ids, logits), theirs(ids, logits))
    text = numbers(200, top=40)  # repetitive
    config = type("Config", (), {"bos_token_id": 1, "vocab_size": VOCAB, "is_encoder_decoder": False})
    detector = WatermarkDetector(
        config, "cpu", WatermarkingConfig(hashing_key=KGW_KEY, **settings), ignore_repeated_ngrams=True
    )
    row = torch.tensor([[int(word) for word in text.split()]])
    expected = detector(row, return_dict=True)
    found = score_text(bound, text)
    if seeding == "lefthash":  # with selfhash, n-grams can share a pair of seed and token
        assert found.effective_length == expected.num_tokens_scored[0]
        assert found.z == pytest.approx(expected.z_score[0])
    scores = bound.pair_scores(row[0, :-1].unfold(0, width, 1).numpy(), row[0, width:].numpy())
    green = [
        detector._get_ngram_score(row[0, i - width + (seeding == "selfhash") : i + 1][: width or None], t)
        if seeding == "selfhash"
        else detector._get_ngram_score(row[0, i - width : i], t)
        for i, t in enumerate(row[0].tolist())
        if i >= width
    ]
    assert (scores > 0.0).tolist() == green


def synthid(**settings: int) -> SynthIDTextWatermarkLogitsProcessor:
    """Transformers' processor with its defaults."""
    given = {"ngram_len": 5, "sampling_table_size": 65536, "sampling_table_seed": 0, **settings}
    return SynthIDTextWatermarkLogitsProcessor(
        keys=list(SYNTHID_KEYS), context_history_size=1024, device=torch.device("cpu"), **given
    )


def test_bits_and_mean_are_those_of_transformers() -> None:
    bound, theirs = engine("transformers-synthid", *SYNTHID_KEYS), synthid()
    text = numbers(150, top=8)
    row = torch.tensor([[int(word) for word in text.split()]])
    bits, fresh = theirs.compute_g_values(row)[0], theirs.compute_context_repetition_mask(row)[0]
    contexts = row[0, :-1].unfold(0, 4, 1).numpy()
    np.testing.assert_array_equal(bound.bits(contexts, row[0, 4:, None].numpy())[:, 0], bits.numpy())
    found = score_text(bound, text)
    assert found.effective_length == int(fresh.sum())
    assert found.score + bound.share == pytest.approx(float(bits[fresh].float().mean()))
    assert abs(bound.share - 0.5) < 4.5 * 0.5 / 256


def test_synthid_session_reweights_as_transformers_does() -> None:
    bound, theirs = engine("transformers-synthid", *SYNTHID_KEYS), synthid()
    ids = torch.tensor([[9, 50, 60, 70], [12, 51, 60, 71]])
    session = bound.session(ids)
    for step in range(12):  # the same tokens again: contexts recur
        logits = raw_logits(2, VOCAB, seed=step)
        expected = theirs(ids, logits).softmax(dim=1)
        torch.testing.assert_close(session(ids, logits).softmax(dim=1), expected, atol=1e-6, rtol=1e-4)
        ids = torch.cat((ids, torch.tensor([[20 + step % 2], [30 + step % 2]])), dim=1)


def test_green_tokens_are_those_of_sbw() -> None:
    """Counted once for each context, as the proposal does, on marked, unmarked, repetitive and short ids."""
    for case in json.loads((FOLDER / "vllm_sbw.json").read_text())["cases"]:
        bound = engine("vllm-sbw", case["key"], **case["settings"])
        contexts = id_windows((), case["ids"], width=bound.width, filler=bound.filler)
        once = first_rows(contexts)
        assert len(once) == case["tokens"]
        green = bound.green(contexts[once], np.array(case["ids"])[once, None])
        assert int(green.sum()) == case["score"]


@pytest.mark.parametrize("seeding", ["selfhash", "lefthash"])
def test_sbw_writes_what_it_reads_and_counts_a_seed_and_token_once(seeding: str) -> None:
    """With selfhash the seed often depends on the token alone, so repetitive text gives little evidence."""
    bound, ids = engine("vllm-sbw", 42, seeding=seeding), torch.tensor([[5, 6, 7]])
    session = bound.session(ids)
    for step in range(60):
        marked = session(ids, raw_logits(1, VOCAB, seed=step))
        ids = torch.cat((ids, marked[:, :300].argmax(dim=1, keepdim=True)), dim=1)
    written = " ".join(map(str, ids[0, 3:].tolist()))
    assert score_text(bound, written).p_value < 1e-6
    if seeding == "selfhash":
        text = numbers(400, top=12)
        contexts = np.array([int(word) for word in text.split()])
        distinct = len(first_rows(id_windows((), contexts.tolist(), width=4, filler=-1)))
        assert score_text(bound, text).effective_length < 0.8 * distinct
        found = [score_text(engine("vllm-sbw", i), text).p_value < 0.01 for i in range(200)]
        assert np.mean(found) <= 0.01 + 4.5 * math.sqrt(0.01 * 0.99 / 200)


def test_an_engine_key_fits_engine_schemes_only() -> None:
    number = Key.of_numbers([42])
    with pytest.raises(KeyFileError, match="this key is a number") as error:
        SCHEMES["kgw"]().bind(number, HOST, Workspace(cache=Path()))
    assert "42" not in str(error.value)
    assert "42" not in repr(number)
    with pytest.raises(KeyFileError, match="is one number, got 2"):
        engine("vllm-gumbel", 1, 2)
    with pytest.raises(KeyFileError, match="must fit in 64 bits"):
        engine("vllm-gumbel", 2**64)
    with pytest.raises(KeyFileError, match="at most 32 numbers, got 33"):
        engine("transformers-synthid", *range(33))
    assert score_text(engine("vllm-gumbel", 42), numbers(50)) == score_text(
        engine("vllm-gumbel", 42), numbers(50)
    )
    derived = SCHEMES["vllm-gumbel"]().numbers_of(key(0))
    assert derived != SCHEMES["vllm-gumbel"]().numbers_of(key(1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize("name", ["transformers-kgw", "transformers-synthid"])
def test_texts_written_on_a_gpu_need_one(name: str) -> None:
    with pytest.raises(ConfigError, match="torch finds no CUDA here"):
        engine(name, 42, device="cuda")


def test_key_numbers_are_read_from_the_command_line_or_a_file(tmp_path: Path) -> None:
    assert Key.load("42").numbers == (42,)
    assert Key.load("654,400,836").numbers == (654, 400, 836)
    Key.of_numbers([42]).save(tmp_path / "engine.key")
    assert Key.load(tmp_path / "engine.key") == Key.load("42")
    with pytest.raises(KeyFileError, match="whole numbers"):
        Key.of_numbers([-1])
