"""Checks of detection: what is found, what is refused, and that a detector gives one answer."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np
from scipy.stats import mannwhitneyu, spearmanr

from dewmark.core.keys import Key
from dewmark.detector import export_detector, load_detector
from dewmark.errors import ConfigError, InputError, ModelError, UnknownNameError
from dewmark.registry import SCHEMES
from dewmark.scheme import State
from dewmark.storage import load_bundle
from dewmark.testing.expectations import expect, expect_close, expect_refusal
from dewmark.testing.trial import Trial
from dewmark.types import Detection, Verdict

__all__ = ["CHECKS"]

_FPR = 0.01


def detects_its_own_text(trial: Trial) -> None:
    """Most texts of its own are called marked at 1%, without their prompts."""
    found = trial.bound.detect_batch(trial.marked, fpr=_FPR)
    count = sum(detection.verdict is Verdict.MARKED for detection in found)
    expect(
        count >= 0.8 * len(found),
        f"expected 80% of {len(found)} marked texts of {trial.tokens} tokens to be found at p < {_FPR}, "
        f"got {count}; median p {np.median([d.p_value for d in found]):.2g}",
    )


def scores_point_one_way(trial: Trial) -> None:
    """Marked text has the larger score and z and the smaller p-value, and p falls as z grows."""
    marked = trial.bound.detect_batch(trial.marked)
    unmarked = trial.bound.detect_batch(trial.nulls["the host's own text"])
    for name, sign in (("score", 1), ("z", 1), ("p_value", -1)):
        ours, theirs = ([sign * getattr(d, name) for d in group] for group in (marked, unmarked))
        auroc = mannwhitneyu(ours, theirs).statistic / (len(ours) * len(theirs))
        larger = "larger" if sign > 0 else "smaller"
        expect(
            auroc > 0.9, f"{name}: expected it {larger} on marked than on unmarked text, AUROC {auroc:.2f}"
        )
    both = [*marked, *unmarked]
    rank = spearmanr([d.z for d in both], [d.p_value for d in both]).statistic
    expect(rank < -0.9, f"expected p-values that fall as z grows, their rank correlation is {rank:.2f}")


def detections_are_complete(trial: Trial) -> None:
    """Every field of a detection is filled in, and token scores lie where their text is."""
    text, prompt = trial.marked[0], trial.prompts[0]
    for test in (None, *trial.bound.tests):
        found = trial.bound.detect(text, prompt=prompt, fpr=0.05, test=test)
        expect(
            found.test == (test or trial.bound.tests[0]), f"test: expected its own name, got {found.test!r}"
        )
        expect(found.fpr == 0.05, f"fpr: expected the one asked for, 0.05, got {found.fpr}")
        expect(
            found.scheme == trial.scheme.name, f"scheme: expected {trial.scheme.name!r}, got {found.scheme!r}"
        )
        expect(found.key_fingerprint == trial.bound.fingerprint, "key_fingerprint: expected the key's own")
        numbers = (found.p_value, found.z, found.score, found.effective_length)
        expect(all(map(math.isfinite, numbers)), f"expected finite numbers, got {numbers}")
        length = len(trial.bound.tokenize([text])[0].ids)
        expect(
            0 < found.tokens_scored <= length,
            f"tokens_scored: expected between 1 and the text's {length} tokens, got {found.tokens_scored}",
        )
        expect(
            all(text[token.start : token.end] == token.text for token in found.tokens),
            "tokens: expected each to hold the text between its offsets",
        )
        scores = [token.score for token in found.tokens if token.scored]
        expect(
            not scores or np.mean(scores) > 0.0,
            "tokens: expected scores of marked text that are positive on average",
        )


def batch_equals_single(trial: Trial) -> None:
    """A text gets the same answer alone and in a batch of other lengths, with and without prompts."""
    words = trial.marked[3].split(" ")
    texts = [*trial.marked[:2], " ".join(words[: len(words) // 3]), trial.nulls["repetitive text"][0]]
    prompts = [None, trial.prompts[1], trial.prompts[3], None]
    together = trial.bound.detect_batch(texts, prompts=prompts)
    alone = [trial.bound.detect(text, prompt=prompt) for text, prompt in zip(texts, prompts, strict=True)]
    _expect_same(together, alone, "in a batch and alone")


def prompt_is_context_only(trial: Trial) -> None:
    """A marked prompt does not make the text after it marked."""
    texts = trial.nulls["the host's own text"]
    found = trial.bound.detect_batch(texts, prompts=trial.marked, fpr=_FPR)
    accused = sum(detection.is_marked for detection in found)
    # P(Binomial(16, 0.01) > 3) = 2e-5
    expect(
        accused <= 3,
        f"expected unmarked text after a marked prompt to be unmarked, {accused} of {len(found)} are",
    )
    lengths = [len(text.ids) for text in trial.bound.tokenize(texts)]
    for detection, length in zip(found, lengths, strict=True):
        expect(
            detection.tokens_scored <= length,
            f"tokens_scored: expected the text's {length} at most, without the prompt's, "
            f"got {detection.tokens_scored}",
        )


def short_texts_get_no_verdict(trial: Trial) -> None:
    """A text of one or two words is too short to accuse anybody."""
    for text in (" the", " the old"):
        found = trial.bound.detect(text)
        expect(
            found.verdict is Verdict.TOO_SHORT, f"{text!r}: expected 'too short', got {found.verdict.value!r}"
        )


def bad_calls_are_refused(trial: Trial) -> None:
    """What is no text, and options that do not exist, are dewmark's errors."""
    detect = trial.bound.detect
    for text, what in (("", "an empty text"), ("a\x00b", "NUL characters"), ("a\ud800b", "a lone surrogate")):
        expect_refusal(lambda text=text: detect(text), InputError, what)  # type: ignore[misc]
    expect_refusal(lambda: detect("a text", fpr=1.5), ConfigError, "fpr = 1.5")
    expect_refusal(lambda: detect("a text", test="no such test"), UnknownNameError, "an unknown test")
    expect_refusal(
        lambda: trial.bound.detect_batch(["one", "two"], prompts=["x"]),
        InputError,
        "two texts and one prompt",
    )


