"""The contract that every watermarking scheme keeps.

Three objects, each with one lifetime:

- A `Scheme` is a frozen dataclass whose fields are its configuration and nothing else.
- A `BoundScheme` is a scheme joined to a key and a host's vocabulary. It is immutable and shared by threads;
  it marks through sessions, and it detects.
- A `Session` (`dewmark.sampling`) marks one batch of texts and ends with it.

A bound scheme sees a host only through `HostInfo`: tokenizer, vocabulary size, input embeddings. Scoring
therefore never runs the host, unless the scheme's `Needs` say so.

**Detection** is a template. `BoundScheme.detect_batch` checks the texts, tokenizes them and builds each
`Detection`; a scheme fills in `BoundScheme.test_texts`, which returns the evidence and the test's result for
each text.

**Marking by drafts.** A scheme whose `Needs` declare ``drafts`` marks whole sentences. It offers a `Drafts`
object instead of a session: the host writes several drafts of each row's next sentence, asks where they end
and which of them carry the mark, and continues with the first that does
(`dewmark.hosts.transformers.drafting`).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dewmark import config as cfg
from dewmark.decoding import Decoding
from dewmark.encoders.languages import encoder_languages
from dewmark.errors import ArtifactError, ConfigError, InputError
from dewmark.registry import unknown_name
from dewmark.text.cleaning import tokenize_cleaned
from dewmark.text.languages import LanguagePolicy
from dewmark.types import Detection, TokenScore, TokenScores, Verdict
from dewmark.workspace import Expectations, HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

    from dewmark.core.keys import Key
    from dewmark.sampling import Session
    from dewmark.serving_rows import Rows
    from dewmark.stats.evidence import Evidence
    from dewmark.stats.key_test import Statistic

__all__ = [
    "DEFAULT_FPR",
    "BoundScheme",
    "Drafts",
    "Follower",
    "Needs",
    "Scheme",
    "State",
    "check_test",
    "check_text",
    "check_texts",
    "decide",
    "make_detection",
    "text_chunks",
    "token_scores",
]

DEFAULT_FPR = 0.01
MIN_EFFECTIVE_LENGTH = 16.0
MIN_READ_LENGTH = 6.0
"""The same with a reader: a unit then counts for as much as its place left open."""
UNITS_PER_CHUNK = 100_000


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

    ``final`` says that its sessions must see the final distribution, after temperature, top-k and top-p,
    instead of the host's own logits. ``drafts`` says that it has no sessions and chooses between drafts of
    sentences.
    """

    embeddings: bool = False
    encoder: bool = False
    artifact: bool = False
    host_at_detection: bool = False
    sampling: bool = True
    final: bool = False
    drafts: bool = False


