"""Which parts of a text are marked: rules over the text written so far, which anyone can check afterwards.

Before each token a rule may say why it carries no mark. The rules see the prompt and the text so far, and
nothing else, so `Policy.spans` finds from a finished text what marking left out, without a log of tokens:

- ``code``: in a fenced block, from its first fence to its last, and between backticks within a paragraph;
- ``structured``: in an answer that begins with a JSON object or array, until its brackets are closed, and in
  a tool call (``<tool_call>`` … ``</tool_call>``);
- ``quotation``: after an opening quotation mark, as long as the words that follow are the prompt's own;
- ``number``: a word with digits. An unkeyed draw decides whether one comes next, and which.

A request may be exempt as a whole: it opted out, or asks for fewer than ``least_tokens`` tokens. Detection
does not know of policies: what is not marked carries no evidence.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark import config, storage
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.text.words import words
from dewmark.workspace import HostInfo, Tokenizer

__all__ = ["Exemptions", "Policy", "Span", "load_policy"]

_RULES = 1  # raise it when a rule changes
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})", re.MULTILINE)
_OPENING, _CLOSING = "“„«", "”“»"
_ARRAY = re.compile(r'\[\s*(?:[\[{"\d\-\]]|true|false|null|\Z)')
_STRING_OR_BRACKET = re.compile(r'[{}\[\]]|"(?:[^"\\]|\\.)*(?:"|\Z)')
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True, slots=True)
class Span:
    """Characters [start, end) of a text, and why they carry no mark; None where they may."""

    start: int
    end: int
    reason: str | None


@dataclass(frozen=True)
class Policy:
    """What marking leaves out; every rule is on unless it is switched off."""

    code: bool = True
    structured: bool = True
    quotations: bool = True
    numbers: bool = True
    least_tokens: int = 0

    @property
    def version(self) -> str:
        """Identifies the rules and their switches."""
        return f"{_RULES}-{config.config_hash(dataclasses.asdict(self))[:12]}"

    def exempts(self, *, max_new_tokens: int, opted_out: bool = False) -> str | None:
        """Why a whole request carries no mark, or None."""
        if opted_out:
            return "opted_out"
        return "short" if max_new_tokens < self.least_tokens else None

    def reason(self, text: str, prompt: str = "") -> str | None:
        """Why the token after this text carries no mark, or None if it may carry one."""
        if self.code and _in_code(text):
            return "code"
        if self.structured and _in_structure(text):
            return "structured"
        return "quotation" if self.quotations and _in_quotation(text, prompt) else None

    def exemptions(self, prompts: Sequence[Sequence[int]], host: HostInfo) -> Exemptions:
        """What is left out of texts that follow prompts (ids) on a host."""
        tokenizer = host.tokenizer
        if self.numbers and tokenizer.identity not in _NUMBERS:
            texts = tokenizer.decode([[i] for i in range(host.vocab_size)])
            _NUMBERS[tokenizer.identity] = tuple(i for i, text in enumerate(texts) if _DIGIT.search(text))
        unmarked = _NUMBERS[tokenizer.identity] if self.numbers else ()
        return Exemptions(self, tokenizer.decode(prompts), tokenizer, unmarked)

    def spans(self, text: str, prompt: str = "") -> list[Span]:
        """The words of a text from one change of reason to the next."""
        found: list[Span] = []
        for word in words(text):
            before = text[: word.start].removesuffix(" ")  # a token has the space before its word
            reason = self.reason(before, prompt)
            if reason is None and self.numbers and _DIGIT.search(word.form):
                reason = "number"
            if found and found[-1].reason == reason:
                found[-1] = dataclasses.replace(found[-1], end=word.end)
            else:
                found.append(Span(word.start, word.end, reason))
        return found


def load_policy(name: str | Path) -> Policy:
    """A policy by name: ``default``, or a JSON file with the fields of `Policy` that differ from it."""
    if str(name) == "default":
        return Policy()
    try:
        given: Any = storage.read_json(name)
    except FileNotFoundError:
        raise ConfigError(f"no policy {str(name)!r}: give default or a JSON file") from None
    except OSError as error:
        raise ConfigError(f"cannot read the policy {name}: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f'{name} is not JSON: write for example {{"code": false}}') from None
    known = {field.name: type(getattr(Policy(), field.name)) for field in dataclasses.fields(Policy)}
    for field, value in given.items() if isinstance(given, dict) else [("it", given)]:
        if known.get(field) is not type(value):
            raise ConfigError(f"{name}: {field} = {value!r} is no setting; known: {', '.join(known)}")
    return Policy(**given)


@dataclass(frozen=True)
class Exemptions:
    """What a policy leaves out of one batch of texts, which follow ``prompts``.

    ``unmarked_ids`` are tokens that are never marked.
    """

    policy: Policy
    prompts: Sequence[str]
    tokenizer: Tokenizer
    unmarked_ids: Sequence[int] = ()

    def spares(self, written: Sequence[Sequence[int]]) -> list[bool]:
        """Say of each text, by the ids written so far, whether its next token carries no mark."""
        texts = self.tokenizer.decode(written)
        return [
            self.policy.reason(text.rstrip("\N{REPLACEMENT CHARACTER}"), prompt) is not None
            for text, prompt in zip(texts, self.prompts, strict=True)
        ]

    def exempts(self, decoding: Decoding) -> bool:
        """Say whether texts with these options carry no mark at all."""
        return self.policy.exempts(max_new_tokens=decoding.max_new_tokens) is not None


_NUMBERS: dict[str, tuple[int, ...]] = {}  # the tokens with a digit, by tokenizer


# Rules


def _in_code(text: str) -> bool:
    fence = ""
    end = 0
    for match in _FENCE.finditer(text):
        if not fence:
            fence, end = match[1], match.end()
        elif match[1].startswith(fence):
            fence, end = "", match.end()
    return bool(fence) or text[max(text.rfind("\n\n"), end) :].count("`") % 2 == 1


def _in_structure(text: str) -> bool:
    if text.rfind("<tool_call>") > text.rfind("</tool_call>"):
        return True
    start = text.lstrip()
    if not (start.startswith("{") or _ARRAY.match(start)):
        return False
    depth = 0  # of the brackets that are open
    for match in _STRING_OR_BRACKET.finditer(start):
        depth += (match[0] in "{[") - (match[0] in "}]")
        if depth == 0:
            return False
    return True


def _in_quotation(text: str, prompt: str) -> bool:
    paragraph = text[text.rfind("\n\n") + 1 :]
    straight = paragraph.count('"') % 2 == 1
    at = paragraph.rfind('"') if straight else max(map(paragraph.rfind, _OPENING))
    if at < 0 or (not straight and any(mark in paragraph[at + 1 :] for mark in _CLOSING)):
        return False
    said, known = " ".join(paragraph[at + 1 :].split()).casefold(), " ".join(prompt.split()).casefold()
    return said in known if prompt else False
