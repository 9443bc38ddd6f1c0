"""Marked text for many requests at once: requests that wait together and sample alike form one batch.

A text depends only on its own prompt, seed and decoding options, not on its batch (`dewmark.hosts.base`), so
batching changes no text. One thread runs the host; each request gets its text piece by piece through a queue
in its own event loop. A conversation becomes a prompt by the model's chat template, or by a plain transcript
if the model has none. Every tenant writes with its own key; texts of different keys are in different batches.

A request joins the next batch, not the running one, and waits until that has ended: this is for trying the
mark out, and an engine with continuous batching (`dewmark.hosts.engines.vllm`) is for serving it. A request
whose client has gone is dropped at once.

Boundary: prompts in, pieces of text out; `routes.openai` handles OpenAI's formats.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dewmark.capabilities import for_member
from dewmark.decoding import CHAT_DECODING, Decoding
from dewmark.errors import DewmarkError
from dewmark.hosts import chat_format
from dewmark.hosts.base import ChatFormat, Conversation, Host, check_decoding
from dewmark.hosts.transformers.tokenizer import HFTokenizer
from dewmark.policy import Policy
from dewmark.room import Room
from dewmark.scheme import BoundScheme
from dewmark.verdict import DEFAULT_FPR
from dewmark_desk.fair_pool import Overloaded
from dewmark_desk.structured_output import constrained

_SPEAKERS = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}
_GATHER_SECONDS = 0.02  # how long the first request of a batch waits for others
_RETRY_SECONDS = 10.0  # suggested to rejected callers, as the remaining time is unknown
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # the decoding of an incomplete character

_log = logging.getLogger("dewmark_desk")


def chat_format_or_transcript(name: str) -> ChatFormat:
    """A host's chat format; plain transcripts for a host that has none."""
    try:
        return chat_format(name)
    except DewmarkError as error:
        _log.warning("%s: conversations become transcripts", error)
        return ChatFormat(transcript, CHAT_DECODING)


