"""How a check says what it expected.

Checks of what a scheme says about itself: configuration, hashes, secrets.

Checks of detection: what is found, what is refused, and that a detector gives one answer.

Checks of sessions: what a scheme does to logits, and that texts do not disturb each other.

A scheme that chooses between drafts of sentences has no sessions: what a check promises is then looked at in
the texts that come of it.

What the checks of `marking` promise, for schemes that choose between drafts of sentences.

Boundary: called by the checks there, none of its own.

Checks of probability: p-values that are valid over keys, and evidence that has the moments it claims.

Under the null hypothesis a text does not depend on the key, so the text is fixed and keys are drawn.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import unittest
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import binom, kurtosis, mannwhitneyu, spearmanr

from dewmark.core.keys import Key
from dewmark.detector import export_detector, load_detector
from dewmark.errors import (
    ConfigError,
    DewmarkError,
    InputError,
    ModelError,
    NumericalError,
    UnknownNameError,
    VocabularyError,
)
from dewmark.registry import SCHEMES
from dewmark.scheme import Needs, Scheme, State
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import score_variance
from dewmark.storage import load_bundle
from dewmark.testing.trial import VOCABULARY, Trial
from dewmark.types import Detection, Verdict

__all__ = [
    "CHECKS",
    "batches_share_nothing",
    "expect",
    "expect_close",
    "expect_refusal",
    "expect_valid",
    "odd_drafts_do_not_pass",
    "order_changes_nothing",
    "sessions_are_refused",
]

LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5)

CERTAINTY = 1e-4  # how rarely a valid p-value may fail one comparison


def expect(holds: object, message: str) -> None:
    """Fail with what was expected."""
    if not holds:
        raise AssertionError(message)


def expect_close(found: ArrayLike, expected: ArrayLike, what: str, *, within: float) -> None:
    """Two arrays of numbers that differ by at most ``within``."""
    a, b = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    expect(a.shape == b.shape, f"{what}: expected shape {b.shape}, got {a.shape}")
    expect(not (np.isnan(a).any() or np.isnan(b).any()), f"{what}: expected numbers, got NaN")
    worst = float(np.max(np.abs(a - b), initial=0.0))
    expect(worst <= within, f"{what}: expected the same within {within:g}, they differ by {worst:.3g}")


def expect_refusal(call: Callable[[], object], error: type[DewmarkError], what: str) -> None:
    """A call that must raise one of dewmark's own errors."""
    with suppress(error):
        call()
        raise AssertionError(f"{what}: expected {error.__name__}, it was accepted")


def expect_valid(p_values: Iterable[float], what: str) -> None:
    """Independent p-values of a true null hypothesis: P(p ≤ a) ≤ a.

    The number of p-values up to a is compared with the quantile of Binomial(n, a) that a valid test passes
    once in 1/`CERTAINTY` times at most.
    """
    p: Sequence[float] = list(p_values)
    expect(all(0.0 <= value <= 1.0 for value in p), f"{what}: expected p-values in [0, 1]")
    for level in LEVELS:
        found, most = sum(value <= level for value in p), int(binom.ppf(1.0 - CERTAINTY, len(p), level))
        expect(
            found <= most,
            f"{what}: expected at most {most} of {len(p)} p-values up to {level:g}, got {found}: "
            "the test accuses too often",
        )


def describes_itself(trial: Trial) -> None:
    """Name, one-line summary, needs, defaults for every field; frozen; at least one test."""
    scheme = trial.scheme
    kind = type(scheme)
    expect(
        kind.name and kind.name == kind.name.strip().lower(), f"name: expected lower case, got {kind.name!r}"
    )
    expect(
        kind.summary and "\n" not in kind.summary, "summary: expected one line that says what the scheme is"
    )
    expect(isinstance(scheme.needs, Needs), f"needs: expected a Needs, got {type(scheme.needs).__name__}")
    expect(
        "__dataclass_fields__" in vars(kind),
        "expected a frozen dataclass: decorate the class with @dataclass(frozen=True)",
    )
    try:
        kind()
    except TypeError as error:
        raise AssertionError(
            f"expected a default for every field, so that {kind.__name__}() works: {error}"
        ) from None
    expect(
        trial.bound.tests, "tests: expected the names of the scheme's statistical tests, the default first"
    )


