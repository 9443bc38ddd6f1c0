"""What a request may hold and what it will cost, settled before memory or a thread is spent on it.

1. `bounds_of` a path: the bytes of its body, which `middleware` counts while they arrive.
2. `parsed`: JSON in UTF-8 only. The raw bytes are scanned for depth and for the number of values before any
   of them becomes an object: a value takes a hundred times the memory of its text.
3. `admitted`: texts and prompts within limits. A prompt is context, of which only the last words are read:
   the rest is cut off here, and what is left counts like text.
4. `seconds_of` a query: an estimate from words, bytes, keys and reader. Requests that would take
   too long are refused; the others are charged and queued by it (`fair_pool`).

The estimates are for one core of a small server, and above what dense random words of eleven scripts took,
which are all new and nearly all scored. Boundary: numbers; nothing here reads a text.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dewmark.encoders.lexicon import MOST_TIMES
from dewmark.text.words import most_words
from dewmark.verdict import MIN_SEARCHED
from dewmark_desk.http_errors import ApiError
from dewmark_desk.settings import Settings
from dewmark_desk.verdicts import Examination, Query

MAX_VALUES = 10_000  # JSON values in a body; a thousand chat messages in parts have about 6,000
MAX_DEPTH = 16
SLICE = 0.25  # seconds of work that are done before others have their turn
RATE_SECONDS = 0.5  # of work that count as one text against a token's rate
_DOCUMENT_BYTES = 1 << 16  # of a signed report, which anyone may have verified
_FORM_BYTES = 4096  # around an uploaded file
_PROMPT = 2_048  # characters of a prompt that are read: the last words are context
_READ = 4_096  # words of a text that the packaged reader reads
_LONG_PROMPT = 8_192  # the same for a language model that reads the text

_BARE = bytes(set(range(256)) - set(b'",[]{}'))  # all but what structures a document


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most bytes and JSON values of a body."""

    body: int
    values: int = MAX_VALUES


def bounds_of(path: str, settings: Settings) -> Bounds:
    """The bounds of a path's bodies."""
    job = Bounds(settings.audit_bytes, 6 * settings.audit_texts + 100)  # an object and up to five fields each
    special = {
        "/v1/audit": job,
        "/v1/batches": job,
        "/v1/reports/verify": Bounds(_DOCUMENT_BYTES),
        "/v1/extract": Bounds(settings.extract_bytes + _FORM_BYTES),
    }
    return special.get(path, Bounds(settings.body_bytes))