def transcript(messages: Conversation) -> str:
    """A conversation as a transcript, for base models."""
    lines = [f"{_SPEAKERS[message['role']]}: {message['content'].strip()}" for message in messages]
    return "\n\n".join([*lines, "Assistant:"])


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One completion to generate; it ends before the first of its ``stop`` sequences."""

    prompt: str = dataclasses.field(repr=False)
    tenant: str
    seed: int
    decoding: Decoding
    stop: tuple[str, ...] = ()
    payload: int | None = None
    owner: str = ""
    marked: bool = True
    exempt: str | None = None
    """Why it carries no mark, if it does not."""
    grammar: str | None = dataclasses.field(default=None, repr=False)
    """What the text must look like (`structured_output`)."""

    def samples_like(self, other: GenerationRequest) -> bool:
        """Whether it has the same mark, and decoding options that differ in length at most."""
        decoding = dataclasses.replace(self.decoding, max_new_tokens=other.decoding.max_new_tokens)
        mine, theirs = ((each.tenant, each.payload, each.marked, each.grammar) for each in (self, other))
        return mine == theirs and decoding == other.decoding


class TextStream:
    """The text of one request in pieces; iterate over it in the event loop that created it."""

    def __init__(self, request: GenerationRequest, decode: Callable[[list[int]], str]) -> None:
        self.request = request
        self.tokens = 0
        self.reason = "stop"  # or "length"; final after the last piece
        self.room: Room | None = None  # what the text has left to the mark so far
        self._decode = decode
        self._ids: list[int] = []
        self._sent = 0  # characters
        self.open = True
        """Whether more tokens are needed."""
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[str | BaseException | None] = asyncio.Queue()

    @property
    def text(self) -> str:
        """What was written so far and sent."""
        return self._decode(self._ids)[: self._sent]

    def cancel(self) -> None:
        """Stop, because the reader has gone."""
        self.open = False

    def take(self, token: int | None, room: Room | None = None) -> None:
        """Add the next token, or None at the end of the text. Called by the generating thread."""
        self.room = room
        if token is None:
            self.end()
            return
        self._ids.append(token)
        self.tokens = len(self._ids)
        text = self._decode(self._ids)
        found = [place for place in (text.find(stop) for stop in self.request.stop) if place >= 0]
        if found:
            self._send(text, min(found))
            self._close()
        elif self.tokens >= self.request.decoding.max_new_tokens:
            self.reason = "length"
            self.end()
        else:
            self._send(text, _settled(text, self.request.stop))

    def end(self) -> None:
        """Send the rest of the text. Called by the generating thread."""
        if self.open:
            text = self._decode(self._ids)
            self._send(text, len(text))
            self._close()

    def fail(self, error: BaseException) -> None:
        """End with an error. Called by the generating thread."""
        if self.open:
            self.open = False
            self._put(error)

    async def __aiter__(self) -> AsyncIterator[str]:
        while (piece := await self._pieces.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    def _send(self, text: str, until: int) -> None:
        if until > self._sent:
            self._put(text[self._sent : until])
            self._sent = until

    def _close(self) -> None:
        self.open = False
        self._put(None)

    def _put(self, piece: str | BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
        except RuntimeError:  # the event loop has closed, so there is no reader
            self.open = False


class TextGenerator:
    """A host that generates marked text, batch by batch, in its own thread."""

    def __init__(
        self,
        host: Host,
        writers: Mapping[str, BoundScheme],
        *,
        name: str,
        chat: ChatFormat,
        max_waiting: int,
        batch_size: int,
        policy: Policy | None = None,
        fpr: float = DEFAULT_FPR,
    ) -> None:
        """``writers`` are the marks by tenant; ``chat`` is the host's chat format.

        ``fpr`` is the level at which texts will be judged.
        """
        self.policy, self._fpr = policy, fpr
        self.host, self.writers, self.name, self.chat = host, dict(writers), name, chat
        self._max_waiting, self._batch_size = max_waiting, batch_size
        self._streams: deque[TextStream] = deque()
        self._turns: dict[str, int] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="generator", daemon=True)
        self._thread.start()

    def check(self, request: GenerationRequest) -> None:
        """Raise an error if the host or the scheme cannot serve the request."""
        check_decoding(request.decoding, self._writer(request))
        self.host.check_prompts([request.prompt], request.decoding.max_new_tokens)

    def can_mark(self, tenant: str, decoding: Decoding) -> bool:
        """Whether these decoding options leave a choice to put the tenant's mark into."""
        return decoding.takes_likeliest is None or not self.writers[tenant].needs.sampling

    def unmarked_reason(self, stream: TextStream) -> str | None:
        """Why a finished text carries no mark, or none that could be found; None if it is marked."""
        request = stream.request
        if not request.marked:
            return request.exempt
        return self.writers[request.tenant].unmarked_reason(stream.room, fpr=self._fpr)

    def _writer(self, request: GenerationRequest) -> BoundScheme | None:
        if request.grammar is None and not request.marked:
            return None
        bound = for_member(self.writers[request.tenant], member=None, payload=request.payload)
        bound = bound.under_policy(self.policy if request.marked else None)
        if request.grammar is not None:
            bound = constrained(bound, request.grammar, marked=request.marked)
        return bound

    def count_tokens(self, prompt: str) -> int:
        """The number of tokens in a prompt; special tokens of a chat template count once if recognized."""
        tokenizer = self.host.info.tokenizer
        if isinstance(tokenizer, HFTokenizer):
            return len(tokenizer.encode_prompts([prompt])[0])
        return len(tokenizer.encode([prompt])[0].ids)

    def log_row(self, stream: TextStream, *, request_id: str) -> dict[str, Any]:
        """Which parts of a text were marked, and why others were not: spans of characters, no text.

        Whoever has the text and the prompt can compute the same spans (``dewmark policy explain``), so the
        log can be checked.
        """
        request, policy, text = stream.request, self.policy, stream.text
        bound, unmarked = self.writers[request.tenant], self.unmarked_reason(stream)
        spans = policy.spans(text, request.prompt) if policy is not None and request.marked else []
        return {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "request": request_id,
            "tenant": request.tenant,
            "policy": None if policy is None else policy.version,
            "key_fingerprint": bound.fingerprint,
            "scheme": bound.scheme.name,
            "member": bound.member_of(request.seed) if request.marked else None,
            "payload": request.payload,
            "marked": unmarked is None,
            "unmarked": unmarked,
            "room": None if stream.room is None else round(stream.room.z, 1),
            "tokens": stream.tokens,
            "characters": len(text),
            "spans": [[each.start, each.end, each.reason] for each in spans],
        }

    def submit(self, requests: Sequence[GenerationRequest]) -> list[TextStream]:
        """Queue checked requests; call it in the event loop that reads the streams."""
        streams = [TextStream(request, self._decode) for request in requests]
        with self._changed:
            self._streams = deque(stream for stream in self._streams if stream.open)  # others have gone
            owners = [stream.request.owner for stream in self._streams]
            own, all_ = owners.count(requests[0].owner), len({requests[0].owner, *owners})
            full = len(owners) + len(streams) > self._max_waiting
            if self._closing or (full and own and own + len(streams) > self._max_waiting // all_):
                raise Overloaded(_RETRY_SECONDS)
            self._streams.extend(streams)
            self._changed.notify()
        return streams

    def close(self) -> None:
        """Finish accepted requests, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _decode(self, ids: list[int]) -> str:
        return self.host.info.tokenizer.decode([ids])[0]

    def _run(self) -> None:
        while (streams := self._take()) != []:
            if streams is None:
                continue
            try:
                self._generate(streams)
            except Exception as error:  # noqa: BLE001 - goes to the callers
                if not isinstance(error, DewmarkError):
                    _log.exception("generation failed", exc_info=error)
                for stream in streams:
                    stream.fail(error)

    def _take(self) -> list[TextStream] | None:
        """The next streams that sample alike; empty once the generator has closed, None to try again."""
        with self._changed:
            while not self._streams:
                if self._closing:
                    return []
                self._changed.wait()
        time.sleep(_GATHER_SECONDS)
        with self._changed:
            self._streams = deque(stream for stream in self._streams if stream.open)
            if not self._streams:  # their clients have gone
                return [] if self._closing else None
            # the owner whose turn is longest ago, and what waits longest of it
            first = min(self._streams, key=lambda stream: self._turns.get(stream.request.owner, 0)).request
            self._turns[first.owner] = max(self._turns.values(), default=0) + 1
            alike = [stream for stream in self._streams if stream.request.samples_like(first)]
            alike.sort(key=lambda stream: stream.request.owner != first.owner)
            taken = alike[: self._batch_size]
            self._streams = deque(stream for stream in self._streams if stream not in taken)
        return taken

    def _generate(self, streams: list[TextStream]) -> None:
        decodings = [stream.request.decoding for stream in streams]

        def hand_out(step: list[int | None], rooms: Sequence[Room | None]) -> bool:
            for stream, token, room in zip(streams, step, rooms, strict=True):
                if stream.open:
                    stream.take(token, room)
            return any(stream.open for stream in streams)

        self.host.stream(
            [stream.request.prompt for stream in streams],
            scheme=self._writer(streams[0].request),
            seeds=[stream.request.seed for stream in streams],
            decoding=max(decodings, key=lambda decoding: decoding.max_new_tokens),
            on_step=hand_out,
        )
        for stream in streams:
            stream.end()


def _settled(text: str, stops: Sequence[str]) -> int:
    """How many characters of a growing text are final: complete, and not the start of a stop sequence."""
    end = len(text.rstrip(_UNFINISHED))
    for stop in stops:
        for size in range(min(len(stop) - 1, end), 0, -1):
            if text[:end].endswith(stop[:size]):
                end -= size
                break
    return end
