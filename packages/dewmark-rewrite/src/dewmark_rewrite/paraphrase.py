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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dewmark.errors import ConfigError, ModelError
from dewmark_rewrite.protection import MeaningCheck
from dewmark_rewrite.sentences import TextSpan, sentences
from dewmark_rewrite.thesaurus import Candidate

if TYPE_CHECKING:
    from dewmark.watermark import Watermark
    from dewmark.workspace import Progress

Writer = Callable[[Sequence[str], int], Iterable[list[str]]]
"""Answers to requests: the requests, and how many answers to each."""

_REQUEST = (
    "Rewrite the sentence in other words. Keep its meaning, its names, its numbers and its length. "
    "Answer with the sentence alone.\n\n"
)
_KEY_VARIABLE = "OPENAI_API_KEY"
_TIMEOUT = 120.0
_LEAST_WORDS = 5
_SENTENCES = 16  # whose drafts a host writes at once
_QUOTES = "\"'“”‘’ "
_SHORTEST, _LONGEST = 0.6, 1.6  # a draft's length, relative to its sentence


def local_writer(
    mark: Watermark, *, seed: int, member: int | None = None, payload: int | None = None
) -> Writer:
    """Drafts by the watermark's own host, marked while it writes."""

    def write(requests: Sequence[str], number: int) -> Iterator[list[str]]:
        for start in range(0, len(requests), _SENTENCES):
            some = requests[start : start + _SENTENCES]
            made = mark.generate_batch(
                messages=[[{"role": "user", "content": each}] for _ in range(number) for each in some],
                seeds=[seed + i for i in range(number) for _ in some],
                member=member,
                payload=payload,
                batch_size=len(some) * number,
                max_new_tokens=24 + max(map(len, some)) // 3,
            )
            yield from ([each.text for each in made[i :: len(some)]] for i in range(len(some)))

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
        messages = [{"role": "user", "content": request}]
        body = {"model": self.model, "messages": messages, "temperature": 1.0, "seed": seed}
        key = os.environ.get(_KEY_VARIABLE, "").strip()
        asked = urllib.request.Request(
            f"{self.base_url.rstrip('/')}/chat/completions",
            data=json.dumps(body).encode("utf-8"),
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {key}"} if key else {}),
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
    return lambda asked, n: ([endpoint.answer(each, seed=seed + i) for i in range(n)] for each in asked)


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
    requests = [_REQUEST + text[span.start : span.end] for span in found]
    progress("paraphrasing sentences", 0, len(found))
    for done, (span, answers) in enumerate(zip(found, write(requests, number), strict=True), 1):
        old = text[span.start : span.end]
        for draft in dict.fromkeys(map(_cleaned, answers)):
            ratio = len(draft) / len(old)
            if draft and draft != old and _SHORTEST <= ratio <= _LONGEST and check.keeps(old, draft):
                yield Candidate(span.start, span.end, old, draft)
        progress("paraphrasing sentences", done, len(found))


def _cleaned(draft: str) -> str:
    """The first line of an answer, without the quotes and the words that models put around it."""
    line = next((line.strip() for line in draft.splitlines() if line.strip()), "")
    line = re.sub(r"^(?:rewritten|sentence|answer|here[^:]*)\s*:\s*", "", line, flags=re.IGNORECASE)
    return line.strip(_QUOTES)