def parsed(body: bytes, values: int) -> Any:  # noqa: ANN401 - any JSON value
    """The value of a JSON document in UTF-8 with at most this many values, `MAX_DEPTH` deep.

    The scan is a few passes of the interpreter's own over bytes: a regular expression would keep all other
    threads waiting for a third of a second.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise ApiError(400, "bad_request", "the body is not UTF-8") from None
    marks = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _BARE)
    if marks.count(b'"') > 4 * values:  # in an object every value has a name
        raise _too_many(values)
    outside = b"".join(marks.split(b'"')[::2])  # of strings; the last may have no end
    opened = outside.count(b"[") + outside.count(b"{")
    if 1 + outside.count(b",") + opened > values:
        raise _too_many(values)
    # more closing brackets than opening ones are no JSON, and stop the parser where they stand
    brackets = outside.translate(None, b",")[: 2 * opened]
    depth = itertools.accumulate(1 if each in b"[{" else -1 for each in brackets)
    if max(depth, default=0) > MAX_DEPTH:
        raise ApiError(413, "too_deep", f"the body may be nested {MAX_DEPTH} deep at most")
    try:
        return json.loads(text)
    except ValueError:
        raise ApiError(400, "bad_request", "the body is not valid JSON") from None


def _too_many(values: int) -> ApiError:
    return ApiError(413, "too_many_values", f"the body may contain at most {values:,} values")


def admitted(
    queries: Sequence[Query], how: Examination, settings: Settings, *, job: bool = False
) -> list[Query]:
    """The queries with their prompts cut; raises an error unless they are valid, few and small enough."""
    made, count, most = [], settings.texts, settings.request_bytes
    if job:
        count, most = settings.audit_texts, settings.audit_bytes
    if len(queries) > count:
        raise ApiError(422, "invalid_request", f"texts: at most {count:,} per request, got {len(queries):,}")
    for i, query in enumerate(queries):
        what = f"text {i}" if len(queries) > 1 else "the text"
        query.check(what)
        if len(query.text.encode()) > settings.text_bytes:
            limit = settings.text_bytes
            raise ApiError(413, "text_too_large", f"{what} has more than {limit:,} bytes")
        made.append(dataclasses.replace(query, prompt=context_of(query.prompt, how)))
    if sum(size_of(query) for query in made) > most:
        said = f"the texts have more than {most:,} bytes together: send fewer, or a batch"
        raise ApiError(413, "texts_too_large", said)
    return made


def context_of(prompt: str | None, how: Examination) -> str | None:
    """The end of a prompt, from the beginning of a word on, as far as it can be context."""
    most = _LONG_PROMPT if how.runs_a_model else _PROMPT
    if prompt is None or len(prompt) <= most:
        return prompt
    end = prompt[-most:]
    return end.split(maxsplit=1)[-1] if end.split() else end


def size_of(query: Query) -> int:
    """Bytes of text and prompt."""
    return len(query.text.encode()) + len((query.prompt or "").encode())


def seconds_of(query: Query, how: Examination) -> float:
    """The estimated work of one query: each key costs, and so do a search, rings and a reader."""
    units, size = _units(query, how), size_of(query)
    seconds = sum(
        0.004 + 12e-6 * units + 1.5e-6 * size + (0.004 if each.has_ring else 0.0) for each in how.tenants
    )
    seconds += 6e-6 * units + 45e-6 * min(units, _READ)  # the packaged reader, once for all keys
    if (new := _new_units(query, how, units)) >= MIN_SEARCHED:
        searched = [each for each in how.tenants if each.bound.finds_passages]
        kinds = len({each.bound.scheme for each in searched})  # each reads the text for itself
        # nine tenths are draws that only a striking text needs, such as a marked one (`dewmark.stats.scan`)
        seconds += kinds * (0.1 + 1.15e-3 * new) + len(searched) * (0.004 + 20e-6 * new)
    return seconds + (1e-3 * size if how.has_reader else 0.0)


def seconds_of_sketch(query: Query) -> float:
    """The estimated work of comparing a text with those asked about before (`resemblance`)."""
    return 0.001 + 25e-6 * _words(query.text) + 1e-6 * size_of(query)


_words = functools.lru_cache(maxsize=16)(most_words)  # a public text is priced twice


def _units(query: Query, how: Examination) -> int:
    """At least as many words as the detectors see in a text and its prompt; or tokens of two bytes each."""
    words = _words(query.text) + most_words(query.prompt or "")
    return (
        words if all(each.bound.scheme.host_free for each in how.tenants) else max(words, size_of(query) // 2)
    )


def _new_units(query: Query, how: Examination, units: int) -> int:
    """At least as many units as a search for passages compares; a word counts where it is new in the text."""
    if not all(each.bound.scheme.host_free for each in how.tenants):
        return units
    counts = Counter(query.text.split())
    return sum(
        # hyphens at line ends and markup with spaces join pieces, which may make new words each time
        (min(count, MOST_TIMES) if piece.strip(".,;:!?").isalnum() else count) * most_words(piece)
        for piece, count in counts.items()
    )


def check_seconds(seconds: float, most: float) -> None:
    """Refuse work that one request may not ask for."""
    if seconds > most:
        raise ApiError(
            413,
            "too_much_work",
            f"this would take about {seconds:.0f} s at once, and may take {most:g} s: "
            "send less text, name fewer tenants, or send a batch",
        )


def slices(queries: Sequence[Query], how: Examination) -> Iterator[tuple[list[Query], float]]:
    """The queries in parts of at most `SLICE` seconds, or of one query, with their seconds."""
    part: list[Query] = []
    total = 0.0
    for query in queries:
        seconds = seconds_of(query, how)
        if part and total + seconds > SLICE:
            yield part, total
            part, total = [], 0.0
        part.append(query)
        total += seconds
    if part:
        yield part, total
