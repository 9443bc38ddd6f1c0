"""The verdict on long texts and the places of the mark: every look is paid for, whatever the door."""

from __future__ import annotations

import dataclasses
import math
import random
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from tests.fakes import COMPOSED

import dewmark
from dewmark.decoding import Decoding
from dewmark.detect import Examined, detect_texts, score_text
from dewmark.errors import ConfigError, InputError
from dewmark.scheme import Needs
from dewmark.stats import scan
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import key_test
from dewmark.types import Detection, Extent, Looks, Verdict
from dewmark.verdict import MIN_SEARCHED
from dewmark.workspace import Tokenized
from dewmark_lab.testing.fake_host import FakeHost

KEY = dewmark.Key(bytes(range(3, 35)))
PROMPT = " the old bridge over the river"
_MARKED: dict[tuple[str, str], str] = {}  # written once per scheme and key


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def scheme(host, bag_encoder):
    settings = {**COMPOSED, "lambda_": 6.0}
    return dewmark.load_scheme(KEY, host=host.info, scheme="dew-paper", settings=settings)


def words(host: FakeHost, count: int, *, seed: int) -> str:
    """Random words of the tiny vocabulary: unmarked text."""
    draw = random.Random(seed)
    ids = [draw.randrange(5, 500) for _ in range(count)]
    return host.info.tokenizer.decode([ids])[0].strip()


def mixed(host: FakeHost, scheme: dewmark.BoundScheme) -> tuple[str, int, int]:
    """120 unmarked words, 120 marked ones, 120 unmarked; and the place of the marked ones."""
    name = (scheme.scheme.name, scheme.fingerprint)
    if name not in _MARKED:
        long = Decoding(max_new_tokens=120, min_new_tokens=120, no_repeat_ngram=3)
        _MARKED[name] = host.generate([PROMPT], scheme=scheme, seeds=[1], decoding=long)[0].text.strip()
    insert = _MARKED[name]
    before, after = words(host, 120, seed=1) + " ", " " + words(host, 120, seed=2)
    return before + insert + after, len(before), len(before) + len(insert)


def locate(text: str, keys, **options) -> Examined:
    (found,) = detect_texts([text], keys, **options)
    return found


def overlap(located: Examined, start: int, end: int) -> float:
    both = sum(max(0, min(p.end, end) - max(p.start, start)) for p in located.passages)
    return both / (sum(p.end - p.start for p in located.passages) + end - start - both)


def test_the_marked_passage_is_found(host, scheme):
    text, start, end = mixed(host, scheme)
    located = locate(text, scheme)
    (passage,) = located.passages
    assert overlap(located, start, end) > 0.7
    assert passage.text == text[passage.start : passage.end] == passage.text.strip()
    assert passage.p_alone < passage.p_value < 1e-3
    assert passage.tokens == pytest.approx(120, abs=30)
    assert 0.2 < located.share < 0.45
    assert located.detection.p_value == score_text(scheme, text).p_value
    assert located.fpr == 0.01
    assert located.coverage.extent == "part"
    assert dewmark.Detector(scheme).detect(text).coverage.passages[0].start == passage.start
    assert "marked, part of it, characters" in str(dewmark.Detector(scheme).detect(text))


def test_another_key_finds_nothing(host, scheme, bag_encoder):
    text, _, _ = mixed(host, scheme)
    other = dewmark.load_scheme(
        dewmark.Key(bytes(32)), host=host.info, scheme="dew-paper", settings={**COMPOSED, "lambda_": 6.0}
    )
    located = locate(text, other, fpr=1e-3)
    assert located.passages == ()
    assert located.share == 0.0


def test_a_saved_detector_finds_the_same_passages(host, scheme, tmp_path):
    text, _, _ = mixed(host, scheme)
    dewmark.Detector(scheme).save(tmp_path / "detector")
    ours, theirs = (
        locate(text, each).passages for each in (scheme, dewmark.Detector.load(tmp_path / "detector").scheme)
    )
    assert [(p.start, p.end) for p in ours] == [(p.start, p.end) for p in theirs]
    assert ours[0].z == pytest.approx(theirs[0].z, rel=1e-5)


@pytest.mark.parametrize("name", ["kgw", "exp"])
def test_schemes_with_their_own_law(host, name):
    """Their own exact test decides a passage's p-value."""
    scheme = dewmark.load_scheme(KEY, host=host.info, scheme=name)
    text, start, end = mixed(host, scheme)
    located = locate(text, scheme)
    assert overlap(located, start, end) > 0.6
    assert locate(words(host, 300, seed=3), scheme, fpr=1e-3).passages == ()


