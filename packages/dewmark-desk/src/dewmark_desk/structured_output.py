"""Answers that follow a grammar (`json_grammar`): the library llguidance says which tokens may come next.

The mark chooses among the tokens that the grammar allows. Where structure leaves no choice there is nothing
to mark, so keys and brackets carry none; the words of a long string do, and a request for JSON is no way
around the mark. A provider who wants JSON unmarked says so in a policy (`dewmark.policy`).
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dewmark.arrays import I64, Mask
from dewmark.capabilities import record
from dewmark.errors import ConfigError
from dewmark.extras import require
from dewmark.hosts.transformers.tokenizer import HFTokenizer
from dewmark.mark import ChoosingSession, Writer
from dewmark.sampling import Choice, fresh_seeds
from dewmark.scheme import BoundScheme, State

if TYPE_CHECKING:
    import torch

    from dewmark.decoding import Decoding
    from dewmark.types import Seeds

__all__ = ["GrammarSession", "constrained"]

_MAX_STATES = 50_000  # of a row's matcher, one or two kilobytes each


def constrained(bound: BoundScheme, grammar: str, *, marked: bool) -> BoundScheme:
    """The scheme under a grammar: its sessions draw what the grammar allows, with the mark or without."""
    tokenizer = bound.host.tokenizer
    if not isinstance(tokenizer, HFTokenizer):
        raise ConfigError(
            f"{bound.host.name} has no tokenizer for grammars: leave out response_format and tools"
        )
    guide = _guide(tokenizer, bound.host.vocab_size)
    first = _first_matcher(guide, grammar).deep_copy()
    if first.is_error() or not set(_allowed_ids(first).tolist()) - tokenizer.special_ids:
        raise ConfigError(
            f"{bound.host.name} has no tokens for such an answer: leave out response_format and tools"
        )
    return GrammarScheme(bound, grammar, guide, marked=marked)


class GrammarScheme(BoundScheme):
    """A scheme that writes what a grammar allows, with its mark or, if not ``marked``, without."""

    tests = ()

    def __init__(
        self,
        bound: BoundScheme,
        grammar: str,
        guide: Any,  # noqa: ANN401 - a tokenizer of llguidance
        *,
        marked: bool,
    ) -> None:
        super().__init__(bound.scheme, bound.host, bound.fingerprint)
        self.needs = dataclasses.replace(bound.needs, sampling=marked and bound.needs.sampling)
        self.expectations, self.artifact_identity = bound.expectations, bound.artifact_identity
        self._bound, self._grammar, self._guide, self._marked = bound, grammar, guide, marked

    def session(
        self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *, seeds: Seeds = None
    ) -> GrammarSession:
        bound = self._bound if self._marked else None
        return GrammarSession(self._grammar, self._guide, bound, prompt_ids, attention_mask, seeds=seeds)

    def finished(self, texts: Sequence[str], *, seeds: Sequence[int]) -> None:
        """Pass finished texts on to a scheme that keeps records."""
        record(self._bound, texts, seeds=seeds)

    def state(self) -> State:
        return self._bound.state()


@functools.lru_cache(maxsize=16)
def _first_matcher(guide: Any, grammar: str) -> Any:  # noqa: ANN401 - of llguidance
    """A matcher that has read nothing, to copy: compiling a grammar may take a second."""
    llguidance = require("llguidance", extra="structured", package="dewmark-desk")
    limits = llguidance.LLParserLimits(max_lexer_states=_MAX_STATES, verbose_errors=False)
    return llguidance.LLMatcher(guide, grammar, log_level=0, limits=limits)  # it would log what is written


@functools.lru_cache(maxsize=4)
def _guide(tokenizer: HFTokenizer, vocab_size: int) -> Any:  # noqa: ANN401 - a tokenizer of llguidance
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        text = (Path(folder) / "tokenizer.json").read_text(encoding="utf-8")
    llguidance = require("llguidance", extra="structured", package="dewmark-desk")
    return llguidance.LLTokenizer(text, n_vocab=vocab_size, eos_token=tokenizer.eos_id)


class GrammarSession(ChoosingSession):
    """Draws each row's token among those that its matcher allows; the end follows a complete value."""

    def __init__(
        self,
        grammar: str,
        guide: Any,  # noqa: ANN401 - a tokenizer of llguidance
        bound: BoundScheme | None,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Seeds = None,
    ) -> None:
        self._matchers = [_first_matcher(guide, grammar).deep_copy() for _ in prompt_ids]
        self._start, self._read, self._end = prompt_ids.shape[1], 0, guide.eos_token
        if bound is None:
            self._writer = Writer(None, prompt_ids, seeds=fresh_seeds(len(prompt_ids), seeds))
        else:
            self._writer = bound.writer(prompt_ids, attention_mask, seeds=seeds)

    def room(self) -> torch.Tensor | None:
        return self._writer.room()

    def choose(self, input_ids: torch.Tensor, scores: torch.Tensor, decoding: Decoding) -> Choice:
        import torch

        step = input_ids.shape[1] - self._start
        unread = input_ids[:, self._start + self._read :].tolist()
        for matcher, ids in zip(self._matchers, unread, strict=True):
            if not matcher.is_stopped():
                matcher.consume_tokens(ids)
        self._read = step
        allowed = np.stack([self._allowed(matcher, scores.shape[1]) for matcher in self._matchers])
        masked = scores.masked_fill(~torch.from_numpy(allowed).to(scores.device), -float("inf"))
        return self._writer.draw(input_ids, masked, decoding)

    def _allowed(self, matcher: Any, vocab_size: int) -> Mask:  # noqa: ANN401 - a matcher of llguidance
        """Which ids (vocab,) may follow."""
        found = np.zeros(vocab_size, dtype=bool)
        found[self._end if matcher.is_stopped() else _allowed_ids(matcher)] = True
        if matcher.is_error():
            raise ConfigError(
                "response_format: the schema has too many states to follow: simplify its patterns"
            )
        return found


def _allowed_ids(matcher: Any) -> I64:  # noqa: ANN401 - a matcher of llguidance
    packed = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    return np.flatnonzero(np.unpackbits(packed, bitorder="little"))
