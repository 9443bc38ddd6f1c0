"""The plan of a dossier: which texts a deployment writes, at which settings, and what is done to them.

Openings are continued at the decoding options given; chat requests go through the host's own chat template at
its own generation settings, because that is how a product uses it. Three kinds of output that leave a mark
little room (code, JSON, labels of a few words) are requested on purpose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.hosts.base import ChatFormat
from dewmark.prompts import openings, package_file, requests

DEFAULT_ATTACKS = (
    "delete:r=0.1",
    "delete:r=0.3",
    "truncate:n=60",
    "copy-paste:share=0.25",
    "round-trip",
    "translate",
)
"""The attacks that need no large model; those that this machine cannot run are reported as not measured."""

LARGE_ATTACKS = ("paraphrase", "dipper", "synonym")
"""The library's other attacks, which are measured only on request."""

_FORMATS: Mapping[str, Sequence[str]] = {
    "code": (
        "Write a Python function that returns the n-th Fibonacci number. Answer with code only.",
        "Write a Python class for a bank account with deposit and withdraw. Answer with code only.",
        "Write a SQL query that counts the orders of each customer. Answer with code only.",
        "Write a JavaScript function that reverses a string. Answer with code only.",
    ),
    "JSON": (
        'Give me a JSON object with the keys "name", "age" and "city" for a person. Answer with JSON only.',
        "Give me a JSON list of five European capitals with their countries. Answer with JSON only.",
        'Give me a JSON object for a book with "title", "author", "year" and "tags". Answer with JSON only.',
        "Give me a JSON list of three recipes with their ingredients. Answer with JSON only.",
    ),
    "short labels": (
        "Is this review positive or negative? 'The food was cold and late.' Answer with one word.",
        "Which language is this: 'Das ist ein Haus'? Answer with one word.",
        "Choose a category for 'The team won the match in extra time': sports, politics, business. One word.",
        "Give me a title of at most five words for an article about bees.",
    ),
}
_PROMPT_SENTENCES = 2  # in a language other than English, the prompt is this many ordinary sentences


@dataclass(frozen=True, slots=True)
class StagePrompt:
    """A prompt as the host gets it; ``group`` is its genre, language or format."""

    id: str
    group: str
    prompt: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Stage:
    """Texts to write: prompts, decoding options, marked or not."""

    name: str
    prompts: tuple[StagePrompt, ...] = field(repr=False)
    decoding: Decoding
    marked: bool

    @property
    def tokens(self) -> int:
        """The most tokens that it writes."""
        return len(self.prompts) * self.decoding.max_new_tokens


@dataclass(frozen=True, kw_only=True)
class DossierPlan:
    """The sizes and settings of a dossier's measurements; texts are counted per marked or unmarked set."""

    openings: int = 24
    chats: int = 12
    per_language: int = 4
    per_format: int = 4
    languages: tuple[str, ...] = ("de", "es", "fr", "it", "pt")
    lengths: tuple[int, ...] = (50, 100, 200)
    levels: tuple[float, ...] = (0.01, 0.001)
    decoding: Decoding = Decoding()
    attacks: tuple[str, ...] = DEFAULT_ATTACKS
    """``NAME`` or ``NAME:SETTING=VALUE,…``."""
    seed: int = 0
    batch_size: int = 16

    def __post_init__(self) -> None:
        limits = {
            "openings": len(openings()),
            "chats": len(requests(split="eval")),
            "per_format": 4,
            "per_language": 10,
        }
        for name, most in limits.items():
            if not 0 <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must lie between 0 and {most}, got {getattr(self, name)}")
        if self.openings < 4:
            raise ConfigError(f"a dossier needs at least 4 openings, got {self.openings}")
        if not self.lengths or min(self.lengths) < 1:
            raise ConfigError(f"lengths must be positive numbers of tokens, got {self.lengths}")
        for level in self.levels:
            if not 0.0 < level < 1.0:
                raise ConfigError(f"a level must lie in (0, 1), got {level:g}")
        unknown = [name for name in self.languages if not _ordinary_file(name).is_file()]
        if unknown:
            raise ConfigError(f"no prompts in language {unknown[0]!r}: the package has ar, de, en, es, fr, …")

    def stages(self, chat: ChatFormat | None) -> list[Stage]:
        """The texts to write; a host without a chat format gets no requests."""
        long = dataclasses.replace(self.decoding, max_new_tokens=max(self.lengths))
        opened = tuple(StagePrompt(row["id"], "opening", row["text"]) for row in openings()[: self.openings])
        stages = [Stage("openings", opened, long, True), Stage("openings-unmarked", opened, long, False)]
        foreign = tuple(
            StagePrompt(f"{language}-{i}", language, prompt)
            for language in self.languages
            for i, prompt in enumerate(_ordinary_prompts(language)[: self.per_language])
        )
        if foreign:
            stages.append(Stage("languages", foreign, long, True))
        if chat is not None:
            own = dataclasses.replace(chat.decoding, max_new_tokens=max(self.lengths))
            chats = tuple(
                StagePrompt(row["id"], row["kind"], chat.render([{"role": "user", "content": row["text"]}]))
                for row in requests(split="eval")[: self.chats]
            )
            formats = tuple(
                StagePrompt(f"{name}-{i}", name, chat.render([{"role": "user", "content": text}]))
                for name, texts in _FORMATS.items()
                for i, text in enumerate(texts[: self.per_format])
            )
            if chats:
                stages += [Stage("chat", chats, own, True), Stage("chat-unmarked", chats, own, False)]
            if formats:
                stages.append(Stage("formats", formats, own, True))
        return stages


def _ordinary_file(language: str) -> Any:  # noqa: ANN401 - a Traversable, which mypy's stubs move about
    return package_file(f"ordinary/{language}.txt")


def _ordinary_prompts(language: str) -> list[str]:
    lines = _ordinary_file(language).read_text(encoding="utf-8").splitlines()
    return [
        " ".join(lines[i : i + _PROMPT_SENTENCES])
        for i in range(0, len(lines) - _PROMPT_SENTENCES + 1, _PROMPT_SENTENCES)
    ]