def test_a_prompt_is_context_only(host, scheme):
    text, _, _ = mixed(host, scheme)
    located = locate(text, scheme, prompts=[PROMPT])
    assert located.detection.tokens[0].scored
    assert located.passages[0].text in text


def test_bad_calls(scheme):
    with pytest.raises(InputError, match="empty"):
        locate("  ", scheme)
    with pytest.raises(ConfigError, match="fpr"):
        locate("text", scheme, fpr=1.5)


PLACES = tuple((i, i + 1) for i in range(400))


class NoiseBound(dewmark.BoundScheme):
    """Scores of unmarked text: independent standard normal numbers, drawn anew for each key and text."""

    tests = ("key",)

    def __init__(self, number: int) -> None:
        scheme = SimpleNamespace(name="noise", languages=None, language_free=True, needs=Needs())
        super().__init__(scheme, SimpleNamespace(identity="none"), f"{number:016x}")
        self.number = number

    session = state = None

    def tokenize(self, texts):
        return [Tokenized(text, (), PLACES[: len(text)]) for text in texts]

    def evidence(self, readings, *, test=None):
        return [self._evidence(each.text.text) for each in readings]

    def _evidence(self, text: str) -> Evidence:
        rng = np.random.default_rng([self.number, zlib.crc32(text.encode())])
        return Evidence.independent(rng.normal(size=len(text)), np.ones(len(text)), np.arange(len(text)))

    def test(self, evidence, *, test, fpr=0.01):
        return key_test(evidence, variance=float(len(evidence)))


NoiseBound.__abstractmethods__ = frozenset()


@pytest.fixture
def one_search(monkeypatch):
    """Texts of one length share their windows and draws, which do not depend on the scores."""
    kept = {}
    search = scan.Search
    monkeypatch.setattr(scan, "Search", lambda e: kept.setdefault(len(e), kept.get(len(e)) or search(e)))


def test_unmarked_documents_under_50_keys(one_search):
    """Any accusation, of the whole text or of any passage, under any key: at most the level."""
    keys, texts, level = [NoiseBound(number) for number in range(50)], 60, 0.1
    found = [locate(f"{i:-<{MIN_SEARCHED}}", keys, fpr=level) for i in range(texts)]
    accused = sum(each.is_marked or bool(each.passages) for each in found)
    margin = 3.0 * math.sqrt(level * (1.0 - level) / texts)
    assert accused / texts <= level + margin
    assert accused / texts > 0.3 * level  # and not by giving up
    for each in found:
        assert each.is_marked or not each.passages
        assert all(passage.p_value <= level for passage in each.passages)
        assert each.p_value == min(each.p_values)
    # one key after the other, without paying for the others, accuses nearly everybody
    alone = [any(locate(f"{i:-<{MIN_SEARCHED}}", key, fpr=level).is_marked for key in keys) for i in range(6)]
    assert sum(alone) >= 5


def test_a_passage_is_found_where_the_whole_text_shows_nothing(host, scheme):
    text, start, end = mixed(host, scheme)
    before = words(host, 600, seed=8) + " "
    located = locate(before + text + " " + words(host, 600, seed=9), scheme)
    assert located.detection.p_value > located.p_value
    assert located.is_marked
    assert overlap(located, len(before) + start, len(before) + end) > 0.6
    assert located.coverage.extent == "part"


def test_keys_of_two_tenants_in_one_text(host, scheme):
    other = dewmark.load_scheme(
        dewmark.Key(bytes(32)), host=host.info, scheme="dew-paper", settings={**COMPOSED, "lambda_": 6.0}
    )
    ours, _, _ = mixed(host, scheme)
    theirs, _, _ = mixed(host, other)
    located = locate(ours + " " + theirs, [scheme, other])
    assert [one.key_fingerprint for one in located.passages] == [scheme.fingerprint, other.fingerprint]
    assert located.passages[0].end < len(ours) < located.passages[1].start


def test_a_text_marked_throughout_is_marked_as_a_whole(host, scheme):
    (marked,) = host.generate(
        [PROMPT], scheme=scheme, seeds=[3], decoding=Decoding(max_new_tokens=300, min_new_tokens=300)
    )
    found = dewmark.Detector(scheme).detect(marked.text)
    assert found.coverage.extent == "whole"
    assert "marked, throughout" in str(found)
    assert dewmark.Detector(scheme).detect(words(host, 200, seed=5)).coverage is None


