"""The contract that every watermarking scheme keeps.

Three objects, each with one lifetime:

- a `Scheme` is a frozen dataclass: its fields are its configuration, nothing else. It lives for ever.
- a `BoundScheme` is a scheme with a key and a host's vocabulary: immutable, shared by threads. It marks
  (through sessions) and it scores.
- a `Session` marks one batch of texts and dies with it, so nothing leaks from text to text.

A bound scheme sees a host only through `HostInfo`: tokenizer, vocabulary size, input embeddings. Scoring
therefore never runs the host, unless the scheme's `Needs` declare it.

The second way of marking: a scheme chooses between drafts of the next sentence, which a host writes.

A scheme whose `Needs` declare ``drafts`` cannot say anything about one token's logits. For a batch of texts
it offers a `Drafts` object instead; the host writes several drafts of each row's next sentence, asks where
they end and which of them carry the mark, and goes on with the first that does.

Boundary: the contract only. `dewmark.hosts.transformers.drafting` drives it, `dewmark.baselines` fill it in.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from dewmark import config as cfg
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, InputError
from dewmark.registry import unknown_name
from dewmark.types import Detection, Verdict
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

    from dewmark.core.keys import Key
    from dewmark.sampling import Rows
    from dewmark.stats.evidence import Evidence

__all__ = [
    "BoundScheme",
    "Drafts",
    "Needs",
    "Scheme",
    "Session",
    "State",
    "check_test",
    "check_text",
    "check_texts",
    "decide",
]

DEFAULT_FPR = 0.01

MIN_EFFECTIVE_LENGTH = 16.0


@dataclass(frozen=True, repr=False)
class State:
    """What a detector needs of a bound scheme, ready to be stored. As secret as the key."""

    meta: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a scheme asks of its surroundings; a mismatch is refused before anything runs.

    ``final`` says that its sessions must see the final distribution, after temperature, top-k and top-p;
    others see the host's own logits. ``drafts`` says that it has no sessions: it chooses between drafts of
    whole sentences (`dewmark.scheme`).
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
        """Rebuild a detector from what `BoundScheme.state` gave; it detects, it need not mark."""

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
        """For each text one detection per key, in the order of the keys; the best one has token scores.

        Here every key is bound and detects on its own; a scheme that shares work between keys does better.
        """
        columns = [
            self.bind(key, host, workspace).detect_batch(texts, prompts=prompts, fpr=fpr, test=test)
            for key in keys
        ]
        return [list(row) for row in zip(*columns, strict=True)]

    @property
    def needs_as_set(self) -> Needs:
        """What the scheme asks for as it is configured."""
        return self.needs

    @property
    def host_free(self) -> bool:
        """Whether it detects without anything of the host, not even its tokenizer."""
        return False

    def with_settings(self, settings: dict[str, object]) -> Scheme:
        """A copy with some fields changed, by their public names."""
        return cfg.replace(self, settings)

    def to_dict(self) -> dict[str, object]:
        """The configuration as plain values."""
        return cfg.to_dict(self)


class Session(ABC):
    """Marks one batch of texts: call it once a step with ids (batch, length) and logits (batch, vocab)."""

    @abstractmethod
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return marked logits, same shape.

        ``input_ids`` (batch, length) holds prompts and what was written so far, padded on the left;
        ``scores`` (batch, vocab) the host's logits for the next token. This is the signature of a
        transformers logits processor. A scheme that chooses the token itself returns logits in which only
        that token is finite.
        """

    def ahead(self, input_ids: torch.Tensor) -> None:  # noqa: B027 - most have nothing to begin
        """Hear of input_ids (batch, length) before the host computes the logits of what follows them.

        A loop that calls this lets work which needs no logits run beside the host; one that does not gets
        the same marks.
        """