def config_round_trips(trial: Trial) -> None:
    """A configuration survives JSON and the text values of a command line."""
    scheme = trial.scheme
    plain = scheme.to_dict()
    try:
        stored = json.loads(json.dumps(plain))
    except TypeError as error:
        raise AssertionError(f"to_dict: expected plain JSON values: {error}") from None
    default: Scheme = type(scheme)()
    expect(default.with_settings(stored) == scheme, f"expected the same scheme back from {stored}")
    text: dict[str, object] = {name: str(value) for name, value in plain.items()}
    expect(default.with_settings(text) == scheme, f"expected the same scheme from the texts {text}")
    expect_refusal(
        lambda: default.with_settings({"no_such_parameter": 1}), ConfigError, "an unknown parameter"
    )


def config_hash_names_the_configuration(trial: Trial) -> None:
    """The same for the same configuration and key, another for another key."""
    same, other = trial.bind(trial.secret), trial.others[0]
    expect(same.config_hash == trial.bound.config_hash, "config_hash: expected the same for the same key")
    expect(other.config_hash != trial.bound.config_hash, "config_hash: expected another for another key")


def keeps_its_secret(trial: Trial) -> None:
    """Nothing that is printed or stored in the open holds the key, and no array holds the key itself."""
    bound, secret = trial.bound, trial.secret
    state = bound.state()
    detection = bound.detect(trial.marked[0])
    shown = {
        "repr of the bound scheme": repr(bound),
        "str of the bound scheme": str(bound),
        "repr of a session": repr(
            bound.drafts(["a text"]) if bound.needs.drafts else bound.session(torch.tensor([[5, 6, 7]]))
        ),
        "to_dict": json.dumps(bound.scheme.to_dict()),
        "config_hash": bound.config_hash,
        "repr of the state": repr(state),
        "meta of the state": json.dumps(dict(state.meta)),
        "a detection": repr(detection) + str(detection) + json.dumps(detection.to_dict(tokens=True)),
    }
    forms = (
        secret.hex(),
        base64.b64encode(secret).decode().rstrip("="),
        repr(secret)[2:-1],
        str(list(secret)),
    )
    for what, text in shown.items():
        expect(
            not any(form.lower() in text.lower() for form in forms), f"{what}: expected no key, it shows it"
        )
    for name, array in state.arrays.items():
        expect(
            secret not in array.tobytes(), f"array {name!r} of the state: expected a sub-key, it is the key"
        )


CHECKS = (describes_itself, config_round_trips, config_hash_names_the_configuration, keeps_its_secret)

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