class LawBound(NoiseBound):
    """It has a test of its own, and counts the pairs that each use of it tested."""

    def __init__(self, number: int, *, strength: float = 0.0) -> None:
        super().__init__(number)
        self.strength, self.tested = strength, []

    def _evidence(self, text: str) -> Evidence:
        evidence = super()._evidence(text)
        evidence.scores[100:200] += self.strength
        return evidence

    def test(self, evidence, *, test, fpr=0.01):
        self.tested.append(len(evidence))
        return key_test(evidence)

    def whole(self, readings, *, test, fpr):
        found = super().whole(readings, test=test, fpr=fpr)
        self.tested.clear()  # only what the search tests is counted
        return found


LawBound.__abstractmethods__ = frozenset()


def test_only_keys_that_a_search_opens_run_their_own_test():
    """Whether it applies is asked once, of the whole text, and under other keys not at all."""
    keys = [LawBound(number, strength=1.0 if number == 7 else 0.0) for number in range(50)]
    located = locate(f"{0:-<{MIN_SEARCHED}}", keys)
    assert {each.key_fingerprint for each in located.passages} == {keys[7].fingerprint}
    assert [key.number for key in keys if key.tested] == [7]
    assert keys[7].tested.index(MIN_SEARCHED) == 0
    assert keys[7].tested.count(MIN_SEARCHED) == 1 < len(keys[7].tested)


class RingBound(NoiseBound):
    """As many uses of one key as its number says: the search pays for each of them."""

    n_hypotheses = 32


RingBound.__abstractmethods__ = frozenset()


def result(p: float, *, key: str, units: int = MIN_SEARCHED) -> Detection:
    """A detector's result for a whole text of so many units."""
    verdict = Verdict.MARKED if p <= 0.01 else Verdict.NOT_MARKED
    return Detection(verdict, p, 0.0, 0.0, float(units), units, "key", 0.01, "noise", key)


def window(start: int, end: int, p: float) -> scan.Segment:
    return scan.Segment(start, end, 5.0, p / 10, p, float(end - start), 0.9)


def found_at(*segments: scan.Segment) -> scan.Found:
    return scan.Found(list(segments), None, min(each.corrected for each in segments))


def judged(monkeypatch, bounds, results, searched, *, versions=(), **options):
    """The verdict on a text if a search finds this under each key; and what the search was asked.

    ``results`` are those of the text as a whole, one per key, and ``versions`` those of its versions.
    """
    asked = {}

    def search(evidences, **options):
        asked.update(options)
        return [searched[k] for k in range(len(evidences))]

    monkeypatch.setattr(scan, "search", search)
    rows = [results, *versions]
    for k, bound in enumerate(bounds):
        monkeypatch.setattr(bound, "whole", lambda _, k=k, **options: [row[k] for row in rows])
    further = [["translated"] * len(versions)]
    return locate("x" * len(PLACES), bounds, versions=further, **options), asked


