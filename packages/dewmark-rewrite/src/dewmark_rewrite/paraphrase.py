"""Drafts of whole sentences by an instruct model, which become candidates like single words.

A local host writes its drafts with the mark; the drafts of an endpoint carry none, and the search among them
leaves one. Either way the drafts that fit the key best are chosen by the score of the text as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from dewmark_rewrite.meaning import MeaningCheck
from dewmark_rewrite.sentences import Span, sentences
from dewmark_rewrite.thesaurus import Candidate

if TYPE_CHECKING:
    from dewmark.watermark import Watermark
    from dewmark.workspace import Progress
    from dewmark_rewrite.endpoint import ChatEndpoint

Writer = Callable[[str, int], list[str]]
"""Answers to one request: the request, and how many."""

_REQUEST = (
    "Rewrite the sentence in other words. Keep its meaning, its names, its numbers and its length. "
    "Answer with the sentence alone.\n\n"
)
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


def endpoint_writer(endpoint: ChatEndpoint, *, seed: int) -> Writer:
    """Drafts by a chat model behind an endpoint."""
    return lambda request, number: [endpoint.answer(request, seed=seed + i) for i in range(number)]


def drafts(
    text: str,
    write: Writer,
    check: MeaningCheck,
    *,
    number: int,
    protected: Sequence[Span],
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
