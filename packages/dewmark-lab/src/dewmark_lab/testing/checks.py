"""The checks of the contract suite: what every scheme promises, in the order in which a reader would ask.

Each check takes a `Trial`. It raises AssertionError with what was expected if the scheme breaks the promise,
and unittest.SkipTest if the promise cannot be checked here. `CHECKS` lists them all: first what a scheme says
about itself, then marking, detection, and probability.

A scheme that chooses between drafts of sentences has no sessions; the checks of marking then look at the
texts that it writes. Under the null hypothesis a text does not depend on the key, so the checks of
probability fix the text and draw keys.
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
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import binom, kurtosis, mannwhitneyu, spearmanr

from dewmark.capabilities import ChoosesDrafts, capability, evidence_of
from dewmark.core.keys import Key
from dewmark.detect import score_texts
from dewmark.detector import Detector
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
from dewmark.stats.key_test import score_variance
from dewmark.storage import load_bundle
from dewmark.types import Detection, Verdict
from dewmark.verdict import DEFAULT_FPR
from dewmark_lab.testing.trial import VOCABULARY, Trial

Check = Callable[[Trial], None]

_FPR = 0.01
_ROWS = (0, 3, 8)  # prompts of one, four and nine words
_SHORT = 40  # tokens, where texts are compared word for word
_ROUNDING = 1e-4  # of a probability: a batch may add up in another order than a single row
_LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5)
_FALSE_ALARM = 1e-4  # chance that a valid p-value fails one comparison
_SIGMAS = 4.5  # a correct scheme fails one comparison in 150,000
_APPROXIMATION = 0.05  # of a variance: closed forms for large n, on vectors of 32 numbers


# What a scheme says about itself


def describes_itself(trial: Trial) -> None:
    """A frozen dataclass with a name, a one-line summary, needs, a default for every field, and tests."""
    scheme = trial.scheme
    kind = type(scheme)
    name = kind.name
    expect(name and name == name.strip().lower(), f"name: expected lower case, got {name!r}")
    expect(kind.summary and "\n" not in kind.summary, "summary: expected one line that describes the scheme")
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
    expect(trial.bound.tests, "tests: expected the names of the statistical tests, the default first")


def config_round_trips(trial: Trial) -> None:
    """A configuration survives JSON, and conversion to text as on a command line."""
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
    expect_error(lambda: default.with_settings({"no_such_parameter": 1}), ConfigError, "an unknown parameter")


def config_hash_names_the_configuration(trial: Trial) -> None:
    """The configuration hash is the same for the same key, and another for another key."""
    same, other = trial.bind(trial.secret), trial.others[0]
    expect(same.config_hash == trial.bound.config_hash, "config_hash: expected the same for the same key")
    expect(other.config_hash != trial.bound.config_hash, "config_hash: expected another for another key")


def keeps_its_secret(trial: Trial) -> None:
    """Nothing that is printed or stored in plain text shows the key, and no array holds the key itself."""
    bound, secret = trial.bound, trial.secret
    state = bound.state()
    detection = score_texts(bound, trial.marked[:1])[0]
    session = (
        capability(bound, ChoosesDrafts).drafts(["a text"])
        if bound.needs.drafts
        else bound.session(torch.tensor([[5, 6, 7]]))
    )
    shown = {
        "repr of the bound scheme": repr(bound),
        "str of the bound scheme": str(bound),
        "repr of a session": repr(session),
        "to_dict": json.dumps(bound.scheme.to_dict()),
        "config_hash": bound.config_hash,
        "repr of the state": repr(state),
        "meta of the state": json.dumps(dict(state.meta)),
        "a detection": repr(detection) + str(detection) + json.dumps(detection.to_dict(tokens=True)),
    }
    forms = (secret.hex(), base64.b64encode(secret).decode().rstrip("="), repr(secret)[2:-1], str([*secret]))
    for what, text in shown.items():
        shows = any(form.lower() in text.lower() for form in forms)
        expect(not shows, f"{what}: expected not to show the key")
    for name, array in state.arrays.items():
        expect(
            secret not in array.tobytes(),
            f"array {name!r} of the state: expected a derived secret, got the key itself",
        )


# Marking


def padding_changes_nothing(trial: Trial) -> None:
    """A row is marked in a left-padded batch as it is alone, with an attention mask and without."""
    if trial.scheme.needs.drafts:  # a prompt gives the same text at either end of a batch of other lengths
        prompts = [trial.prompts[row] for row in _ROWS]
        wanted = trial.write(prompts, trial.bound, tokens=_SHORT, first_seed=7)
        others = prompts[:0:-1]
        # so that the last row has the seed that the first had
        found = trial.write([*others, prompts[0]], trial.bound, tokens=_SHORT, first_seed=7 - len(others))
        expect(found[-1] == wanted[0], "expected the same text for a prompt as the first and last of a batch")
        return
    for what, processor in (("session", False), ("processor", True)):
        together = trial.steps(_ROWS, processor=processor, mask=True)
        unmasked = trial.steps(_ROWS, processor=processor)
        expect_close(unmasked, together, f"{what}: padding without a mask and with one", within=_ROUNDING)
        for i, row in enumerate(_ROWS):
            alone = trial.steps([row], processor=processor)[:, 0]
            expect_close(together[:, i], alone, f"{what}: row {i} padded and alone", within=_ROUNDING)


def sessions_share_nothing(trial: Trial) -> None:
    """A second text does not depend on the first: a session marks alike before and after another one."""
    if trial.scheme.needs.drafts:
        first = trial.write(trial.prompts[3:5], trial.bound, tokens=_SHORT)
        trial.write(trial.prompts[8:9], trial.bound, tokens=_SHORT)
        again = trial.write(trial.prompts[3:5], trial.bound, tokens=_SHORT)
        expect(first == again, "expected the same texts before and after another one")
        return
    steps = trial.steps([3])
    trial.steps([8])
    expect_close(trial.steps([3]), steps, "the same text marked before and after another one", within=0.0)


def batches_do_not_change_texts(trial: Trial) -> None:
    """A text is the same whether it is written alone or in a batch."""
    prompts = [trial.prompts[row] for row in _ROWS]
    together = trial.write(prompts, trial.bound, tokens=_SHORT)
    for i, prompt in enumerate(prompts):
        alone = trial.write([prompt], trial.bound, tokens=_SHORT, first_seed=i)[0]
        expect(alone == together[i], f"row {i}: expected the same in a batch of {len(prompts)} and alone")


def same_seeds_give_the_same_text(trial: Trial) -> None:
    """Prompt, seed and key determine a text: a second bound scheme writes it again."""
    prompts = trial.prompts[:4] if trial.scheme.needs.drafts else trial.prompts  # drafts are slow
    texts = (trial.write(prompts, bound, tokens=_SHORT) for bound in (trial.bound, trial.bind(trial.secret)))
    for i, (first, second) in enumerate(zip(*texts, strict=True)):
        expect(first == second, f"text {i}: expected the same text from the same prompt, seed and key")


def forbidden_tokens_stay_forbidden(trial: Trial) -> None:
    """A token of logit -inf keeps probability 0, and the others share all of it."""
    ids = torch.tensor([[50, 60, 70, 80]])
    if trial.scheme.needs.drafts:
        expect_error(lambda: trial.bound.session(ids), ConfigError, "a session")
        expect_error(lambda: trial.bound.processor(ids), ConfigError, "a logits processor")
        return
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


def bad_logits_are_rejected(trial: Trial) -> None:
    """Logits of another vocabulary, and NaN, are errors instead of a silent loss of the mark."""
    if trial.scheme.needs.drafts:
        raise unittest.SkipTest("the scheme sees no logits")
    ids = torch.tensor([[50, 60, 70]])
    session = trial.bound.session(ids, seeds=[1])
    expect_error(lambda: session(ids, torch.zeros(1, VOCABULARY - 100)), VocabularyError, "too few logits")
    bad = torch.zeros(1, VOCABULARY)
    bad[0, 3] = math.nan
    expect_error(lambda: trial.bound.session(ids, seeds=[1])(ids, bad), NumericalError, "NaN logits")


def devices_agree(trial: Trial) -> None:
    """CPU and GPU mark alike, so that text marked on one is detected on the other."""
    if not torch.cuda.is_available():
        raise unittest.SkipTest("needs CUDA")
    if trial.scheme.needs.drafts:
        raise unittest.SkipTest("the scheme reads texts and uses no device")
    for processor in (False, True):
        cpu = trial.steps(_ROWS, processor=processor)
        gpu = trial.steps(_ROWS, processor=processor, device="cuda")
        expect_close(gpu, cpu, "probabilities on GPU and CPU", within=1e-3)


# Detection


def detects_its_own_text(trial: Trial) -> None:
    """Most of the scheme's own texts are detected at a false-positive rate of 1%, without their prompts."""
    found = score_texts(trial.bound, trial.marked, fpr=_FPR)
    count = sum(detection.verdict is Verdict.MARKED for detection in found)
    expect(
        count >= 0.8 * len(found),
        f"expected 80% of {len(found)} marked texts of {trial.tokens} tokens to be detected at p < {_FPR}, "
        f"got {count}; median p {np.median([d.p_value for d in found]):.2g}",
    )