CHECKS_DETECTING = (
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

_ROWS = (0, 3, 8)  # prompts of one, four and nine words

_SHORT = 40  # tokens, where two texts are compared word for word

_ROUNDING = 1e-4  # of a probability: a batch may sum in another order than a single row


def padding_changes_nothing(trial: Trial) -> None:
    """A row in a left-padded batch is marked as it is alone, with a mask and without."""
    if trial.scheme.needs.drafts:
        order_changes_nothing(trial, _ROWS, tokens=_SHORT)
        return
    for what, processor in (("session", False), ("processor", True)):
        together = trial.steps(_ROWS, processor=processor, mask=True)
        unmasked = trial.steps(_ROWS, processor=processor)
        expect_close(unmasked, together, f"{what}: padding seen by its id and by the mask", within=_ROUNDING)
        for i, row in enumerate(_ROWS):
            alone = trial.steps([row], processor=processor)[:, 0]
            expect_close(together[:, i], alone, f"{what}: row {i} padded and alone", within=_ROUNDING)


def sessions_share_nothing(trial: Trial) -> None:
    """The second text is independent of the first: a session gives the same before and after another one."""
    if trial.scheme.needs.drafts:
        batches_share_nothing(trial, tokens=_SHORT)
        return
    first = trial.steps([3])
    trial.steps([8])
    expect_close(trial.steps([3]), first, "the same text marked again after another one", within=0.0)


def batches_do_not_change_texts(trial: Trial) -> None:
    """A text is the same whether it is written alone or in a batch."""
    prompts = [trial.prompts[row] for row in _ROWS]
    together = trial.write(prompts, trial.bound, tokens=_SHORT)
    for i, prompt in enumerate(prompts):
        alone = trial.write([prompt], trial.bound, tokens=_SHORT, first_seed=i)[0]
        expect(
            alone == together[i], f"row {i}: expected the same text in a batch of {len(prompts)} and alone"
        )


def same_seeds_give_the_same_text(trial: Trial) -> None:
    """Prompt, seed and key decide a text; a second bound scheme writes it again."""
    prompts = trial.prompts[:4] if trial.scheme.needs.drafts else trial.prompts  # drafts take their time
    texts = (trial.write(prompts, bound, tokens=_SHORT) for bound in (trial.bound, trial.bind(trial.secret)))
    for i, (first, second) in enumerate(zip(*texts, strict=True)):
        expect(first == second, f"text {i}: expected the same text from the same prompt, seed and key")


def forbidden_tokens_stay_forbidden(trial: Trial) -> None:
    """A token of logit -inf keeps probability 0, and the others get all of it."""
    if trial.scheme.needs.drafts:
        sessions_are_refused(trial)
        return
    ids = torch.tensor([[50, 60, 70, 80]])
    for allowed in ([100], [100, 101], [*range(90, 120)]):
        logits = torch.full((1, VOCABULARY), -math.inf)
        logits[0, allowed] = torch.linspace(0.0, 1.0, len(allowed))
        marked = trial.bound.session(ids, seeds=[1])(ids, logits)
        expect(
            marked.shape == logits.shape,
            f"expected logits of shape {tuple(logits.shape)}, got {tuple(marked.shape)}",
        )
        share = float(marked.float().softmax(dim=-1)[0, allowed].sum())
        expect(
            math.isclose(share, 1.0, abs_tol=1e-5),
            f"expected all probability on the {len(allowed)} tokens of finite logit, got {share:g}",
        )


def bad_logits_are_refused(trial: Trial) -> None:
    """Logits of another vocabulary, and NaN, are errors and not a silent loss of the mark."""
    if trial.scheme.needs.drafts:
        odd_drafts_do_not_pass(trial)
        return
    ids = torch.tensor([[50, 60, 70]])
    session = trial.bound.session(ids, seeds=[1])
    expect_refusal(lambda: session(ids, torch.zeros(1, VOCABULARY - 100)), VocabularyError, "too few logits")
    bad = torch.zeros(1, VOCABULARY)
    bad[0, 3] = math.nan
    expect_refusal(lambda: trial.bound.session(ids, seeds=[1])(ids, bad), NumericalError, "NaN logits")


def devices_agree(trial: Trial) -> None:
    """CPU and GPU mark alike, so that text marked on one is found on the other."""
    if not torch.cuda.is_available():
        raise unittest.SkipTest("needs CUDA")
    if trial.scheme.needs.drafts:
        raise unittest.SkipTest("the scheme sees texts, and no device")
    for processor in (False, True):
        cpu = trial.steps(_ROWS, processor=processor)
        gpu = trial.steps(_ROWS, processor=processor, device="cuda")
        expect_close(gpu, cpu, "probabilities on GPU and CPU", within=1e-3)


CHECKS_MARKING = (
    padding_changes_nothing,
    sessions_share_nothing,
    batches_do_not_change_texts,
    same_seeds_give_the_same_text,
    forbidden_tokens_stay_forbidden,
    bad_logits_are_refused,
    devices_agree,
)


def order_changes_nothing(trial: Trial, rows: Sequence[int], *, tokens: int) -> None:
    """A prompt gives the same text at either end of a batch of prompts of other lengths."""
    prompts = [trial.prompts[row] for row in rows]
    wanted = trial.write(prompts, trial.bound, tokens=tokens, first_seed=7)
    others = prompts[:0:-1]
    # so that the last row has the seed that the first had
    found = trial.write([*others, prompts[0]], trial.bound, tokens=tokens, first_seed=7 - len(others))
    expect(found[-1] == wanted[0], "expected the same text of a prompt as the first and the last of a batch")


def batches_share_nothing(trial: Trial, *, tokens: int) -> None:
    """The second text is independent of the first: a batch gives the same before and after another one."""
    first = trial.write(trial.prompts[3:5], trial.bound, tokens=tokens)
    trial.write(trial.prompts[8:9], trial.bound, tokens=tokens)
    again = trial.write(trial.prompts[3:5], trial.bound, tokens=tokens)
    expect(first == again, "expected the same texts before and after another one")


def sessions_are_refused(trial: Trial) -> None:
    """Logits cannot be marked, and whoever tries is told so."""
    ids = torch.tensor([[50, 60, 70]])
    expect_refusal(lambda: trial.bound.session(ids), ConfigError, "a session")
    expect_refusal(lambda: trial.bound.processor(ids), ConfigError, "a logits processor")


def odd_drafts_do_not_pass(trial: Trial) -> None:
    """What is no whole sentence does not pass, and a finished one ends where it does."""
    drafts = trial.bound.drafts(["the old bridge."])
    odd = ["", " ", "...", "\ufffd", " an unfinished sentence"]
    scores = drafts.judge([0] * len(odd), odd)
    expect(all(score <= 0.0 for score in scores), f"expected that no draft of {odd} passes, got {scores}")
    expect(all(not math.isnan(score) for score in scores), f"expected numbers, got {scores}")
    whole, rest = " the water was high.", " and"
    expect(drafts.end(0, whole + rest) == len(whole), f"expected {whole!r} to end before {rest!r}")
    expect(drafts.end(0, " the water") is None, "expected no end in a sentence that is not finished")


_SIGMAS = 4.5  # a right scheme fails one comparison in 150,000

_APPROXIMATION = 0.05  # of a variance: closed forms for large n, on vectors of 32 numbers


def p_values_are_valid(trial: Trial) -> None:
    """On unmarked text of every kind, P(p ≤ a) ≤ a over keys."""
    for kind in trial.nulls:
        expect_valid(trial.p_values[kind], kind)


def wrong_keys_find_nothing(trial: Trial) -> None:
    """Text that another key marked is unmarked text: the same holds."""
    expect_valid(trial.p_values["text marked with another key"], "text marked with another key")


def evidence_keeps_its_claims(trial: Trial) -> None:
    """Over keys, sums of scores have mean 0 and the variance that the evidence claims.

    Each sum is divided by its claimed standard deviation (which scores count may depend on the key). The
    margins follow from the number of keys K: the mean of K numbers of variance 1 has a standard deviation of
    1/√K, their sample variance one of √((kurtosis − 1)/K).
    """
    for kind, texts in trial.nulls.items():
        text, prompt = trial.bound.tokenize([texts[0], trial.prompts[0]])
        try:
            found = [bound.evidence([text], [prompt])[0] for bound in trial.others]
        except ConfigError as reason:
            raise unittest.SkipTest(str(reason)) from None
        for evidence in found:
            _expect_complete(evidence, kind, tokens=len(text.ids))
        # the whole sum, and one in which neighbouring pairs count against each other
        for what, sign in (("sum", 1.0), ("difference", -1.0)):
            sums = np.array([_standardised(evidence, sign) for evidence in found])
            mean, variance = float(sums.mean()), float(sums.var(ddof=1))
            margin = _SIGMAS / math.sqrt(len(sums))
            expect(
                abs(mean) <= margin,
                f"{kind}, {what}: expected mean 0 over keys within {margin:.2f} claimed standard deviations, "
                f"got {mean:.2f}",
            )
            margin = _SIGMAS * math.sqrt((max(0.0, float(kurtosis(sums))) + 2.0) / len(sums)) + _APPROXIMATION
            expect(
                abs(variance - 1.0) <= margin,
                f"{kind}, {what}: expected the claimed variance over keys within {margin:.0%}, "
                f"got {variance:.2f} times it",
            )


def _expect_complete(evidence: Evidence, kind: str, *, tokens: int) -> None:
    expect(len(evidence) > 0, f"{kind}: expected evidence in a text of {tokens} tokens, there is none")
    expect(
        len(evidence.positions) == tokens and int(evidence.positions.max()) == len(evidence) - 1,
        f"{kind}: expected in positions, for each of {tokens} tokens, its pair or -1",
    )


def _standardised(evidence: Evidence, sign: float) -> float:
    """Σ w_i s_i over its claimed standard deviation, every other weight multiplied by ``sign``."""
    weights = evidence.weights * np.where(np.arange(len(evidence)) % 2 == 0, 1.0, sign)
    weighted = dataclasses.replace(evidence, weights=weights)
    return weighted.total / math.sqrt(score_variance(weighted))


CHECKS_STATISTICS = (p_values_are_valid, wrong_keys_find_nothing, evidence_keeps_its_claims)