class TestEveryLookIsPaidFor:
    def test_uses_of_a_key_in_the_search(self, monkeypatch):
        """Of a ring's 32 uses the search takes the best: its level is divided by 32, and its p times 32."""
        ring = RingBound(1)
        quiet = result(0.5, key=ring.fingerprint)
        located, asked = judged(monkeypatch, [ring], [quiet], [found_at(window(10, 60, 1e-5))])
        assert asked["levels"] == [pytest.approx(0.01 * 0.2 / 32)]
        assert asked["known"] == [pytest.approx(0.05 * 0.2 / 32)]
        assert located.p_value == pytest.approx(32 * 1e-5 / 0.2)
        assert [each.p_value for each in located.passages] == [pytest.approx(32 * 1e-5 / 0.2)]

    def test_uses_of_a_key_where_a_significant_whole_text_is_searched(self, monkeypatch):
        ring = RingBound(1)
        loud = result(1e-9, key=ring.fingerprint)
        located, asked = judged(monkeypatch, [ring], [loud], [found_at(window(10, 60, 1e-5))])
        assert asked["levels"] == [pytest.approx(0.01 / 32)]
        assert located.p_value == pytest.approx(1e-9 / 0.8)
        assert [each.p_value for each in located.passages] == [pytest.approx(32 * 1e-5)]

    def test_uses_of_a_key_where_passages_explain_a_short_text(self, monkeypatch):
        ring = RingBound(1)
        short = result(1e-9, key=ring.fingerprint, units=MIN_SEARCHED - 1)
        located, asked = judged(monkeypatch, [ring], [short], [found_at(window(10, 60, 1e-5))])
        assert located.p_value == 1e-9
        assert asked["levels"] == [pytest.approx(0.01 / 32)]
        assert [each.p_value for each in located.passages] == [pytest.approx(32 * 1e-5)]

    def test_keys_and_attempts(self, monkeypatch):
        keys = [NoiseBound(k) for k in range(4)]
        quiet = [result(0.5, key=key.fingerprint) for key in keys]
        nothing = [scan.NOTHING_FOUND] * 3
        located, _ = judged(
            monkeypatch, keys, quiet, [found_at(window(0, 50, 1e-6)), *nothing], attempts=3, asked=10
        )
        assert located.p_value == pytest.approx(10 * 3 * 1e-6 / 0.2, rel=1e-4)
        assert located.looks == Looks(keys=10, attempts=3, passages=True)

    def test_a_searched_text_that_is_too_short_as_a_whole_is_one_of_two_versions(self, monkeypatch):
        key = NoiseBound(0)
        own = dataclasses.replace(result(0.5, key=key.fingerprint), verdict=Verdict.TOO_SHORT)
        translated = [result(0.5, key=key.fingerprint)]
        searched = [found_at(window(0, 60, 0.0015))]
        alone, _ = judged(monkeypatch, [key], [own], searched)
        both, _ = judged(monkeypatch, [key], [own], searched, versions=[translated])
        assert (alone.looks.attempts, both.looks.attempts) == (1, 2)
        assert (alone.p_value, both.p_value) == (pytest.approx(0.0075), pytest.approx(0.015))


class TwoViews(NoiseBound):
    """A scheme that searches a text by two sums, which vary alike."""

    def views(self, evidence):
        return [evidence, dataclasses.replace(evidence, scores=-evidence.scores)]


class RingOfTwoViews(TwoViews):
    n_hypotheses = 32


TwoViews.__abstractmethods__ = RingOfTwoViews.__abstractmethods__ = frozenset()


class TestEveryViewIsPaidFor:
    @pytest.mark.parametrize(("kind", "looks"), [(TwoViews, 2), (RingOfTwoViews, 64)])
    def test_a_search_of_two_views(self, monkeypatch, kind, looks):
        key = kind(1)
        views = [scan.NOTHING_FOUND, found_at(window(10, 60, 1e-5))]
        quiet = [result(0.5, key=key.fingerprint)]
        located, asked = judged(monkeypatch, [key], quiet, views)
        assert asked["levels"] == [pytest.approx(0.01 * 0.2 / looks)] * 2
        assert asked["known"] == [pytest.approx(0.05 * 0.2 / looks)] * 2
        assert located.p_value == pytest.approx(looks * 1e-5 / 0.2)
        assert [each.p_value for each in located.passages] == [pytest.approx(looks * 1e-5 / 0.2)]

    def test_two_views_where_the_whole_text_is_significant(self, monkeypatch):
        key = TwoViews(1)
        views = [found_at(window(0, 60, 1e-4)), found_at(window(40, 100, 1e-8), window(200, 250, 1e-5))]
        located, asked = judged(monkeypatch, [key], [result(1e-9, key=key.fingerprint)], views)
        assert asked["levels"] == [pytest.approx(0.005)] * 2
        # where they overlap, the more significant stays
        assert [(each.start, each.p_value) for each in located.passages] == [
            (40, pytest.approx(2e-8)),
            (200, pytest.approx(2e-5)),
        ]

    @pytest.mark.parametrize(("p_like", "extent"), [(0.004, Extent.PART), (0.006, None)])
    def test_the_rest_of_the_view_that_found_most(self, monkeypatch, p_like, extent):
        key = TwoViews(1)
        rests = [scan.Rest(300, 300.0, 5.0, 1e-6, 1.0), scan.Rest(300, 300.0, 0.0, 0.5, p_like)]
        views = [
            dataclasses.replace(found_at(window(0, 60, p)), rest=rest)
            for p, rest in zip((1e-4, 1e-8), rests, strict=True)
        ]
        located, _ = judged(monkeypatch, [key], [result(1e-9, key=key.fingerprint)], views)
        assert (located.coverage.extent, located.coverage.p_rest) == (extent, 0.5)

    def test_false_alarms_of_two_independent_views(self, one_search):
        """Of the whole text or of a passage in either view, over 400 keys."""
        level, keys = 0.05, [TwoIndependentViews(number) for number in range(400)]
        found = [locate("x" * MIN_SEARCHED, key, fpr=level) for key in keys]
        margin = 3.0 * math.sqrt(level * (1.0 - level) / len(keys))
        assert 0.5 * level - margin < np.mean([each.is_marked for each in found]) <= level + margin
        assert all(each.is_marked or not each.passages for each in found)


