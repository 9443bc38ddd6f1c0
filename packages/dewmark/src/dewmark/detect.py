"""Detection, from a text to a verdict: clean, read once, test under each key, decide, explain.

Every entry point calls `detect_texts`: the library, the command, batches, the service and signed reports. So
a text has one verdict and one p-value, whoever asks and however.

    text → units → Reading → a Detection of the whole under each key → passages → one verdict

A document may be marked in part. A text that is long enough to hold a marked part and an unmarked one
(`dewmark.verdict.MIN_SEARCHED` scored units) is therefore tested as a whole and searched for marked passages,
and both share the level (`dewmark.verdict`). A shorter one is tested as a whole, at the full level; if it is
marked, its passages explain the verdict, which adds no false alarm. Given the scheme, only the text decides
which of the two it is, never a key's result.

Boundary: texts and bound schemes in, verdicts out. A scheme tokenizes, reads and tests
(`dewmark.scheme.BoundScheme`), `dewmark.verdict` corrects for every look, `dewmark.passages` maps passages to
characters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dewmark.arguments import checked
from dewmark.errors import ConfigError, InputError
from dewmark.passages import KeyEvidence, coverage_of, search_passages
from dewmark.scheme import BoundScheme, Reading, check_test, check_texts, make_detection, reader_name
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING
from dewmark.types import EMPIRICAL, Calibration, Coverage, Detection, Looks, Passage, Verdict
from dewmark.verdict import DEFAULT_FPR, MIN_SEARCHED, WHOLE_SHARE, Decision, decide, level_of_key
from dewmark.workspace import Tokenized

__all__ = ["Examined", "KeySet", "detect_texts", "score_text", "score_texts"]

_TEXTS_AT_ONCE, _CHARACTERS_AT_ONCE = 128, 1 << 16  # limits of a batch, which bound the memory
_MAX_SEARCH_P = 0.05
"""A search reports p-values up to this one whatever the level is; larger ones become 1. So a text has one
p-value at all levels."""
_NO_PROMPT = Tokenized("", (), ())


class KeySet(Protocol):
    """Keys that read texts alike, such as `dewmark.opening.Keys`. A bound scheme stands for its one key."""

    @property
    def fingerprints(self) -> Sequence[str]:
        """The fingerprint of each key."""

    def bound(self, number: int) -> BoundScheme:
        """The scheme under the key with this number."""

    def whole(self, readings: Sequence[Reading], *, test: str, fpr: float) -> list[list[Detection]]:
        """For each text the result of the whole under each key."""


@dataclass(frozen=True, slots=True)
class Examined(Decision):
    """The verdict on a text, and everything that was found in it.

    ``verdict`` and ``p_value`` account for all ``looks``: keys, versions and, in a long text, passages;
    ``p_values`` holds each key's corrected p-value. ``detections`` are the results of the text as a whole,
    one per key, uncorrected. ``detection`` is the result that decided, of the version and key at ``version``
    and ``index``; ``judged`` is that detection after all corrections.
    """

    detections: tuple[Detection, ...]
    detection: Detection
    coverage: Coverage | None
    version: int = 0

    @property
    def judged(self) -> Detection:
        """The best key's result with the verdict, the p-value and the passages of the whole examination."""
        return self.applied(self.detection, self.coverage)

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The marked passages; they may belong to several keys."""
        return self.coverage.passages if self.coverage else ()

    @property
    def share(self) -> float:
        """The expected share of marked tokens in the text, counting those outside passages as unmarked."""
        return self.coverage.share if self.coverage else 0.0

    def to_dict(self, *, tokens: bool = False) -> dict[str, Any]:
        """Plain JSON values."""
        nothing = Coverage(extent=None, share=0.0, p_rest=None, passages=())
        return {
            "verdict": self.verdict.value,
            "p_value": self.p_value,
            "fpr": self.fpr,
            "looks": self.looks.to_dict(),
            "key_fingerprint": self.detection.key_fingerprint,
            **(self.coverage or nothing).to_dict(),
            "detection": self.detection.to_dict(tokens=tokens),
        }

    def __str__(self) -> str:
        return f"{self.judged}{f', over {len(self.detections)} keys' if len(self.detections) > 1 else ''}"


@checked
def detect_texts(
    texts: Sequence[str],
    keys: BoundScheme | KeySet | Iterable[BoundScheme | KeySet],
    *,
    prompts: Sequence[str | None] | None = None,
    fpr: float = DEFAULT_FPR,
    test: str | None = None,
    versions: Sequence[Sequence[str]] | None = None,
    asked: int | None = None,
    attempts: int = 1,
    explain: bool = True,
    calibration: Calibration | None = None,
    blank: bool = False,
) -> list[Examined]:
    """The verdict on each text: is it marked, by which of the keys, and where.

    A prompt, if known, is only context. ``versions`` are further versions of each text, such as translations
    back. ``asked`` counts the keys that could have been asked for, if they are more, and ``attempts`` the
    versions that the caller tries. ``explain`` also locates the mark in short marked texts. ``calibration``
    ranks the whole text among unmarked ones. With ``blank``, a blank text is too short instead of an error.
    """
    starts = check_texts(texts, prompts, fpr, blank=blank)
    if attempts < 1:
        raise ConfigError(f"attempts must be at least 1, got {attempts}")
    if versions is not None:
        if len(versions) != len(texts):
            raise InputError(f"{len(texts)} texts but {len(versions)} lists of versions: give one per text")
        for further in versions:
            check_texts(further, None, fpr, blank=True)
    sets = _sets(keys)
    examined: list[Examined] = []
    for part in _parts(texts):
        # 1. A text and its further versions; these have no prompt, which need not be in their language
        groups = [
            [(texts[i], starts[i]), *((text, "") for text in (versions[i] if versions else ()))]
            for i in range(part.start, part.stop)
        ]
        # 2. Clean, read once, and test as a whole under each key
        tested = iter(_tested([version for group in groups for version in group], sets, test=test, fpr=fpr))
        for group in groups:
            own = [next(tested) for _ in group]
            if calibration is not None:
                ranked = [[calibration.apply(found) for found in version.detections] for version in own]
                own = [_Tested(version.readings, new) for version, new in zip(own, ranked, strict=True)]
            # 3. Decide and explain
            examined.append(
                _examined(own, sets, fpr=fpr, asked=asked or 1, attempts=attempts, explain=explain)
            )
    return examined


def score_texts(
    bound: BoundScheme,
    texts: Sequence[str],
    *,
    prompts: Sequence[str | None] | None = None,
    fpr: float = DEFAULT_FPR,
    test: str | None = None,
    blank: bool = False,
) -> list[Detection]:
    """The results of texts as wholes under one key: the second step alone, for calibrations and studies.

    Only `detect_texts` finds a long text of which a small part is marked.
    """
    starts = check_texts(texts, prompts, fpr, blank=blank)
    pairs = list(zip(texts, starts, strict=True))
    parts = (_tested(pairs[part], _sets(bound), test=test, fpr=fpr) for part in _parts(texts))
    return [row.detections[0] for part in parts for row in part]


def score_text(
    bound: BoundScheme,
    text: str,
    *,
    prompt: str | None = None,
    fpr: float = DEFAULT_FPR,
    test: str | None = None,
) -> Detection:
    """Like `score_texts`, for one text."""
    return score_texts(bound, [text], prompts=[prompt], fpr=fpr, test=test)[0]


@dataclass(frozen=True, slots=True)
class _One:
    """The only key of a bound scheme."""

    scheme: BoundScheme

    @property
    def fingerprints(self) -> Sequence[str]:
        return (self.scheme.fingerprint,)

    def bound(self, number: int) -> BoundScheme:
        return self.scheme

    def whole(self, readings: Sequence[Reading], *, test: str, fpr: float) -> list[list[Detection]]:
        return [[found] for found in self.scheme.whole(readings, test=test, fpr=fpr)]


def _sets(keys: object) -> list[KeySet]:
    given: list[Any] = list(keys) if isinstance(keys, Iterable) else [keys]
    if not given:
        raise ConfigError("no key to look for: give at least one")
    wrong = [type(key).__name__ for key in given if not hasattr(key, "whole")]
    if wrong:
        raise ConfigError(f"give a scheme with its key, or several (load_scheme(key)), got {wrong[0]}")
    return [_One(key) if isinstance(key, BoundScheme) else key for key in given]


def _parts(texts: Sequence[str]) -> Iterator[slice]:
    """Slices of texts that are read together."""
    start = size = 0
    for i, text in enumerate(texts):
        if i > start and (size + len(text) > _CHARACTERS_AT_ONCE or i == start + _TEXTS_AT_ONCE):
            yield slice(start, i)
            start, size = i, 0
        size += len(text)
    if start < len(texts):
        yield slice(start, len(texts))


@dataclass(frozen=True, slots=True)
class _Tested:
    """A version of a text: its reading for each set of keys, None if blank, and the result for each key."""

    readings: list[Reading | None]
    detections: list[Detection]


def _tested(
    texts: Sequence[tuple[str, str]], sets: Sequence[KeySet], *, test: str | None, fpr: float
) -> list[_Tested]:
    """Read texts, each with its prompt, once for all sets that read alike; test the wholes under each key."""
    written = [i for i, (text, _) in enumerate(texts) if text.strip()]
    bodies, prompts = [texts[i][0] for i in written], [texts[i][1] for i in written]
    read: dict[Hashable, list[Reading]] = {}
    languages: dict[Hashable, Any] = {}
    rows = [_Tested([], []) for _ in texts]
    for keys in sets:
        bound = keys.bound(0)  # all keys of a set read alike
        name, alike = check_test(test, bound.tests), bound.reads_as
        if alike not in read:
            before = bound.tokenize(prompts) if any(prompts) else [_NO_PROMPT] * len(prompts)
            read[alike] = bound.read(bound.tokenize(bodies), before) if bodies else []
        readings = read[alike]
        if bound.languages not in languages:
            languages[bound.languages] = bound.languages.read([reading.text for reading in readings])
        found = keys.whole(readings, test=name, fpr=fpr) if bodies else []
        scored = zip(readings, languages[bound.languages], found, strict=True)
        results = dict(zip(written, scored, strict=True))
        for i, row in enumerate(rows):
            if i in results:
                reading, language, detections = results[i]
                row.readings.append(reading)
                row.detections.extend(language.applied(result) for result in detections)
            else:
                row.readings.append(None)
                row.detections.extend(_blank(bound, key, test=name, fpr=fpr) for key in keys.fingerprints)
    return rows


def _blank(bound: BoundScheme, fingerprint: str, *, test: str, fpr: float) -> Detection:
    """The result for a blank text: too short for a verdict."""
    nothing = np.zeros(0)
    return make_detection(
        Evidence.independent(nothing, nothing, nothing.astype(np.int64)),
        NOTHING,
        score=0.0,
        test=test,
        fpr=fpr,
        scheme=bound.scheme.name,
        fingerprint=fingerprint,
        reader=reader_name(bound),
    )


def _examined(
    versions: Sequence[_Tested],
    sets: Sequence[KeySet],
    *,
    fpr: float,
    asked: int,
    attempts: int,
    explain: bool,
) -> Examined:
    """The verdict on a text from the results of its versions, and where in it the mark is."""
    own = versions[0]
    n = len(own.detections)
    # detections are flat across the sets: the k-th is of this set and of its key with this number
    places = [(s, number) for s, keys in enumerate(sets) for number in range(len(keys.fingerprints))]

    def key_evidence(k: int) -> KeyEvidence | None:
        s, number = places[k]
        reading = own.readings[s]
        return None if reading is None else KeyEvidence.of(sets[s].bound(number), reading)

    # 1. A long text is searched under every key that has evidence for its parts
    evidence: dict[int, KeyEvidence] = {}
    for k, whole in enumerate(own.detections):
        unread = whole.verdict is Verdict.UNSUPPORTED_LANGUAGE or whole.test == EMPIRICAL
        if whole.tokens_scored >= MIN_SEARCHED and not unread and (found := key_evidence(k)) is not None:
            evidence[k] = found
    # 2. Every look counts: keys, versions with a verdict or a search, passages
    telling = sum(
        any(whole.verdict.conclusive for whole in version.detections) or (version is own and bool(evidence))
        for version in versions
    )
    looks = Looks(max(n, asked), attempts * max(telling, 1), passages=bool(evidence))
    level = level_of_key(min(fpr, _MAX_SEARCH_P), looks)
    for k, mine in evidence.items():
        whole = own.detections[k]
        significant = whole.verdict.conclusive and whole.p_value <= level * WHOLE_SHARE
        # if the whole is significant, its share of the level passes to the search
        mine.share = (1.0 if significant else 1.0 - WHOLE_SHARE) / mine.hypotheses
    known = level_of_key(_MAX_SEARCH_P, looks) * (1.0 - WHOLE_SHARE)
    passages = search_passages(evidence, level, known) if evidence else {}
    # 3. The best result decides, after all corrections
    searches = {k: min(hit.p_value for hit in hits) * evidence[k].hypotheses for k, hits in passages.items()}
    results = [whole for version in versions for whole in version.detections]
    decision = decide(results, fpr=fpr, looks=looks, searches=searches)
    version, index = divmod(decision.index, n)  # results are version by version, key by key
    p_values = tuple(min(decision.p_values[k::n]) for k in range(n))
    # 4. The passages explain a marked text, if it is the caller's own: their offsets are in that
    coverage = None
    if decision.verdict is Verdict.MARKED and version == 0:
        if index not in evidence and explain and (found := key_evidence(index)) is not None:
            found.share = 1.0 / found.hypotheses
            evidence[index] = found
            passages |= search_passages({index: found}, level)
        marked = {k: views for k, views in passages.items() if p_values[k] <= fpr}
        coverage = coverage_of(index, evidence, marked, looks, fpr=fpr)
    return Examined(
        **{field.name: getattr(decision, field.name) for field in dataclasses.fields(Decision)}
        | {"index": index, "p_values": p_values},
        detections=tuple(own.detections),
        detection=results[decision.index],
        coverage=coverage,
        version=version,
    )
