"""Requests for JSON, tool calls and code, each answered with the mark and without: the proof of a policy.

JSON and tool calls are written under their grammar, as the service does; code is free text. Every request is
answered twice with the same seed. The proof counts how many answers parse, and shows the detector's own
scores of the words in spans that the policy says are marked and in spans that it says are not.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binomtest

from dewmark.detect import score_text
from dewmark.policy import Policy
from dewmark.scheme import BoundScheme
from dewmark.types import Detection, Generation
from dewmark.watermark import Watermark
from dewmark.workspace import Progress, silent
from dewmark_desk.json_grammar import grammar_of, object_schema
from dewmark_desk.structured_output import constrained

__all__ = ["Proof", "mean_score", "parses", "prove", "span_scores"]

_THINGS = (
    "a train ticket", "an invoice", "a library book", "a recipe", "a weather report", "a hotel room",
    "a bicycle", "a museum visit", "a customer", "a delivery", "a concert", "a garden plant", "a city",
    "a film", "a sports match", "a job offer", "a bank transfer", "a phone call", "a meeting", "a parcel",
)  # fmt: skip
_TASKS = (
    "sorts a list of numbers", "counts the words of a text", "reverses a string", "finds the largest number",
    "removes duplicates from a list", "checks whether a word is a palindrome", "adds two matrices",
    "converts Celsius into Fahrenheit", "computes a factorial", "reads a file and returns its lines",
    "merges two dictionaries", "finds prime numbers below n", "splits a list into halves", "rounds a price",
    "counts vowels", "joins names with commas", "computes the mean of a list", "flattens nested lists",
    "finds the longest word", "checks whether a year is a leap year",
)  # fmt: skip
_MANNERS = ("", "Please: ", "Be brief. ", "For my project: ")
_TEXT, _NUMBER = {"type": "string", "maxLength": 30}, {"type": "integer", "minimum": 0, "maximum": 999}

_RECORD = object_schema(name=_TEXT, kind=_TEXT, count=_NUMBER)
_CALLS = {
    "anyOf": [
        object_schema(name={"const": name}, arguments=object_schema(**fields))
        for name, fields in (
            ("search", {"query": _TEXT}),
            ("book", {"item": _TEXT, "count": _NUMBER}),
            ("remind", {"text": _TEXT, "minutes": _NUMBER}),
        )
    ]
}
_SCHEMAS = {"JSON": _RECORD, "tool call": _CALLS}
_ASKED = {
    "JSON": "{manner}Describe {thing} as JSON with a name, a kind and a count.",
    "tool call": "{manner}You can call search, book and remind. Call one of them as JSON for {thing}.",
    "code": "{manner}Write a short Python function that {thing}. Answer with the code only.",
}
_FENCED = re.compile(r"```[a-zA-Z]*\n(.*?)(?:\n```|\Z)", re.DOTALL)


def parses(kind: str, text: str) -> bool:
    """Whether an answer is what was asked for."""
    try:
        if kind == "code":
            blocks = _FENCED.findall(text) or [text]
            return bool(ast.parse("\n".join(blocks)).body)
        found = json.loads(text)
    except (ValueError, SyntaxError):
        return False
    return isinstance(found, dict)


@dataclass(frozen=True)
class Proof:
    """The requests, their answers as (unmarked, marked), and what came of them."""

    policy: Policy
    kinds: Sequence[str]
    prompts: Sequence[str]
    answers: Sequence[tuple[Generation, Generation]]
    bound: BoundScheme
    max_new_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """The proof as JSON values; no text is in it."""
        scheme = self.bound
        return {
            "document": "policy proof",
            "policy": self.policy.version,
            "host": scheme.host.name,
            "scheme": scheme.scheme.name,
            "key_fingerprint": scheme.fingerprint,
            "requests": len(self.kinds),
            "max_new_tokens": self.max_new_tokens,
            "parsed": [self._parsed(kind) for kind in _ASKED],
            "spans": self._spans(),
        }

    def _parsed(self, kind: str) -> dict[str, Any]:
        """How many answers of one kind parse, and the exact test of equal rates on the pairs that differ."""
        texts = [
            (plain.text, marked.text)
            for each, (plain, marked) in zip(self.kinds, self.answers, strict=True)
            if each == kind
        ]
        pairs = [(parses(kind, plain), parses(kind, marked)) for plain, marked in texts]
        lost, won = (sum(pair == wanted for pair in pairs) for wanted in ((True, False), (False, True)))
        return {
            "kind": kind,
            "requests": len(pairs),
            "unmarked": sum(plain for plain, _ in pairs),
            "marked": sum(marked for _, marked in pairs),
            "identical": sum(plain == marked for plain, marked in texts),
            "p_value": float(binomtest(lost, lost + won).pvalue) if lost + won else 1.0,
        }

    def _spans(self) -> list[dict[str, Any]]:
        """The detector's scores of the words of marked answers, by what the policy says of their spans.

        Answers to similar requests share words, and under one key so do their scores: ``unmarked`` is the
        mean of the same kind of span in the unmarked answers.
        """
        plain, marked = (self._scores([pair[i].text for pair in self.answers]) for i in (0, 1))
        means = {reason: float(np.mean(scores)) for reason, scores in plain.items()}
        return [
            {"reason": reason, **mean_score(scores), "unmarked": means.get(reason)}
            for reason, scores in sorted(marked.items())
        ]

    def _scores(self, texts: Sequence[str]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for prompt, text in zip(self.prompts, texts, strict=True):
            if text.strip():
                scored = span_scores(self.policy, text, prompt, score_text(self.bound, text))
                for reason, scores in scored.items():
                    found.setdefault(reason, []).extend(scores)
        return found


def span_scores(policy: Policy, text: str, prompt: str, detection: Detection) -> dict[str, list[float]]:
    """The detector's scores of words, by the reason for which the policy leaves them out, or "marked"."""
    spans = policy.spans(text, prompt)
    found: dict[str, list[float]] = {}
    for token in detection.tokens:
        inside = next((each for each in spans if each.start <= token.start < each.end), None)
        if token.scored and inside is not None:
            found.setdefault(inside.reason or "marked", []).append(token.score)
    return found


