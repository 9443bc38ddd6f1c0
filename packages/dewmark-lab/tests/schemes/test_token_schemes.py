"""Schemes by (context, token) pairs: which pairs count, and what a detector stores."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tests.schemes.toy_host import HOST, KNOWN, VOCAB, bind, key, numbers

from dewmark.capabilities import evidence_of
from dewmark.detect import score_text, score_texts
from dewmark.errors import ArtifactError, ConfigError
from dewmark.registry import SCHEMES
from dewmark.scheme import State
from dewmark.types import Verdict
from dewmark.workspace import Workspace
from dewmark_lab.schemes.green.green_list import KGW
from dewmark_lab.schemes.token_schemes import TokenBound

TWO = {"hashing": "left", "prefix": 2}


def pairs(text: str, prompt: str = "", **settings: object) -> list[tuple[tuple[int, ...], int]]:
    """The counted pairs of a text in the order of their first occurrence."""
    bound = bind("kgw", **(settings or TWO))
    assert isinstance(bound, TokenBound)
    encode = HOST.tokenizer.encode
    found = bound.pairs(encode([text]), encode([prompt]))[0]
    order = dict.fromkeys(int(i) for i in found.positions if i >= 0)
    return [(tuple(found.contexts[i].tolist()), int(found.tokens[i])) for i in order]


def test_first_tokens_have_no_context_without_the_prompt() -> None:
    assert pairs("11 12 13 14") == [((11, 12), 13), ((12, 13), 14)]


def test_prompt_is_context_and_never_scored() -> None:
    expected = [((8, 9), 11), ((9, 11), 12), ((11, 12), 13)]
    assert pairs("11 12 13", "8 9") == expected
    assert pairs("11 12 13", "5 6 7 8 9") == expected


def test_short_prompt_leaves_earlier_context_absent() -> None:
    assert pairs("11 12", "9") == [((-1, 9), 11), ((9, 11), 12)]


def test_repeated_pairs_count_once() -> None:
    bound = bind("kgw", **TWO)
    text = " ".join(["11 12 13"] * 20)
    found = score_text(bound, text)
    evidence = evidence_of(bound, HOST.tokenizer.encode([text]), HOST.tokenizer.encode([""]))[0]
    assert len(evidence) == 3
    assert evidence.weights.tolist() == [1.0, 1.0, 1.0]
    assert [int(i) for i in evidence.positions[2:8]] == [*evidence.positions[2:5]] * 2
    assert found.effective_length == 3
    assert found.tokens_scored == 58
    assert found.verdict is Verdict.TOO_SHORT


def test_special_and_unknown_ids_are_neither_scored_nor_context() -> None:
    assert pairs("11 12 2 13 14") == [((12, -1), 13), ((-1, 13), 14)]
    beyond = str(VOCAB + 5)
    assert pairs(f"11 12 {beyond} 13 14") == [((12, -1), 13), ((-1, 13), 14)]
    padding = str(KNOWN + 5)
    assert pairs(f"11 12 {padding} 13 14") == [((12, KNOWN + 5), 13), ((KNOWN + 5, 13), 14)]


def test_unigram_scores_every_token_and_each_once() -> None:
    bound = bind("unigram")
    found = score_text(bound, "11 12 11 2 13 12")
    assert found.effective_length == 3
    assert found.tokens_scored == 5


def test_token_scores_have_offsets_and_are_standardized() -> None:
    text = numbers(60)
    found = score_text(bind("kgw", gamma=0.25, **TWO), text)
    assert [token.text for token in found.tokens] == text.split(" ")
    assert [token.scored for token in found.tokens] == [False] * 2 + [True] * 58
    # (1 − γ)/√(γ(1 − γ)) = √3 for a green token, −1/√3 for a red one
    assert {round(token.score, 6) for token in found.tokens if token.scored} == {1.732051, -0.57735}
    assert found.score == pytest.approx(found.z * np.sqrt(0.25 * 0.75 / found.effective_length))


def test_large_batches_are_processed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    bound, texts = bind("kgw"), [numbers(20 + i, seed=i) for i in range(9)]
    whole = score_texts(bound, texts)
    monkeypatch.setattr("dewmark.detect._CHARACTERS_AT_ONCE", 150)
    assert score_texts(bound, texts) == whole
    assert score_texts(bound, []) == []


def test_stored_detector_holds_only_the_secret() -> None:
    bound, text = bind("kgw"), numbers(100)
    state = bound.state()
    assert list(state.arrays) == ["secret"]
    assert state.arrays["secret"].dtype == np.uint8
    restored = KGW().restore(state, HOST, key(0).fingerprint, Workspace(cache=Path()))
    assert score_text(restored, text) == score_text(bound, text)


@pytest.mark.parametrize("arrays", [{}, {"secret": np.zeros(31, dtype=np.uint8)}])
def test_damaged_detector_is_rejected(arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(ArtifactError, match="export it again"):
        KGW().restore(State(meta={}, arrays=arrays), HOST, "", Workspace(cache=Path()))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("kgw", {"prefix": 1, "hashing": "self"}, "prefix must be at least 2"),
        ("kgw", {"hashing": "right"}, "hashing must be one of"),
        ("morphmark", {"form": "cubic"}, "form must be one of"),
        ("mpac", {"message": 256, "bits": 8}, "message must lie in"),
        ("mpac", {"radix": 3}, "radix must be 2, 4 or 8"),
    ],
)
def test_bad_parameters_are_rejected(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SCHEMES[name](**settings)


def test_schemes_derive_different_secrets_from_one_key() -> None:
    secrets = {bind(name).state().arrays["secret"].tobytes() for name in ("kgw", "unigram", "sweet", "ewd")}
    assert len(secrets) == 4


def test_ids_beyond_the_logits_are_not_markable() -> None:
    host = dataclasses.replace(HOST, vocab_size=KNOWN - 50)
    assert int(host.markable.sum()) == KNOWN - 50 - 3