def scores_separate_marked_from_unmarked(trial: Trial) -> None:
    """Marked text has larger scores and z and smaller p-values, and p falls as z grows."""
    marked = score_texts(trial.bound, trial.marked)
    unmarked = score_texts(trial.bound, trial.nulls["the host's own text"])
    for name, sign in (("score", 1), ("z", 1), ("p_value", -1)):
        ours, theirs = ([sign * getattr(d, name) for d in group] for group in (marked, unmarked))
        auroc = mannwhitneyu(ours, theirs).statistic / (len(ours) * len(theirs))
        larger = "larger" if sign > 0 else "smaller"
        expect(
            auroc > 0.9,
            f"{name}: expected {larger} values on marked than on unmarked text, AUROC {auroc:.2f}",
        )
    both = [*marked, *unmarked]
    rank = spearmanr([d.z for d in both], [d.p_value for d in both]).statistic
    expect(rank < -0.9, f"expected p-values that fall as z grows, their rank correlation is {rank:.2f}")


def detections_are_complete(trial: Trial) -> None:
    """Every field of a detection is filled in, and each token score has the offsets of its text."""
    text, prompt = trial.marked[0], trial.prompts[0]
    length = len(trial.bound.tokenize([text])[0].ids)
    for test in (None, *trial.bound.tests):
        found = score_texts(trial.bound, [text], prompts=[prompt], fpr=0.05, test=test)[0]
        expected = {
            "test": test or trial.bound.tests[0],
            "fpr": 0.05,
            "scheme": trial.scheme.name,
            "key_fingerprint": trial.bound.fingerprint,
        }
        for name, value in expected.items():
            expect(getattr(found, name) == value, f"{name}: expected {value!r}, got {getattr(found, name)!r}")
        numbers = (found.p_value, found.z, found.score, found.effective_length)
        expect(all(map(math.isfinite, numbers)), f"expected finite numbers, got {numbers}")
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
            "tokens: expected scores of marked text to be positive on average",
        )


