"""How an attacker generates text with a stolen mark: keyless schemes that a host runs in batches.

`CountsForger` adds the boosts learned by `counting` (or subtracts them, to scrub); `DewForger` is DEW
with an estimated W in place of the key's (`regression`), and `forge` writes with it. `RewritingForger` makes
any forger rewrite given texts token by token: at each position the original token gets a bonus of
``fidelity`` nats, so that only tokens that the stolen mark opposes, or that the host finds unlikely, are
replaced.
`generate_texts` runs a forger and keeps finished batches on disk, so that a stopped run can resume.

Boundary: nothing here knows the victim's key or detects anything; the victim's detector does the scoring.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NoReturn

import torch

from dewmark import config, storage
from dewmark.arrays import F32
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.dew.matrix import UseKey
from dewmark.dew.paper.marking import Bias, BiasSession
from dewmark.dew.scheme import BoundDEW
from dewmark.errors import ConfigError, VocabularyError
from dewmark.hosts.base import Host, generation_hash
from dewmark.mark import Session
from dewmark.scheme import BoundScheme, Needs, Reading, Scheme, State
from dewmark.types import Seeds
from dewmark.workspace import HostInfo, Progress, Workspace, silent
from dewmark_lab.attacks.stealing.counting import StolenBoosts
from dewmark_lab.attacks.stealing.regression import Victim

_CANDIDATES = 256  # as many as the victim's sampler scores
_GAMMA = 0.5  # of a victim whose mark is no bias
_FIRST_SEED = 1 << 40
_PROGRESS = "generating with the stolen mark"


@dataclass(frozen=True)
class Forgery(Scheme):
    """The configuration of a forger: a hash of what it learned, its strength, and its fidelity."""

    name: ClassVar[str] = "forgery"
    summary: ClassVar[str] = "a stolen mark, applied without the key"

    learned: str = ""
    strength: float = 0.0
    fidelity: float = 0.0

    def validate(self) -> None:
        """Any strength is valid; a negative one scrubs."""

    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> NoReturn:
        raise ConfigError("a forgery has no key: make one with dewmark_lab.attacks.stealing.steal.steal")

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> NoReturn:
        raise ConfigError("a forgery is not stored: make one with dewmark_lab.attacks.stealing.steal.steal")


class Forger(BoundScheme):
    """Base class of forgers, which generate but do not detect."""

    tests: ClassVar[tuple[str, ...]] = ("none",)

    def whole(self, readings: Sequence[Reading], *, test: str, fpr: float) -> NoReturn:
        raise ConfigError("a forger has no detector: score its texts with the victim's")

    def state(self) -> State:
        raise ConfigError("a forger is not stored")


class CountsForger(Forger):
    """Adds ``strength`` times the boosts learned by counting."""

    def __init__(self, boosts: StolenBoosts, host: HostInfo, *, strength: float) -> None:
        if boosts.vocab_size != host.vocab_size:
            raise VocabularyError(
                f"the counts cover {boosts.vocab_size} tokens, {host.name} has {host.vocab_size}: "
                "count with the attacker's own tokenizer"
            )
        super().__init__(Forgery(learned=boosts.identity, strength=strength), host, "")
        self._boosts, self._strength = boosts, strength

    def session(
        self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *, seeds: Seeds = None
    ) -> Session:
        return _CountsSession(self._boosts, self._strength)


class _CountsSession(Session):
    def __init__(self, boosts: StolenBoosts, strength: float) -> None:
        self._boosts, self._strength = boosts, strength

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) plus strength times boost; unchanged while the context is shorter than h."""
        h = self._boosts.rules.h
        if input_ids.shape[1] < h or not self._strength:
            return scores
        boost = self._boosts.after(input_ids[:, -h:].to(scores.device))
        return scores + self._strength * boost.to(scores.dtype)


class DewForger(Forger):
    """DEW with an estimated W (d_T, d_C) in place of the key's: adds strength · tanh(γ tᵀWc) to logits.

    Only the victim's key-independent part is used, and h stays unknown. A negative strength inverts the mark.
    """

    def __init__(self, victim: Victim, W: F32, *, strength: float) -> None:
        self._gamma: float = getattr(victim.scheme, "gamma", _GAMMA)
        learned = hashlib.sha256(W.tobytes()).hexdigest()[:16]
        super().__init__(Forgery(learned=learned, strength=strength), victim.host, "")
        self._marking = victim.under(UseKey(W)) if isinstance(victim, BoundDEW) else victim.under(W)
        self._strength = strength

    def session(
        self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *, seeds: Seeds = None
    ) -> Session:
        alignments = self._marking.follow_alignments(prompt_ids, attention_mask)
        bias = Bias(self._strength, self._gamma, _CANDIDATES)
        return BiasSession(bias, alignments, vocab_size=self.host.vocab_size)


