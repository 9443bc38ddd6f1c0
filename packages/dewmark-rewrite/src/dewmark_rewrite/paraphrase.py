"""Drafts of whole sentences by an instruct model, which become candidates like single words.

A local host writes its drafts with the mark; the drafts of an endpoint carry none, and the search among them
leaves one. Either way the drafts that fit the key best are chosen by the score of the text as a whole.

An endpoint's API key is read from an environment variable and sent nowhere else. Sentences leave this
machine; the watermark's key never does.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dewmark.errors import ConfigError, ModelError
from dewmark_rewrite.protection import MeaningCheck
from dewmark_rewrite.sentences import TextSpan, sentences
from dewmark_rewrite.thesaurus import Candidate

if TYPE_CHECKING:
    from dewmark.watermark import Watermark
    from dewmark.workspace import Progress

Writer = Callable[[str, int], list[str]]
"""Answers to one request: the request, and how many."""

_REQUEST = (
    "Rewrite the sentence in other words. Keep its meaning, its names, its numbers and its length. "
    "Answer with the sentence alone.\n\n"
)
_KEY_VARIABLE = "OPENAI_API_KEY"
_TIMEOUT = 120.0
_LEAST_WORDS = 5
_QUOTES = "\"'“”‘’ "
_SHORTEST, _LONGEST = 0.6, 1.6  # a draft's length, relative to its sentence


def local_writer(
    mark: Watermark, *, seed: int, member: int | None = None, payload: int | None = None
) -> Writer:
    """Drafts by the watermark's own host, marked while it writes."""

    def write(request: str, number: int) -> list[str]:
        made = mark.generate_batch(
            messages=[[{"role": "user", "content": request}]] * number,
            seeds=[seed + i for i in range(number)],
            member=member,
            payload=payload,
            max_new_tokens=24 + len(request) // 3,
        )
        return [each.text for each in made]

    return write


@dataclass(frozen=True)
class ChatEndpoint:
    """An endpoint's address and the name of its model."""

    base_url: str
    model: str

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"--endpoint takes an http address such as http://localhost:8000/v1, "
                              f"got {self.base_url!r}")  # fmt: skip
        if not self.model:
            raise ConfigError("--endpoint needs the name of its model: add --model NAME")

    def answer(self, request: str, *, seed: int) -> str:
        """The model's answer to one message."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": request}],
            "temperature": 1.0,
            "seed": seed,
        }
        key = os.environ.get(_KEY_VARIABLE, "").strip()
        asked = urllib.request.Request(
            f"{self.base_url.rstrip('/')}/chat/completions",
            data=json.dumps(body).encode("utf-8"),
            headers={
                "Content-Type": "application/json",
                **({"Authorization": f"Bearer {key}"} if key else {}),
            },
        )
        try:
            with urllib.request.urlopen(asked, timeout=_TIMEOUT) as reply:
                return str(json.load(reply)["choices"][0]["message"]["content"])
        except urllib.error.HTTPError as error:
            raise ModelError(
                f"the endpoint {self.base_url} answered {error.code}: check its model and ${_KEY_VARIABLE}"
            ) from None
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ModelError(
                f"no answer from the endpoint {self.base_url} ({type(error).__name__}): check its address"
            ) from None


def endpoint_writer(endpoint: ChatEndpoint, *, seed: int) -> Writer:
    """Drafts by a chat model behind an endpoint."""
    return lambda request, number: [endpoint.answer(request, seed=seed + i) for i in range(number)]


def drafts(
    text: str,
    write: Writer,
    check: MeaningCheck,
    *,
    number: int,
    protected: Sequence[TextSpan],
    progress: Progress,
) -> Iterator[Candidate]:
    """Sentences that may replace those of a text; a sentence with anything protected in it stays."""
    found = [
        span
        for span in sentences(text)
        if len(text[span.start : span.end].split()) >= _LEAST_WORDS
        and not any(span.overlaps(other) for other in protected)
    ]
    for done, span in enumerate(found):
        progress("paraphrasing sentences", done, len(found))
        old = text[span.start : span.end]
        for draft in dict.fromkeys(map(_cleaned, write(_REQUEST + old, number))):
            ratio = len(draft) / len(old)
            if draft and draft != old and _SHORTEST <= ratio <= _LONGEST and check.keeps(old, draft):
                yield Candidate(span.start, span.end, old, draft)
    progress("paraphrasing sentences", len(found), len(found))


def _cleaned(draft: str) -> str:
    """The first line of an answer, without the quotes and the words that models put around it."""
    line = next((line.strip() for line in draft.splitlines() if line.strip()), "")
    line = re.sub(r"^(?:rewritten|sentence|answer|here[^:]*)\s*:\s*", "", line, flags=re.IGNORECASE)
    return line.strip(_QUOTES)