@dataclass(frozen=True)
class Scheme(ABC):
    """A watermarking scheme's configuration. Subclasses are frozen dataclasses and validate in `validate`."""

    name: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[Needs] = Needs()

    def __post_init__(self) -> None:
        for name, value in cfg.coerced(self).items():
            object.__setattr__(self, name, value)  # 2 and 2.0 are one configuration, with one hash
        self.validate()

    @abstractmethod
    def validate(self) -> None:
        """Raise `ConfigError` if a field is out of range."""

    @abstractmethod
    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> BoundScheme:
        """Join the scheme to a key and a host's vocabulary; may build and cache tables."""

    @abstractmethod
    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundScheme:
        """Rebuild a detector from what `BoundScheme.state` returned; it need not be able to mark."""

    def detect_keys(
        self,
        keys: Sequence[Key],
        texts: Sequence[str],
        host: HostInfo,
        workspace: Workspace,
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[list[Detection]]:
        """For each text one detection per key, in the order of the keys; at least the best has token scores.

        By default every key detects on its own; a scheme can override this, or `bind_keys`, to share work.
        """
        columns = [
            bound.detect_batch(texts, prompts=prompts, fpr=fpr, test=test)
            for bound in self.bind_keys(keys, host, workspace)
        ]
        return [list(row) for row in zip(*columns, strict=True)]

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

    @property
    def needs_as_set(self) -> Needs:
        """What the scheme requires with its present settings."""
        return self.needs

    @property
    def reads_rings(self) -> bool:
        """Whether the key may have members, payloads and epochs."""
        return False

    @property
    def host_free(self) -> bool:
        """Whether it detects without the host, even without its tokenizer."""
        return False

    @property
    def takes_reader(self) -> bool:
        """Whether detection gains from a language model that reads the text (`Expectations`)."""
        return False

    def check_reader(self, reader: Expectations | None) -> None:
        """Raise `ConfigError` for a reader that the scheme makes no use of."""
        if reader is not None and not self.takes_reader:
            raise ConfigError(
                f"{self.name} makes no use of a reader, only dew and dew-open do: leave the reader out"
            )

    @property
    def languages(self) -> frozenset[str] | None:
        """The languages that it knows; None if it does not depend on them, or if its encoder does not say."""
        encoder = getattr(self, "encoder", None)
        return encoder_languages(encoder) if isinstance(encoder, str) else None

    @property
    def language_free(self) -> bool:
        """Whether unrelated texts have nearly independent scores under one key in every language.

        If so, texts in languages that it does not know get verdicts too, if they have enough evidence.
        """
        return False

    def with_settings(self, settings: dict[str, object]) -> Scheme:
        """A copy with some fields changed, by their public names."""
        return cfg.replace(self, settings)

    def to_dict(self) -> dict[str, object]:
        """The configuration as plain values."""
        return cfg.to_dict(self)


class BoundScheme(ABC):
    """A scheme joined to a key and a host's vocabulary: it marks and it detects.

    ``tests`` names the statistical tests it offers, the default first. ``artifact_identity`` identifies the
    artifact it uses, if any: two artifacts are two configurations. ``units_per_chunk`` bounds the units that
    detection holds in memory at once. ``expectations`` read the texts that are detected, if any do.
    """

    tests: ClassVar[tuple[str, ...]]
    artifact_identity: str | None = None
    expectations: Expectations | None = None
    units_per_chunk: int = UNITS_PER_CHUNK

    def __init__(self, scheme: Scheme, host: HostInfo, fingerprint: str) -> None:
        self.scheme = scheme
        self.host = host
        self.fingerprint = fingerprint
        self.languages = LanguagePolicy(known=scheme.languages, every=scheme.language_free)

    @property
    def needs(self) -> Needs:
        """What the scheme requires with its present settings."""
        return self.scheme.needs_as_set

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

    # Members, payloads and epochs

    def writing(self, *, member: int | None = None, payload: int | None = None) -> BoundScheme:
        """The same scheme, marking as one member of the key's ring and with a payload."""
        raise ConfigError(f"{self.scheme.name} carries neither members nor payloads: use dew")

    def marking_as(self, *, member: int | None = None, payload: int | None = None) -> BoundScheme:
        """The scheme itself, or `writing` if a member or a payload is given."""
        return self if member is None and payload is None else self.writing(member=member, payload=payload)

    def by_text(self, seeds: Sequence[int]) -> list[tuple[BoundScheme, list[int]]]:
        """The schemes that mark texts with these seeds, each with the places of its texts."""
        return [(self, list(range(len(seeds))))]

    def public(self) -> BoundScheme:
        """The part of this detector that may be published: it detects, but attributes nothing."""
        raise ConfigError(f"{self.scheme.name} has no half that could be published: use dew")

    @property
    def tried(self) -> int:
        """The number of members, payloads and epochs among which detection chooses."""
        return 1

    # Marking

    @abstractmethod
    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts, (batch, length), padded on the left.

        ``attention_mask`` (batch, length) marks real tokens; without it, a leading run of the tokenizer's
        padding id counts as padding. ``seeds``, one per row, fix any unkeyed randomness that the scheme
        needs; without them it is fresh.
        """

    def rows(self, device: torch.device) -> Rows:
        """Mark for engines whose batches change from step to step; by default with one session per row."""
        import torch

        from dewmark.serving_rows import SessionRows

        def open_session(prompt: torch.Tensor, seed: int) -> Session:
            return self.session(prompt, torch.ones_like(prompt), seeds=[seed])

        return SessionRows(open_session, device, final=self.needs.final)

    def processor(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
        decoding: Decoding = Decoding(),
    ) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """A logits processor for any ``model.generate(logits_processor=[…])``.

        Such a processor runs before the model's own temperature, top-k and top-p. A scheme that needs the
        final distribution therefore takes them from ``decoding``: it applies them, draws the token, and
        leaves only that one finite, so that nothing later can change it. Other schemes ignore ``decoding``.
        """
        session = self.session(prompt_ids, attention_mask, seeds=seeds)
        if not self.needs.final:
            return session
        from dewmark.sampling import SessionProcessor

        return SessionProcessor(session, rows=len(prompt_ids), seeds=seeds, decoding=decoding, final=True)

    def drafts(self, prompts: Sequence[str]) -> Drafts:
        """Start choosing the sentences that follow these prompts, if the scheme's needs say ``drafts``."""
        raise ConfigError(f"{self.scheme.name} marks token by token: use its session")

    def finished(self, texts: Sequence[str], *, seeds: Sequence[int]) -> None:  # noqa: B027 - optional
        """Called by hosts after every batch with the finished texts and their seeds.

        A scheme that keeps records does so here. With a `processor` in your own loop, call it yourself.
        """

    # Detection

    def judging(self, languages: LanguagePolicy) -> Self:
        """The same detector, but it judges these languages."""
        changed = copy.copy(self)
        changed.languages = languages
        return changed

    def reading_with(self, expectations: Expectations | None) -> Self:
        """The same detector, but a language model (or none) reads the texts."""
        self.scheme.check_reader(expectations)
        changed = copy.copy(self)
        changed.expectations = expectations
        return changed

    @property
    def least_effective(self) -> float:
        """The effective length that a verdict needs."""
        return MIN_EFFECTIVE_LENGTH if self.expectations is None else MIN_READ_LENGTH

    @property
    def reader_name(self) -> str | None:
        """The name of the language model that reads the texts, if one does."""
        return None if self.expectations is None else self.expectations.name

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Split texts into the units that the scheme scores, by default the host's tokens.

        Markup and disguises are removed first (`dewmark.text.cleaning`); offsets are those in the given text.
        """
        return tokenize_cleaned(self.host.tokenizer, texts)

    def detect(
        self, text: str, *, prompt: str | None = None, fpr: float = DEFAULT_FPR, test: str | None = None
    ) -> Detection:
        """Score one completion."""
        return self.detect_batch([text], prompts=[prompt], fpr=fpr, test=test)[0]

    def detect_batch(
        self,
        texts: Sequence[str],
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[Detection]:
        """Score completions. A prompt, if given, is context only: it is never scored itself."""
        test = check_test(test, self.tests)
        starts = check_texts(texts, prompts, fpr)
        tokenized, before = self.tokenize(texts), self.tokenize(starts)
        detections: list[Detection] = []
        for part in text_chunks(tokenized, units=self.units_per_chunk):
            found = self.test_texts(tokenized[part], before[part], test=test, fpr=fpr)
            detections += [
                self.detection(text, *result, test=test, fpr=fpr)
                for text, result in zip(tokenized[part], found, strict=True)
            ]
        return self.languages.judge(texts, detections)

    def follow(self, *, prompt: str | None = None, fpr: float = DEFAULT_FPR) -> Follower:
        """Watch a text while it arrives; its p-value is valid whenever you stop."""
        raise ConfigError(f"{self.scheme.name} does not follow streams: use dew, or detect the whole text")

    def test_texts(
        self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized], *, test: str, fpr: float
    ) -> Iterable[tuple[Evidence, Statistic]]:
        """The evidence of each text after its prompt, and the result of the named test.

        A test that simulates needs to know the level ``fpr``: smaller p-values take longer.
        A scheme that cannot put its detection into this form overrides `detect_batch`.
        """
        raise ConfigError(f"{self.scheme.name} does not test texts one by one: call detect_batch")

    def evidence(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Evidence]:
        """The evidence of tokenized texts, each after its prompt, for scans and tests over many keys."""
        raise ConfigError(
            f"{self.scheme.name} has no known covariance of token scores over keys, which this needs: "
            "use another scheme, or detect with an empirical calibration"
        )

    def mean_score(self, evidence: Evidence) -> float:
        """The score that a detection reports: the mean over the scored units."""
        weight = float(evidence.weights.sum())
        return evidence.total / weight if weight else 0.0

    def detection(
        self, text: Tokenized, evidence: Evidence, statistic: Statistic, *, test: str, fpr: float
    ) -> Detection:
        """The result for one text."""
        return make_detection(
            evidence,
            statistic,
            score=self.mean_score(evidence),
            test=test,
            fpr=fpr,
            scheme=self.scheme.name,
            fingerprint=self.fingerprint,
            tokens=token_scores(text, evidence),
            reader=self.reader_name,
        )

    @abstractmethod
    def state(self) -> State:
        """Everything detection needs besides the tokenizer. As secret as the key."""


class Follower(Protocol):
    """Watches one text while it grows; the p-value so far is valid whenever you stop."""

    fpr: float

    @property
    def words(self) -> int:
        """The number of words read."""

    @property
    def log_e(self) -> float:
        """The logarithm of the e-process, whose mean over keys is at most 1 on unmarked text."""

    @property
    def p_value(self) -> float:
        """The p-value so far."""

    @property
    def is_marked(self) -> bool:
        """Whether the p-value has reached the level."""

    @property
    def origin(self) -> dict[str, int | str | None]:
        """The ``member``, ``payload`` and ``epoch`` that fit, None where the text does not tell."""

    def update(self, piece: str) -> float:
        """Read the next piece of the text; its last word may go on in the next piece."""

    def finish(self) -> float:
        """The text has ended: read its last word, too."""


class Drafts(ABC):
    """Judges drafts of the sentences of one batch of texts, and ends with the batch.

    ``tries`` bounds the drafts of one sentence. ``at_once`` is how many of them a host may write together,
    which affects the time it takes and nothing else. A draft is text that would follow what the row already
    holds.
    """

    tries: int
    at_once: int

    @abstractmethod
    def end(self, row: int, draft: str, *, last: bool = False) -> int | None:
        """How many characters of the draft complete its sentence; None if it is not (yet certainly) complete.

        ``last`` says that nothing can follow the draft.
        """

    @abstractmethod
    def judge(self, rows: Sequence[int], drafts: Sequence[str]) -> list[float]:
        """A score for each draft of a whole sentence, all in one call: it passes above 0, larger is better.

        -inf means that the draft changes a sentence that was accepted before.
        """

    @abstractmethod
    def accept(self, row: int, draft: str) -> None:
        """The row continues with this draft, which was judged before."""


def check_test(test: str | None, known: Sequence[str]) -> str:
    """The test to use: ``test``, or the scheme's default."""
    if test is None:
        return known[0]
    if test not in known:
        raise unknown_name("test", test, known)
    return test


def check_texts(texts: Sequence[str], prompts: Sequence[str | None] | None, fpr: float) -> list[str]:
    """Validate a detector's input; returns the prompts with None replaced by ''."""
    if not 0.0 < fpr < 1.0:
        raise ConfigError(f"fpr must lie in (0, 1), got {fpr}")
    given = [None] * len(texts) if prompts is None else list(prompts)
    if len(given) != len(texts):
        raise InputError(f"{len(texts)} texts but {len(given)} prompts: give one prompt per text, or none")
    for i, text in enumerate(texts):
        check_text(text, f"text {i}" if len(texts) > 1 else "the text")
    return [prompt or "" for prompt in given]


def check_text(text: str, what: str) -> None:
    """Raise `InputError` for empty text, NUL characters and lone surrogates."""
    if not isinstance(text, str):
        raise InputError(f"{what} must be a string, got {type(text).__name__}")
    if not text.strip():
        raise InputError(f"{what} is empty: there is nothing to score")
    if "\x00" in text:
        raise InputError(f"{what} contains NUL characters and looks like binary data: give plain text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} contains a lone surrogate at character {error.start}: decode it properly"
        ) from None


def decide(
    p_value: float, effective_length: float, fpr: float, *, least: float = MIN_EFFECTIVE_LENGTH
) -> Verdict:
    """The verdict at level ``fpr``; a text with too few independent tokens is too short for one."""
    if effective_length < least:
        return Verdict.TOO_SHORT
    return Verdict.MARKED if p_value <= fpr else Verdict.NOT_MARKED


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
) -> Detection:
    """Put a test's result and its verdict together; every scheme's detections are made here."""
    least = MIN_EFFECTIVE_LENGTH if reader is None else MIN_READ_LENGTH
    return Detection(
        verdict=decide(statistic.p_value, statistic.effective_length, fpr, least=least),
        p_value=statistic.p_value,
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
    )


def token_scores(text: Tokenized, evidence: Evidence) -> TokenScores:
    """Every unit of the text with its alignment and its offsets."""
    scores = np.append(evidence.alignments, 0.0)[evidence.positions].tolist()
    return TokenScores(text.text, text.offsets, scores, (evidence.positions >= 0).tolist())


def text_chunks(texts: Sequence[Tokenized], *, units: int) -> Iterator[slice]:
    """Slices of at most about ``units`` units each, so that memory does not grow with the batch."""
    start = size = 0
    for i, text in enumerate(texts):
        if i > start and size + len(text.ids) > units:
            yield slice(start, i)
            start, size = i, 0
        size += len(text.ids)
    if start < len(texts):
        yield slice(start, len(texts))