Originals = Mapping[int, Sequence[int]]


class RewritingForger(Forger):
    """Rewrites the ``originals`` (token ids, by the row's seed) with a forger."""

    def __init__(
        self, forger: BoundScheme | None, originals: Originals, host: HostInfo, *, fidelity: float
    ) -> None:
        learned = "" if forger is None else forger.config_hash
        super().__init__(Forgery(learned=learned, fidelity=fidelity), host, "")
        self._forger, self._originals, self._fidelity = forger, originals, fidelity
        self.needs = Needs()  # the bonus is added to raw logits, so it comes before warping

    def session(
        self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *, seeds: Seeds = None
    ) -> Session:
        """Start rewriting; each row's seed selects its original."""
        if seeds is None:
            raise ConfigError("a rewriter looks up its originals by seed: give one seed per row")
        forger = self._forger
        inner = None if forger is None else forger.session(prompt_ids, attention_mask, seeds=seeds)
        rows = [self._originals[seed] for seed in seeds]
        return _RewriteSession(inner, rows, start=prompt_ids.shape[1], fidelity=self._fidelity)


class _RewriteSession(Session):
    def __init__(
        self, inner: Session | None, originals: Sequence[Sequence[int]], *, start: int, fidelity: float
    ) -> None:
        self._inner, self._originals, self._start = inner, originals, start
        self._fidelity = fidelity

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The forger's logits (batch, vocab), plus ``fidelity`` at each original's next token."""
        if self._inner is not None:
            scores = self._inner(input_ids, scores)
        step = input_ids.shape[1] - self._start
        pairs = [(row, ids[step]) for row, ids in enumerate(self._originals) if step < len(ids)]
        if not pairs:
            return scores
        rows, tokens = torch.tensor(pairs, device=scores.device).unbind(dim=1)
        followed = scores.clone()
        followed[rows, tokens] += self._fidelity
        return followed


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """A text and its token ids."""

    text: str
    ids: tuple[int, ...]


def fixed_length(tokens: int) -> Decoding:
    """Plain sampling of exactly ``tokens`` tokens, without repeated 4-grams."""
    return Decoding(max_new_tokens=tokens, min_new_tokens=tokens, no_repeat_ngram=4)


def attacker_seeds(seed: int, number: int) -> range:
    """Seeds far from the small ones that victims use: a shared seed would draw the same random numbers."""
    return range(_FIRST_SEED + seed, _FIRST_SEED + seed + number)


def generate_texts(
    host: Host,
    scheme: BoundScheme | None,
    prompts: Sequence[str],
    *,
    seeds: Sequence[int],
    decoding: Decoding,
    batch_size: int,
    lengths: Sequence[int] | None = None,
    about: object = None,
    resume_dir: Path | None = None,
    progress: Progress = silent,
) -> list[GeneratedText]:
    """Continue prompts; text i is truncated to ``lengths[i]`` tokens.

    With ``resume_dir``, finished batches are appended to a JSONL file there, named by a hash of everything
    that determines the texts. ``about`` is hashed too: it stands for anything beyond scheme, host and
    decoding options.
    """
    name = config.config_hash(
        generation_hash(decoding, scheme, host.info), list(prompts), list(seeds), lengths, batch_size, about
    )
    file = None
    done: list[GeneratedText] = []
    if resume_dir is not None:
        path = resume_dir / f"{name}.jsonl"
        file = storage.ResumableRows(path, len(prompts), batch_size=batch_size, private=True)
        done = [GeneratedText(row["text"], tuple(row["ids"])) for row in file.read()]
    tokenizer = host.info.tokenizer
    for start in range(len(done), len(prompts), batch_size):
        progress(_PROGRESS, start, len(prompts))
        batch = slice(start, start + batch_size)
        made = host.generate(
            prompts[batch], scheme=scheme, seeds=seeds[batch], batch_size=batch_size, decoding=decoding
        )
        ids = [list(each.token_ids) for each in made]
        texts = [each.text for each in made]
        if lengths is not None:
            ids = [row[:length] for row, length in zip(ids, lengths[batch], strict=True)]
            texts = tokenizer.decode(ids)
        rows = [GeneratedText(text, tuple(row)) for text, row in zip(texts, ids, strict=True)]
        if file is not None:
            file.append([dataclasses.asdict(row) for row in rows])
        done += rows
    progress(_PROGRESS, len(prompts), len(prompts))
    return done