def mean_score(scores: Sequence[float]) -> dict[str, float]:
    """Their number, mean and standard error over keys, if nothing is marked."""
    return {"words": len(scores), "mean": float(np.mean(scores)), "error": 1.0 / math.sqrt(len(scores))}


def prove(
    watermark: Watermark,
    policy: Policy,
    *,
    requests: int = 200,
    max_new_tokens: int = 100,
    batch_size: int = 32,
    seed: int = 0,
    progress: Progress = silent,
) -> Proof:
    """Answer requests for JSON, tool calls and code with the mark and without."""
    kinds: list[str] = []
    prompts: list[str] = []
    answers: list[tuple[Generation, Generation]] = []
    decoding = dataclasses.replace(watermark.chat_format.decoding, max_new_tokens=max_new_tokens)
    each = -(-requests // len(_ASKED))
    for kind, ask in _ASKED.items():
        things = _TASKS if kind == "code" else _THINGS
        asked = [
            ask.format(manner=manner, thing=thing)
            for manner, thing in itertools.islice(itertools.product(_MANNERS, things), each)
        ]
        asked = asked[: requests - len(kinds)]
        rendered = [watermark.chat_format.render([{"role": "user", "content": text}]) for text in asked]
        seeds = range(seed + len(kinds), seed + len(kinds) + len(rendered))
        options = {"seeds": seeds, "decoding": decoding, "batch_size": batch_size}
        progress(f"{kind}, unmarked", len(kinds), requests)
        plain = _answers(watermark, kind, rendered, None, **options)
        progress(f"{kind}, marked", len(kinds), requests)
        answers += zip(plain, _answers(watermark, kind, rendered, policy, **options), strict=True)
        kinds += [kind] * len(asked)
        prompts += rendered
    return Proof(policy, kinds, prompts, answers, watermark.scheme, max_new_tokens)


def _answers(
    watermark: Watermark,
    kind: str,
    prompts: list[str],
    policy: Policy | None,
    **options: Any,  # noqa: ANN401 - of Host.generate
) -> list[Generation]:
    """Answers to requests of one kind: marked under a policy, or unmarked without one."""
    scheme = None if policy is None else watermark.scheme.under_policy(policy)
    if kind in _SCHEMAS:
        grammar = grammar_of(_SCHEMAS[kind])
        scheme = constrained(scheme or watermark.scheme, grammar, marked=policy is not None)
    return watermark.host.generate(prompts, scheme=scheme, **options)