class TwoIndependentViews(NoiseBound):
    def views(self, evidence):
        return [evidence, self._evidence("y" * len(evidence))]


TwoIndependentViews.__abstractmethods__ = frozenset()


def test_a_text_has_one_p_value_at_all_levels(one_search):
    """Passages of unmarked and of weakly marked texts count alike, whatever the level."""
    searches_decide = 0
    for i in range(60):
        key, text = LawBound(i, strength=0.3 * (i % 2)), f"{i:-<{MIN_SEARCHED}}"
        found = [locate(text, key, fpr=level) for level in (1e-3, 0.01, 0.05, 0.1, 0.2, 0.5)]
        assert len({each.p_value for each in found}) == 1
        assert all(each.is_marked == (each.p_value <= each.fpr) for each in found)
        searches_decide += found[0].p_value < found[0].detection.p_value / 0.8
    assert searches_decide >= 3


def test_only_keys_that_are_found_have_passages(monkeypatch):
    """A window at its key's level is no passage of a key whose own p-value is above the level."""
    keys = [NoiseBound(0), NoiseBound(1)]
    results = [result(1e-9, key=keys[0].fingerprint), result(0.5, key=keys[1].fingerprint)]
    windows = [found_at(window(0, 50, 1e-6)), scan.Found([window(90, 140, 1e-6)], None, 1.0)]
    located, _ = judged(monkeypatch, keys, results, windows)
    assert located.p_values[1] > 0.01
    assert {each.key_fingerprint for each in located.passages} == {keys[0].fingerprint}


def test_of_overlapping_passages_the_more_significant_stays(monkeypatch):
    keys = [NoiseBound(0), NoiseBound(1)]
    results = [result(1e-9, key=key.fingerprint) for key in keys]
    windows = [found_at(window(0, 60, 1e-4)), found_at(window(40, 100, 1e-8))]
    located, _ = judged(monkeypatch, keys, results, windows)
    assert [(each.start, each.key_fingerprint) for each in located.passages] == [(40, keys[1].fingerprint)]


def test_passages_are_those_of_the_version_that_decided(monkeypatch):
    """Under a translation's verdict there are no places in the original."""
    key = NoiseBound(0)
    own, other = result(1e-4, key=key.fingerprint), result(1e-9, key=key.fingerprint)
    searched = [found_at(window(0, 60, 1e-4))]
    alone, _ = judged(monkeypatch, [key], [own], searched)
    assert alone.coverage is not None
    both, _ = judged(monkeypatch, [key], [own], searched, versions=[[other]])
    assert (both.version, both.verdict, both.coverage) == (1, Verdict.MARKED, None)


class NoEvidence(NoiseBound):
    evidence = dewmark.BoundScheme.evidence


class WholeOnly(NoiseBound):
    """Its evidence says nothing of a passage."""

    finds_passages = False


NoEvidence.__abstractmethods__ = WholeOnly.__abstractmethods__ = frozenset()


@pytest.mark.parametrize("kind", [NoEvidence, WholeOnly])
@pytest.mark.parametrize("units", [MIN_SEARCHED - 1, 900])
def test_schemes_without_evidence_of_passages_test_whole_texts_at_the_full_level(monkeypatch, kind, units):
    key = kind(0)
    assert not key.finds_passages
    loud = result(0.009, key=key.fingerprint, units=units)
    located, asked = judged(monkeypatch, [key], [loud], [])
    assert (located.p_value, located.looks, located.coverage) == (0.009, Looks(), None)
    assert located.is_marked
    assert asked == {}


@pytest.mark.parametrize("units", [MIN_SEARCHED - 1, MIN_SEARCHED])
def test_false_alarms_on_both_sides_of_the_bound(one_search, units):
    """Texts just short enough to be tested as a whole, and just long enough to be searched."""
    key, texts, level = NoiseBound(3), 400, 0.05
    found = detect_texts([f"{i:-<{units}}" for i in range(texts)], key, fpr=level, explain=False)
    assert all(each.looks.passages == (units >= MIN_SEARCHED) for each in found)
    margin = 3.0 * math.sqrt(level * (1.0 - level) / texts)
    assert 0.5 * level - margin < np.mean([each.is_marked for each in found]) <= level + margin
