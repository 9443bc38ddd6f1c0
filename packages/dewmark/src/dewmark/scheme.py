"""The contract that every watermarking scheme keeps.

Three objects, each with one lifetime:

- A `Scheme` is a frozen dataclass whose fields are its configuration and nothing else.
- A `BoundScheme` is a scheme joined to a key and a host's vocabulary. It is immutable and shared by threads;
  it marks through sessions, writers and rows, and it detects.
- A `Session` (`dewmark.mark`) marks one batch of texts and ends with it.

A bound scheme sees a host only through `HostInfo`: tokenizer, vocabulary size, input embeddings. Scoring
therefore never runs the host, unless the scheme's `Needs` say so.

**Detection** is told in `dewmark.detect`. A scheme reads texts (`BoundScheme.read`), gives their evidence
under its key (`evidence`), and tests that of a whole text or of a passage (`test`).

What only some schemes can do is in `dewmark.capabilities`.
"""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from dewmark import config as cfg
from dewmark.decoding import Decoding
from dewmark.encoders.base import encoder_languages
from dewmark.errors import ArtifactError, ConfigError, InputError
from dewmark.registry import unknown_name
from dewmark.room import NO_ROOM, Room
from dewmark.text.cleaning import tokenize_cleaned
from dewmark.text.languages import LanguagePolicy
from dewmark.types import Detection, Seeds, TokenScore, TokenScores
from dewmark.verdict import DEFAULT_FPR, LEAST_P, least_length, verdict_of
from dewmark.workspace import Expectations, HostInfo, NoReader, Texts, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

    from dewmark.core.keys import Key
    from dewmark.mark import Rows, Session, Writer
    from dewmark.policy import Policy
    from dewmark.stats.evidence import Evidence
    from dewmark.stats.key_test import Statistic

__all__ = [
    "BoundScheme",
    "Needs",
    "Reading",
    "Scheme",
    "State",
    "check_test",
    "check_text",
    "check_texts",
    "for_languages",
    "make_detection",
    "reader_name",
    "token_scores",
]


@dataclass(frozen=True, repr=False)
class State:
    """Everything that a stored detector needs from a bound scheme. As secret as the key.

    Asking for an entry that is missing raises `ArtifactError`.
    """

    meta: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "meta", _Stored(self.meta))
        object.__setattr__(self, "arrays", _Stored(self.arrays))


class _Stored(dict[str, Any]):
    def __missing__(self, name: str) -> NoReturn:
        raise ArtifactError(f"the stored detector lacks {name!r}; export it again")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a scheme requires; a mismatch is rejected before anything runs.

    ``final_distribution`` says that its sessions must see the distribution after temperature, top-k and
    top-p, instead of the host's own logits. ``drafts`` says that it has no sessions and chooses between
    drafts of sentences.
    """

    embeddings: bool = False
    encoder: bool = False
    artifact: bool = False
    host_at_detection: bool = False
    sampling: bool = True
    final_distribution: bool = False
    drafts: bool = False


@dataclass(frozen=True)
class Scheme(ABC):
    """A watermarking scheme's configuration. Subclasses are frozen dataclasses.

    The range of a field is a note on its type (`dewmark.config.coerced`).
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[Needs] = Needs()
    # Whether the key may have members, payloads and epochs
    reads_rings: ClassVar[bool] = False
    # Whether it detects without the host, even without its tokenizer
    host_free: ClassVar[bool] = False
    # Whether detection gains from a language model that reads the text (`Expectations`)
    takes_reader: ClassVar[bool] = False
    # Whether unrelated texts have nearly independent scores under one key in every language: if so, texts in
    # languages that it does not know get verdicts too, if they have enough evidence
    language_free: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, value in cfg.coerced(self).items():
            object.__setattr__(self, name, value)  # 2 and 2.0 are one configuration, with one hash
        self.validate()

    def validate(self) -> None:  # noqa: B027 - the ranges of most fields are notes on their types
        """Raise `ConfigError` if fields do not go together."""

    @abstractmethod
    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> BoundScheme:
        """Join the scheme to a key and a host's vocabulary; may build and cache tables."""

    @abstractmethod
    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundScheme:
        """Rebuild a detector from what `BoundScheme.state` returned; it need not be able to mark."""

    def whole_under(
        self, keys: Sequence[Key], readings: Sequence[Reading], *, fpr: float, workspace: Workspace
    ) -> list[list[Detection]] | None:
        """For each text the result under each of many keys, if there is a faster way than one by one.

        At least the best of a text has token scores.
        """
        return None

    def check_key(self, key: Key) -> None:
        """Raise `ConfigError` if the key has members, payloads or epochs that the scheme does not read."""
        if not key.is_plain and not self.reads_rings:
            raise ConfigError(
                f"{self.name} takes a plain key, and this one ({key.fingerprint}) has a "
                "ring, payloads or epochs: make another with: dewmark key new --out FILE"
            )

    def bind_keys(self, keys: Sequence[Key], host: HostInfo, workspace: Workspace) -> Iterator[BoundScheme]:
        """Bind the scheme to several keys that will detect in the same texts."""
        for key in keys:
            yield self.bind(key, host, workspace)

    def check_reader(self, reader: Expectations | None) -> None:
        """Raise `ConfigError` for a reader that the scheme makes no use of."""
        if not isinstance(reader, NoReader | None) and not self.takes_reader:
            raise ConfigError(f"{self.name} makes no use of a reader, only dew does: leave the reader out")

    @property
    def languages(self) -> frozenset[str] | None:
        """The languages that it knows; None if it does not depend on them, or if its encoder does not say."""
        encoder = getattr(self, "encoder", None)
        return encoder_languages(encoder) if isinstance(encoder, str) else None

    def with_settings(self, settings: dict[str, object]) -> Scheme:
        """A copy with some fields changed, by their public names."""
        return cfg.replace(self, settings)

    def to_dict(self) -> dict[str, object]:
        """The configuration as plain values."""
        return cfg.to_dict(self)