def batch_equals_single(trial: Trial) -> None:
    """A text gets the same result alone and in a batch of other lengths, with and without prompts."""
    words = trial.marked[3].split(" ")
    texts = [*trial.marked[:2], " ".join(words[: len(words) // 3]), trial.nulls["repetitive text"][0]]
    prompts = [None, trial.prompts[1], trial.prompts[3], None]
    together = score_texts(trial.bound, texts, prompts=prompts)
    alone = [
        score_texts(trial.bound, [text], prompts=[prompt])[0]
        for text, prompt in zip(texts, prompts, strict=True)
    ]
    _expect_same(together, alone, "in a batch and alone")


def prompt_is_context_only(trial: Trial) -> None:
    """A marked prompt does not make the text after it marked."""
    texts = trial.nulls["the host's own text"]
    found = score_texts(trial.bound, texts, prompts=trial.marked, fpr=_FPR)
    accused = sum(detection.is_marked for detection in found)
    # P(Binomial(16, 0.01) > 3) = 2e-5
    expect(
        accused <= 3,
        f"expected unmarked text after a marked prompt to be unmarked, {accused} of {len(found)} are marked",
    )
    lengths = [len(text.ids) for text in trial.bound.tokenize(texts)]
    for detection, length in zip(found, lengths, strict=True):
        expect(
            detection.tokens_scored <= length,
            f"tokens_scored: expected at most the text's {length}, without the prompt's, "
            f"got {detection.tokens_scored}",
        )


def short_texts_get_no_verdict(trial: Trial) -> None:
    """A text of one or two words is too short for a verdict."""
    for text in (" the", " the old"):
        found = score_texts(trial.bound, [text])[0]
        expect(found.verdict is Verdict.TOO_SHORT, f"{text!r}: expected too short, got {found.verdict.words}")


def bad_calls_are_rejected(trial: Trial) -> None:
    """Invalid texts and options raise dewmark's own errors."""

    def detect(text: str, **options: Any) -> Detection:  # noqa: ANN401 - whatever it takes
        return score_texts(trial.bound, [text], **options)[0]

    for text, what in (("", "an empty text"), ("a\ud800b", "a lone surrogate")):
        expect_error(lambda text=text: detect(text), InputError, what)  # type: ignore[misc]
    expect_error(lambda: detect("a text", fpr=1.5), ConfigError, "fpr = 1.5")
    expect_error(lambda: detect("a text", test="no such test"), UnknownNameError, "an unknown test")
    expect_error(
        lambda: score_texts(trial.bound, ["one", "two"], prompts=["x"]), InputError, "two texts, one prompt"
    )


def exported_detector_agrees(trial: Trial) -> None:
    """A detector that was written to a folder and loaded again agrees, without the key and the weights."""
    texts = [*trial.marked[:4], *trial.nulls["the host's own text"][:2]]
    folder = trial.folder / "exported"

    def no_weights() -> NoReturn:
        raise ModelError("a detector must not ask for the host's embeddings")

    Detector(trial.bound).save(folder)
    if trial.scheme.name in SCHEMES and not trial.scheme.needs.host_at_detection:
        detector = Detector.load(folder).scheme
    else:
        bundle = load_bundle(folder / "state")
        host = dataclasses.replace(trial.host.info, embeddings=no_weights)
        state = State(meta=bundle.meta, arrays=bundle.arrays)
        detector = trial.scheme.restore(state, host, trial.bound.fingerprint, trial.workspace)
    expect(detector.config_hash == trial.bound.config_hash, "config_hash: expected that of the export")
    _expect_same(score_texts(detector, texts), score_texts(trial.bound, texts), "after export")


def many_keys_equal_single_keys(trial: Trial) -> None:
    """A set of keys gives each text and key the same result as that key alone."""
    texts, names = trial.marked[:2], ("one", "two", "three")
    keys = [Key(trial.secret), *(Key(hashlib.sha256(name.encode()).digest()) for name in names)]
    bound = [trial.scheme.bind(key, trial.host.info, trial.workspace) for key in keys]
    readings = bound[0].read(bound[0].tokenize(texts), bound[0].tokenize([""] * len(texts)))
    together = trial.scheme.whole_under(keys, readings, fpr=DEFAULT_FPR, workspace=trial.workspace)
    if together is None:
        several = trial.scheme.bind_keys(keys, trial.host.info, trial.workspace)
        columns = [each.whole(readings, test=each.tests[0], fpr=DEFAULT_FPR) for each in several]
        together = [list(row) for row in zip(*columns, strict=True)]
    for i in range(len(texts)):
        alone = [each.whole(readings[i : i + 1], test=each.tests[0], fpr=DEFAULT_FPR)[0] for each in bound]
        _expect_same(together[i], alone, f"with {len(keys)} keys at once")


# Probability


def p_values_are_valid(trial: Trial) -> None:
    """On unmarked text of every kind, P(p ≤ a) ≤ a over keys."""
    for kind in trial.nulls:
        expect_valid(trial.p_values[kind], kind)


def wrong_keys_find_nothing(trial: Trial) -> None:
    """Text marked with another key counts as unmarked: P(p ≤ a) ≤ a."""
    expect_valid(trial.p_values["text marked with another key"], "text marked with another key")


def evidence_has_the_moments_it_claims(trial: Trial) -> None:
    """Over keys, sums of scores have mean 0 and the variance that the evidence claims.

    Each sum is divided by its claimed standard deviation (which scores count may depend on the key). The
    margins follow from the number of keys K: the mean of K numbers of variance 1 has standard deviation 1/√K,
    their sample variance √((kurtosis − 1)/K).
    """
    for kind, texts in trial.nulls.items():
        text, prompt = trial.bound.tokenize([texts[0], trial.prompts[0]])
        try:
            found = [evidence_of(bound, [text], [prompt])[0] for bound in trial.others]
        except ConfigError as reason:
            raise unittest.SkipTest(str(reason)) from None
        tokens = len(text.ids)
        for evidence in found:
            expect(
                len(evidence) > 0, f"{kind}: expected evidence in a text of {tokens} tokens, there is none"
            )
            expect(
                len(evidence.positions) == tokens and int(evidence.positions.max()) == evidence.pairs - 1,
                f"{kind}: expected positions to give the pair of each of {tokens} tokens, or -1",
            )
        # the whole sum, and one in which neighbouring pairs count against each other
        for what, sign in (("sum", 1.0), ("difference", -1.0)):
            standardized = []
            for evidence in found:
                weights = evidence.weights * np.where(np.arange(len(evidence)) % 2 == 0, 1.0, sign)
                weighted = dataclasses.replace(evidence, weights=weights)
                standardized.append(weighted.total / math.sqrt(score_variance(weighted)))
            sums = np.array(standardized)
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


CHECKS: tuple[Check, ...] = (
    describes_itself,
    config_round_trips,
    config_hash_names_the_configuration,
    keeps_its_secret,
    padding_changes_nothing,
    sessions_share_nothing,
    batches_do_not_change_texts,
    same_seeds_give_the_same_text,
    forbidden_tokens_stay_forbidden,
    bad_logits_are_rejected,
    devices_agree,
    detects_its_own_text,
    scores_separate_marked_from_unmarked,
    detections_are_complete,
    batch_equals_single,
    prompt_is_context_only,
    short_texts_get_no_verdict,
    bad_calls_are_rejected,
    exported_detector_agrees,
    many_keys_equal_single_keys,
    p_values_are_valid,
    wrong_keys_find_nothing,
    evidence_has_the_moments_it_claims,
)


# How a check says what it expected


def expect(holds: object, message: str) -> None:
    """Fail with a message that says what was expected."""
    if not holds:
        raise AssertionError(message)


def expect_close(found: ArrayLike, expected: ArrayLike, what: str, *, within: float) -> None:
    """Two arrays of the same shape, without NaN, differ by at most ``within``."""
    a, b = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    expect(a.shape == b.shape, f"{what}: expected shape {b.shape}, got {a.shape}")
    expect(not (np.isnan(a).any() or np.isnan(b).any()), f"{what}: expected numbers, got NaN")
    worst = float(np.max(np.abs(a - b), initial=0.0))
    expect(worst <= within, f"{what}: expected the same within {within:g}, they differ by {worst:.3g}")


def expect_error(call: Callable[[], object], error: type[DewmarkError], what: str) -> None:
    """A call raises this error of dewmark's own."""
    with suppress(error):
        call()
        raise AssertionError(f"{what}: expected {error.__name__}, got no error")


def expect_valid(p_values: Iterable[float], what: str) -> None:
    """Independent p-values of a true null hypothesis satisfy P(p ≤ a) ≤ a.

    The number of p-values up to a is compared with the quantile of Binomial(n, a) that a valid test exceeds
    with probability 1e-4 at most.
    """
    p: Sequence[float] = list(p_values)
    expect(all(0.0 <= value <= 1.0 for value in p), f"{what}: expected p-values in [0, 1]")
    for level in _LEVELS:
        found, most = sum(value <= level for value in p), int(binom.ppf(1.0 - _FALSE_ALARM, len(p), level))
        expect(
            found <= most,
            f"{what}: expected at most {most} of {len(p)} p-values up to {level:g}, got {found}: "
            "too many false positives",
        )


def _expect_same(found: Sequence[Detection], expected: Sequence[Detection], what: str) -> None:
    numbers: tuple[tuple[str, Callable[[Detection], float], float], ...] = (
        ("z", lambda d: d.z, 1e-3),
        ("log p", lambda d: math.log(max(d.p_value, 1e-300)), 0.02),
        ("tokens_scored", lambda d: d.tokens_scored, 0.0),
    )
    for name, number, within in numbers:
        expect_close([*map(number, found)], [*map(number, expected)], f"{name} {what}", within=within)
