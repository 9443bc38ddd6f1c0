from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dewmark.types import Detection, ForgeryTest, Generation, TokenScore, Verdict, length_in_words


@pytest.fixture
def detection() -> Detection:
    return Detection(
        verdict=Verdict.MARKED,
        p_value=1.25e-6,
        z=4.71,
        score=0.33,
        effective_length=161.4,
        tokens_scored=197,
        test="key",
        fpr=0.01,
        scheme="dew",
        key_fingerprint="a1b2c3d4",
        tokens=(
            TokenScore(text=" bridge", start=3, end=10, score=1.23456789, scored=True),
            TokenScore(text=" the", start=10, end=14, score=0.0, scored=False),
        ),
    )


def test_a_verdict_is_its_text():
    assert str(Verdict.NOT_MARKED) == "not_marked"
    assert f"{Verdict.TOO_SHORT}" == "too_short"
    assert Verdict.UNSUPPORTED_LANGUAGE.words == "unsupported language"
    assert Verdict("marked") is Verdict.MARKED
    assert json.dumps({"verdict": Verdict.MARKED}) == '{"verdict": "marked"}'


def test_the_string_shows_every_number(detection):
    assert str(detection) == (
        "marked (p = 1.25e-06, z = 4.71, effective length 161 of 197 tokens, key test, key a1b2c3d4)"
    )


def test_an_effective_length_above_the_number_of_tokens_is_no_share_of_them(detection):
    shown = str(replace(detection, effective_length=211.2, tokens_scored=202))
    assert "effective length 211 from 202 tokens" in shown
    assert length_in_words(202.4, 202) == "effective length 202 of 202 tokens"


def test_a_long_text_without_evidence_is_not_called_short(detection):
    """Repetition: more of it would not help, however few different words it has."""
    again = tuple(TokenScore("again", i, i + 5, 0.0, False) for i in range(900))
    short = replace(detection, verdict=Verdict.TOO_SHORT, effective_length=7.0, tokens_scored=18)
    assert short.words == "too short"
    repeated = replace(short, tokens=again)
    assert repeated.leaves_no_room
    assert str(repeated).startswith("no room for a mark (")


@pytest.mark.parametrize(("attributable", "shown"), [(True, ", attributable"), (False, ", not attributable")])
def test_a_text_says_whether_it_is_attributable(detection, attributable, shown):
    test = ForgeryTest(attributable, z_form=1.0, p_form=0.16)
    assert replace(detection, forgery=test).origin == shown


def test_the_repr_leaves_out_long_fields(detection):
    assert "bridge" not in repr(detection)
    generation = Generation(
        prompt="p", text="t", token_ids=(50123, 50124), seed=1, scheme="dew", config_hash="0"
    )
    assert "50123" not in repr(generation)


def test_plain_values_are_json(detection):
    row = detection.to_dict()
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["verdict"] == "marked"
    assert "tokens" not in row
    assert detection.to_dict(tokens=True)["tokens"] == [
        {"text": " bridge", "start": 3, "end": 10, "score": 1.2346, "scored": True},
        {"text": " the", "start": 10, "end": 14, "score": 0.0, "scored": False},
    ]


def test_small_p_values_are_not_rounded_away(detection):
    assert replace(detection, p_value=1e-200).to_dict()["p_value"] == 1e-200


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_become_none(detection, value):
    odd = replace(detection, p_value=value, z=value, score=value, effective_length=value)
    row = odd.to_dict()
    assert [row[name] for name in ("p_value", "z", "score", "effective_length")] == [None] * 4
    json.dumps(row, allow_nan=False)
    assert str(odd).startswith("marked (p = ")