@dataclass(frozen=True)
class Reading:
    """A text and its prompt as a scheme reads them, whatever the key: cleaned, and split into units."""

    text: Tokenized
    prompt: Tokenized


class BoundScheme(ABC):
    """A scheme joined to a key and a host's vocabulary: it marks and it detects.

    ``tests`` names the statistical tests it offers, the default first. ``expectations`` read the texts that
    are detected, if any do. ``artifact_identity`` names the scheme's artifact, if it has one: two artifacts
    are two configurations. ``policy`` says what marking leaves out.
    """

    tests: ClassVar[tuple[str, ...]]
    expectations: Expectations | None = None
    policy: Policy | None = None
    artifact_identity: str | None = None

    def __init__(self, scheme: Scheme, host: HostInfo, fingerprint: str) -> None:
        self.scheme, self.host, self.fingerprint = scheme, host, fingerprint
        self.needs = scheme.needs
        self.languages = LanguagePolicy(known=scheme.languages, every=scheme.language_free)

    @property
    def config_hash(self) -> str:
        """Identifies scheme, parameters, key and (unless any will do) host, without revealing them.

        A reader changes what is detected, so it counts too.
        """
        host = "" if self.scheme.host_free else self.host.identity
        parts = [self.scheme.name, self.scheme.to_dict(), host, self.fingerprint]
        if self.artifact_identity is not None:
            parts.append(self.artifact_identity)
        if self.expectations is not None:
            parts.append({"reader": self.expectations.identity})
        return cfg.config_hash(*parts)

    # Marking

    @abstractmethod
    def session(
        self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *, seeds: Seeds = None
    ) -> Session:
        """Start marking a batch of prompts, (batch, length), padded on the left.

        ``attention_mask`` (batch, length) marks real tokens; without it, a leading run of the tokenizer's
        padding id counts as padding. ``seeds``, one per row, fix any unkeyed randomness that the scheme
        needs; without them it is fresh.
        """

    def writer(
        self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *, seeds: Seeds = None
    ) -> Writer:
        """Start writing marked texts from a batch of prompts, as `session`: the way in of every host."""
        from dewmark.mark import Writer
        from dewmark.sampling import fresh_seeds

        seeds = fresh_seeds(len(prompt_ids), seeds)
        session = self.session(prompt_ids, attention_mask, seeds=seeds)
        exemptions = None if self.policy is None else self.policy.exemptions(prompt_ids.tolist(), self.host)
        final = self.needs.final_distribution
        return Writer(session, prompt_ids, seeds=seeds, final=final, exemptions=exemptions)

    def rows(self, device: torch.device) -> Rows[Any]:
        """Mark the texts of an engine's changing batch, by default with a writer for each."""
        import torch

        from dewmark.mark import WriterRows

        return WriterRows(
            lambda prompt, seed: self.writer(prompt, torch.ones_like(prompt), seeds=[seed]), device
        )

    def processor(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Seeds = None,
        decoding: Decoding = Decoding(),
    ) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """A logits processor for any ``model.generate(logits_processor=[…])``.

        Such a processor runs before the model's own temperature, top-k and top-p. A scheme that needs the
        final distribution therefore takes them from ``decoding``: it applies them, draws the token, and
        leaves only that one finite, so that nothing later can change it. Other schemes ignore ``decoding``.
        """
        writer = self.writer(prompt_ids, attention_mask, seeds=seeds)
        if self.needs.final_distribution:
            decoding.check_samples()
        return functools.partial(writer.logits, decoding=decoding)

    def under_policy(self, policy: Policy | None) -> Self:
        """The same scheme, whose writers leave out what the policy says."""
        return self._with(policy=policy)

    def member_of(self, seed: int) -> int | None:
        """The member of the key's ring that marks a text with this seed, if the key has members."""
        return None

    def _with(self, **attributes: object) -> Self:
        """The same scheme with other attributes; this one stays as it is."""
        made = copy.copy(self)
        vars(made).update(attributes)
        return made

    def unmarked_reason(self, room: Room | None, *, fpr: float = DEFAULT_FPR) -> str | None:
        """Why a text that was written with the mark counts as unmarked; None if it is marked.

        ``room`` is what its decoding left, if that is known, and ``fpr`` the level at which it is judged.
        """
        if room is None or room.suffices(fpr=fpr, reader=self.expectations):
            return None
        return NO_ROOM

    # Detection

    def reading_with(self, expectations: Expectations | None) -> Self:
        """The same detector, but a language model (or none) reads the texts."""
        self.scheme.check_reader(expectations)
        changed = copy.copy(self)
        changed.expectations = expectations if self.scheme.takes_reader else None
        return changed

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Split texts into the units that the scheme scores, by default the host's tokens.

        Markup and disguises are removed first (`dewmark.text.cleaning`); offsets are those in the given text.
        """
        return tokenize_cleaned(self.host.tokenizer, texts)

    def read(self, texts: Texts, prompts: Texts) -> list[Reading]:
        """Read texts, each after its prompt; no key is involved."""
        return [Reading(*each) for each in zip(texts, prompts, strict=True)]

    @property
    def reads_as(self) -> Hashable:
        """Equal for detectors that read alike, so that one reading serves them all."""
        return (type(self).tokenize, type(self).read, self.host.identity)

    def evidence(self, readings: Sequence[Reading], *, test: str | None = None) -> Iterable[Evidence] | None:
        """The evidence of each reading under the key, for one of the tests; None if the scheme has none."""
        return None

    @property
    def finds_passages(self) -> bool:
        """Whether passages can be tested by themselves, by their `evidence`."""
        return type(self).evidence is not BoundScheme.evidence

    def views(self, evidence: Evidence) -> Sequence[Evidence]:
        """By what the passages of a text are searched: sums that share the level alike.

        The first is its evidence. How many there are depends on the text and on what the detector knows.
        """
        return [evidence]

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """Apply one of the tests to the evidence of a text, or of a passage of it.

        A test that simulates needs to know the level ``fpr``: smaller p-values take longer.
        """
        from dewmark.stats.key_test import key_test  # SciPy takes long to import, and many commands need none

        return key_test(evidence)

    def whole(self, readings: Sequence[Reading], *, test: str, fpr: float) -> list[Detection]:
        """The result of each text as a whole, for this key alone."""
        found = self.evidence(readings, test=test)
        if found is None:
            raise ConfigError(f"{self.scheme.name} has no detector")
        return [
            self._detection(each, evidence, self.test(evidence, test=test, fpr=fpr), test=test, fpr=fpr)
            for each, evidence in zip(readings, found, strict=True)
        ]

    @property
    def n_hypotheses(self) -> int:
        """The uses of the key (members, payloads, epochs) among which detection chooses."""
        return 1

    def _mean_score(self, evidence: Evidence) -> float:
        """The score that a detection reports: the mean over the scored units."""
        weight = float(evidence.weights[: evidence.pairs].sum())
        return evidence.total / weight if weight else 0.0

    def _detection(
        self, reading: Reading, evidence: Evidence, statistic: Statistic, *, test: str, fpr: float
    ) -> Detection:
        """The result for one text."""
        return make_detection(
            evidence,
            statistic,
            score=self._mean_score(evidence),
            test=test,
            fpr=fpr,
            scheme=self.scheme.name,
            fingerprint=self.fingerprint,
            tokens=token_scores(reading.text, evidence),
            reader=reader_name(self),
        )

    @abstractmethod
    def state(self) -> State:
        """Everything detection needs besides the tokenizer. As secret as the key."""


def for_languages(bound: BoundScheme, languages: LanguagePolicy) -> BoundScheme:
    """The same detector, but it judges these languages."""
    changed = copy.copy(bound)
    changed.languages = languages
    return changed


def reader_name(bound: BoundScheme) -> str | None:
    """The name of the language model that reads the texts, if one does."""
    return None if bound.expectations is None else bound.expectations.name


def check_test(test: str | None, known: Sequence[str]) -> str:
    """The test to use: ``test``, or the scheme's default."""
    if test is None:
        return known[0]
    if test not in known:
        raise unknown_name("test", test, known)
    return test


