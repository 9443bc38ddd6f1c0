"""Located passages: characters of the text, the same from a key and from a saved detector."""

from __future__ import annotations

import json
import random

import pytest
from tests.fakes import PAPER

import dewmark
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, InputError
from dewmark.hosts.fake import FakeHost

KEY = dewmark.Key(bytes(range(3, 35)))
PROMPT = " the old bridge over the river"


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def scheme(host, bag_encoder):
    return dewmark.load_scheme("dew", key=KEY, host=host.info, **PAPER, lambda_=6.0)


def words(host: FakeHost, count: int, *, seed: int) -> str:
    """Random words of the tiny vocabulary: unmarked text."""
    draw = random.Random(seed)
    ids = [draw.randrange(5, 500) for _ in range(count)]
    return host.info.tokenizer.decode([ids])[0].strip()


def mixed(host: FakeHost, scheme: dewmark.BoundScheme) -> tuple[str, int, int]:
    """120 unmarked words, 120 marked ones, 120 unmarked; and the place of the marked ones."""
    (marked,) = host.generate(
        [PROMPT],
        scheme=scheme,
        seeds=[1],
        decoding=Decoding(max_new_tokens=120, min_new_tokens=120, no_repeat_ngram=3),
    )
    insert = marked.text.strip()
    before, after = words(host, 120, seed=1) + " ", " " + words(host, 120, seed=2)
    return before + insert + after, len(before), len(before) + len(insert)


def overlap(located: dewmark.Located, start: int, end: int) -> float:
    both = sum(max(0, min(p.end, end) - max(p.start, start)) for p in located.passages)
    return both / (sum(p.end - p.start for p in located.passages) + end - start - both)


def test_the_marked_passage_is_found(host, scheme):
    text, start, end = mixed(host, scheme)
    located = dewmark.locate(text, scheme)
    (passage,) = located.passages
    assert overlap(located, start, end) > 0.7
    assert passage.text == text[passage.start : passage.end] == passage.text.strip()
    assert passage.p_alone < passage.p_value < 1e-3
    assert passage.tokens == pytest.approx(120, abs=30)
    assert 0.2 < located.share < 0.45
    assert located.detection.p_value == scheme.detect(text).p_value
    assert located.fpr == 0.05


def test_another_key_finds_nothing(host, scheme, bag_encoder):
    text, _, _ = mixed(host, scheme)
    other = dewmark.load_scheme("dew", key=dewmark.Key(bytes(32)), host=host.info, **PAPER, lambda_=6.0)
    located = dewmark.locate(text, other, fpr=1e-3)
    assert located.passages == ()
    assert located.share == 0.0


def test_a_saved_detector_finds_the_same_passages(host, scheme, tmp_path):
    text, _, _ = mixed(host, scheme)
    dewmark.Detector(scheme).save(tmp_path / "detector")
    ours, theirs = (
        dewmark.locate(text, each).passages
        for each in (scheme, dewmark.Detector.load(tmp_path / "detector").scheme)
    )
    assert [(p.start, p.end) for p in ours] == [(p.start, p.end) for p in theirs]
    assert ours[0].z == pytest.approx(theirs[0].z, rel=1e-5)


@pytest.mark.parametrize("name", ["kgw", "exp"])
def test_schemes_with_their_own_law(host, name):
    """Their own exact test decides a passage's p-value."""
    scheme = dewmark.load_scheme(name, key=KEY, host=host.info)
    text, start, end = mixed(host, scheme)
    located = dewmark.locate(text, scheme)
    assert overlap(located, start, end) > 0.6
    assert dewmark.locate(words(host, 300, seed=3), scheme, fpr=1e-3).passages == ()


def test_a_prompt_is_context_only(host, scheme):
    text, _, _ = mixed(host, scheme)
    located = dewmark.locate(text, scheme, prompt=PROMPT)
    assert located.detection.tokens[0].scored
    assert located.passages[0].text in text


def test_results_are_plain_values(host, scheme):
    text, _, _ = mixed(host, scheme)
    located = dewmark.locate(text, scheme)
    row = json.loads(json.dumps(located.to_dict()))
    assert row["passages"][0]["text"] == located.passages[0].text
    assert row["detection"]["verdict"] == located.detection.verdict
    assert "tokens" not in row["detection"]
    assert "characters" in str(located)
    assert "none" in str(dewmark.locate(words(host, 60, seed=4), scheme, fpr=1e-3))


def test_bad_calls(scheme):
    with pytest.raises(InputError, match="empty"):
        dewmark.locate("  ", scheme)
    with pytest.raises(ConfigError, match="fpr"):
        dewmark.locate("text", scheme, fpr=1.5)