def exported_detector_agrees(trial: Trial) -> None:
    """A detector written to a folder and read back gives the same answers, without key and weights."""
    texts = [*trial.marked[:4], *trial.nulls["the host's own text"][:2]]
    folder = trial.folder / "exported"
    export_detector(trial.bound, folder)
    if trial.scheme.name in SCHEMES and not trial.scheme.needs.host_at_detection:
        detector = load_detector(folder)
    else:
        bundle = load_bundle(folder / "state")
        host = dataclasses.replace(trial.host.info, embeddings=_no_weights)
        state = State(meta=bundle.meta, arrays=bundle.arrays)
        detector = trial.scheme.restore(state, host, trial.bound.fingerprint, trial.workspace)
    expect(
        detector.config_hash == trial.bound.config_hash, "config_hash: expected the one it was exported with"
    )
    _expect_same(detector.detect_batch(texts), trial.bound.detect_batch(texts), "after export")


def many_keys_equal_one_by_one(trial: Trial) -> None:
    """`detect_keys` gives each text and key the detection that the key alone gives."""
    texts, names = trial.marked[:2], ("one", "two", "three")
    keys = [Key(trial.secret), *(Key(hashlib.sha256(name.encode()).digest()) for name in names)]
    together = trial.scheme.detect_keys(keys, texts, trial.host.info, trial.workspace)
    bound = [trial.scheme.bind(key, trial.host.info, trial.workspace) for key in keys]
    for i, text in enumerate(texts):
        _expect_same(together[i], [each.detect(text) for each in bound], f"under {len(keys)} keys at once")


def _expect_same(found: Sequence[Detection], expected: Sequence[Detection], what: str) -> None:
    numbers: tuple[tuple[str, Callable[[Detection], float], float], ...] = (
        ("z", lambda d: d.z, 1e-3),
        ("log p", lambda d: math.log(max(d.p_value, 1e-300)), 0.02),
        ("tokens_scored", lambda d: d.tokens_scored, 0.0),
    )
    for name, number, within in numbers:
        expect_close([*map(number, found)], [*map(number, expected)], f"{name} {what}", within=within)


def _no_weights() -> NoReturn:
    raise ModelError("a detector must not ask for the host's embeddings")


CHECKS = (
    detects_its_own_text,
    scores_point_one_way,
    detections_are_complete,
    batch_equals_single,
    prompt_is_context_only,
    short_texts_get_no_verdict,
    bad_calls_are_refused,
    exported_detector_agrees,
    many_keys_equal_one_by_one,
)