class BoundScheme(ABC):
    """A scheme joined to a key and a host's vocabulary: it marks and it detects.

    ``tests`` names the statistical tests it knows, the default first. ``artifact_identity`` is that of the
    artifact it uses, if it uses one: two artifacts are two configurations.
    """

    tests: ClassVar[tuple[str, ...]]
    artifact_identity: str | None = None

    def __init__(self, scheme: Scheme, host: HostInfo, fingerprint: str) -> None:
        self.scheme = scheme
        self.host = host
        self.fingerprint = fingerprint

    @property
    def needs(self) -> Needs:
        """What the scheme asks for as it is configured."""
        return self.scheme.needs_as_set

    @property
    def config_hash(self) -> str:
        """Names scheme, parameters, host (unless any will do) and key, and gives none of them away."""
        host = "" if self.scheme.host_free else self.host.identity
        parts = [self.scheme.name, self.scheme.to_dict(), host, self.fingerprint]
        if self.artifact_identity is not None:
            parts.append(self.artifact_identity)
        return cfg.config_hash(*parts)

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Cut texts into the units that the scheme scores: by default the host's tokens."""
        return self.host.tokenizer.encode(list(texts))

    @abstractmethod
    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts, (batch, length), padded on the left.

        ``attention_mask`` (batch, length) says what is padding; without it a leading run of the
        tokenizer's padding id is taken for padding. ``seeds``, one per row, fix whatever unkeyed randomness
        the scheme needs; without them it is drawn.
        """

    def drafts(self, prompts: Sequence[str]) -> Drafts:
        """Start choosing the sentences that follow these prompts; for schemes whose needs say ``drafts``."""
        raise ConfigError(f"{self.scheme.name} marks token by token: use its session")

    def finished(self, texts: Sequence[str], *, seeds: Sequence[int]) -> None:  # noqa: B027 - most keep none
        """Hear of finished texts, whose sessions had these seeds; a scheme that keeps records does so here.

        Hosts call it after every batch. With a `processor` in a loop of your own, call it yourself.
        """

    def rows(self, device: torch.device) -> Rows:
        """For engines whose batches change from step to step: here one session a row (`dewmark.sampling`)."""
        from dewmark.sampling import SessionRows

        return SessionRows(self, device)

    def processor(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
        decoding: Decoding = Decoding(),
    ) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """A logits processor for anybody's ``model.generate(logits_processor=[…])``.

        Such a processor runs before the model's own temperature, top-k and top-p. A scheme that needs the
        final distribution is therefore given them here, in ``decoding``; it applies them, chooses the token,
        and leaves only that one finite, so whatever comes after cannot change it. Other schemes ignore them.
        """
        session = self.session(prompt_ids, attention_mask, seeds=seeds)
        if not self.needs.final:
            return session
        from dewmark.sampling import Choosing

        return Choosing(session, rows=len(prompt_ids), seeds=seeds, decoding=decoding)

    @abstractmethod
    def detect_batch(
        self,
        texts: Sequence[str],
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[Detection]:
        """Score completions. A prompt, where given, is context only: it is never scored itself."""

    def evidence(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Evidence]:
        """The evidence of tokenised texts, each after its prompt: what scans and multi-key tests work on."""
        raise ConfigError(
            f"{self.scheme.name} has no known covariance of token scores over keys, which this needs: "
            "use another scheme, or detect with an empirical calibration"
        )

    @abstractmethod
    def state(self) -> State:
        """All that detection needs beside the tokenizer. As secret as the key."""

    def detect(
        self, text: str, *, prompt: str | None = None, fpr: float = DEFAULT_FPR, test: str | None = None
    ) -> Detection:
        """Score one completion."""
        return self.detect_batch([text], prompts=[prompt], fpr=fpr, test=test)[0]


def check_test(test: str | None, known: Sequence[str]) -> str:
    """The name of the test to use: the one asked for, or the scheme's default."""
    if test is None:
        return known[0]
    if test not in known:
        raise unknown_name("test", test, known)
    return test


def check_texts(texts: Sequence[str], prompts: Sequence[str | None] | None, fpr: float) -> list[str]:
    """Validate what a detector was given; returns the prompts with None replaced by ''."""
    if not 0.0 < fpr < 1.0:
        raise ConfigError(f"fpr must lie in (0, 1), got {fpr}")
    given = [None] * len(texts) if prompts is None else list(prompts)
    if len(given) != len(texts):
        raise InputError(f"{len(texts)} texts but {len(given)} prompts: give one prompt per text, or none")
    for i, text in enumerate(texts):
        check_text(text, f"text {i}" if len(texts) > 1 else "the text")
    return [prompt or "" for prompt in given]


def check_text(text: str, what: str) -> None:
    """Refuse what is no text: nothing, NUL characters, lone surrogates."""
    if not isinstance(text, str):
        raise InputError(f"{what} must be a string, got {type(text).__name__}")
    if not text.strip():
        raise InputError(f"{what} is empty: there is nothing to score")
    if "\x00" in text:
        raise InputError(f"{what} holds NUL characters, it looks like binary data: give plain text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} holds a lone surrogate at character {error.start}: decode it properly"
        ) from None


def decide(p_value: float, effective_length: float, fpr: float) -> Verdict:
    """The verdict at level ``fpr``; a text worth too few independent tokens gets none."""
    if effective_length < MIN_EFFECTIVE_LENGTH:
        return Verdict.TOO_SHORT
    return Verdict.MARKED if p_value < fpr else Verdict.NOT_MARKED


def scheme_fields(scheme: type[Scheme]) -> dict[str, object]:
    """A scheme's parameters and their defaults, by public name."""
    return {f.name.rstrip("_"): f.default for f in dataclasses.fields(scheme)}


class Drafts(ABC):
    """Judges drafts of the sentences of one batch of texts, and dies with the batch.

    ``tries`` bounds the drafts of one sentence; ``at_once`` says how many of them a host may write together,
    which changes the time it takes and nothing else. A draft is the text that would follow what the row
    holds already.
    """

    tries: int
    at_once: int

    @abstractmethod
    def end(self, row: int, draft: str, *, last: bool = False) -> int | None:
        """How many characters of the draft make its sentence complete; None if it is not, or not yet surely.

        ``last`` says that nothing can follow the draft.
        """

    @abstractmethod
    def judge(self, rows: Sequence[int], drafts: Sequence[str]) -> list[float]:
        """A number for each draft of a whole sentence, all in one call: above 0 it passes.

        Larger is better. -inf means that the draft changes a sentence which was accepted before.
        """

    @abstractmethod
    def accept(self, row: int, draft: str) -> None:
        """The row goes on with this draft, which was judged."""