def check_texts(
    texts: Sequence[str], prompts: Sequence[str | None] | None, fpr: float, *, blank: bool = False
) -> list[str]:
    """Validate a detector's input; returns the prompts with None replaced by ''. Blank texts may pass."""
    level: object = fpr  # whatever it is
    if not isinstance(level, float | int) or not 0.0 < level < 1.0:
        raise ConfigError(f"fpr must lie in (0, 1), got {fpr!r}")
    for name, value in (("texts", texts), ("prompts", prompts)):
        if isinstance(value, str):
            raise InputError(f"{name} must be a list of texts, got one text: put it into a list")
    given = [None] * len(texts) if prompts is None else list(prompts)
    if len(given) != len(texts):
        raise InputError(f"{len(texts)} texts but {len(given)} prompts: give one prompt per text, or none")
    for i, text in enumerate(texts):
        if not (blank and str(text).strip() == ""):
            check_text(text, f"text {i}" if len(texts) > 1 else "the text")
    return [prompt or "" for prompt in given]


def check_text(text: str, what: str) -> None:
    """Raise `InputError` for empty text and lone surrogates."""
    if not isinstance(text, str):
        raise InputError(f"{what} must be a string, got {type(text).__name__}")
    if not text.strip():
        raise InputError(f"{what} is empty: there is nothing to score")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} contains a lone surrogate at character {error.start}: decode it properly"
        ) from None


def make_detection(
    evidence: Evidence,
    statistic: Statistic,
    *,
    score: float,
    test: str,
    fpr: float,
    scheme: str,
    fingerprint: str,
    tokens: Sequence[TokenScore] = (),
    reader: str | None = None,
    carrying: float | None = None,
) -> Detection:
    """Put a test's result and its verdict together; every scheme's detections are made here."""
    return Detection(
        verdict=verdict_of(statistic.p_value, statistic.effective_length, fpr, least=least_length(reader)),
        p_value=max(statistic.p_value, LEAST_P),
        z=statistic.z,
        score=score,
        effective_length=statistic.effective_length,
        tokens_scored=int(np.count_nonzero(evidence.positions >= 0)),
        test=test,
        fpr=fpr,
        scheme=scheme,
        key_fingerprint=fingerprint,
        tokens=tokens,
        reader=reader,
        carrying=carrying,
    )


def token_scores(text: Tokenized, evidence: Evidence) -> TokenScores:
    """Every unit of the text with what its evidence shows of it, and its offsets."""
    scores, scored = evidence.shown
    return TokenScores(text.text, text.offsets, scores.tolist(), scored.tolist())
