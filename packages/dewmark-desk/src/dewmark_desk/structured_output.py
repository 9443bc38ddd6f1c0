"""Answers that follow a grammar (`json_grammar`): the library llguidance says which tokens may come next.

The mark chooses among the tokens that the grammar allows. Where structure leaves no choice there is nothing
to mark, so keys and brackets carry none; the words of a long string do, and a request for JSON is no way
around the mark. A provider who wants JSON unmarked says so in a policy (`dewmark.policy`).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dewmark.arrays import I64, Mask
from dewmark.errors import ConfigError
from dewmark.extras import require
from dewmark.hosts.transformers.tokenizer import HFTokenizer
from dewmark.sampling import Choice, ChoosingSession, RandomStreams, draw, fresh_seeds

if TYPE_CHECKING:
    import torch

    from dewmark.decoding import Decoding
    from dewmark.scheme import BoundScheme
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
    changed = copy.copy(bound)
    changed.needs = dataclasses.replace(bound.needs, sampling=marked and bound.needs.sampling)
    changed.session = functools.partial(  # type: ignore[method-assign]
        GrammarSession, grammar, guide, bound if marked else None
    )
    return changed


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
        self._seeds, self._end = fresh_seeds(len(self._matchers), seeds), guide.eos_token
        self._session = (
            None if bound is None else bound.session(prompt_ids, attention_mask, seeds=self._seeds)
        )
        self._final = bound is not None and bound.needs.final_distribution
        self._start, self._read = prompt_ids.shape[1], 0
        self._noise: RandomStreams | None = None

    measures = True  # by the session that marks

    def room(self) -> torch.Tensor | None:
        return None if self._session is None else self._session.room()

    def choose(self, input_ids: torch.Tensor, scores: torch.Tensor, decoding: Decoding) -> Choice:
        import torch

        step = input_ids.shape[1] - self._start
        unread = input_ids[:, self._start + self._read :].tolist()
        for matcher, ids in zip(self._matchers, unread, strict=True):
            if not matcher.is_stopped():
                matcher.consume_tokens(ids)
        self._read = step
        if self._noise is None:
            self._noise = RandomStreams(self._seeds, device=scores.device)
        allowed = np.stack([self._allowed(matcher, scores.shape[1]) for matcher in self._matchers])
        masked = scores.masked_fill(~torch.from_numpy(allowed).to(scores.device), -float("inf"))
        return draw(
            masked, decoding, self._noise, step, session=self._session, input_ids=input_ids, final=self._final
        )

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
