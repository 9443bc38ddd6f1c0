"""Marked text for many requests at once: those that wait together and sample alike are written in one batch.

A text depends on its own prompt, seed and settings, not on the batch it is written in (`dewmark.hosts.base`),
so sharing a batch changes nobody's text. One thread runs the host; each request gets its pieces of text as
they come, through a queue of its own event loop.

Boundary: prompts in, pieces of text out; OpenAI's formats are in `openai_format`.

From a conversation to a prompt: the model's own chat template, or a plain transcript where it has none.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from dewmark.decoding import Decoding
from dewmark.errors import DewmarkError
from dewmark.hosts.base import check_decoding
from dewmark.hosts.chat.models import Conversation, Render, chat_template
from dewmark.hosts.transformers.tokenizer import HFTokenizer
from dewmark.serve.thread_pool import Overloaded
from dewmark.watermark import Watermark

__all__ = ["Render", "Stream", "Wish", "Writer", "chat_renderer", "transcript"]

_log = logging.getLogger("dewmark.serve")

_SPEAKERS = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}


def chat_renderer(name: str) -> Render:
    """How a host by name wants conversations to be written."""
    try:
        return chat_template(name) or transcript
    except DewmarkError as error:
        _log.warning("no chat template was found", exc_info=error)
        return transcript


def transcript(messages: Conversation) -> str:
    """A conversation as a base model may have seen one."""
    lines = [f"{_SPEAKERS[message['role']]}: {message['content'].strip()}" for message in messages]
    return "\n\n".join([*lines, "Assistant:"])


_GATHER = 0.02  # seconds that the first of a batch waits for others

_NO_REPEAT = 4  # as in `Watermark.generate`

_PATIENCE = 10.0  # seconds to name when there is no telling how long the texts before take

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # how a character looks of which not all bytes are there


@dataclass(frozen=True, slots=True)
class Wish:
    """One completion that somebody asks for."""

    prompt: str = field(repr=False)
    seed: int
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()

    @property
    def decoding(self) -> Decoding:
        """How its tokens are chosen; raises `ConfigError` for what makes no sense."""
        return Decoding(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            no_repeat_ngram=_NO_REPEAT,
        )


class Stream:
    """The pieces of one text as they are written; iterate over it in the event loop that made it."""

    def __init__(self, wish: Wish, decode: Callable[[list[int]], str]) -> None:
        self.wish = wish
        self.tokens = 0
        self.reason = "stop"  # or "length"; known when the last piece has come
        self._decode = decode
        self._ids: list[int] = []
        self._told = 0  # characters handed out
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[str | BaseException | None] = asyncio.Queue()

    @property
    def open(self) -> bool:
        """Whether more tokens are wanted."""
        return self._open

    def cancel(self) -> None:
        """Nobody reads any more."""
        self._open = False

    def take(self, token: int | None) -> None:
        """The next token, or None at the text's end. Called by the writing thread."""
        if token is None:
            self.end()
            return
        self._ids.append(token)
        self.tokens = len(self._ids)
        text = self._decode(self._ids)
        found = [place for place in (text.find(stop) for stop in self.wish.stop) if place >= 0]
        if found:
            self._tell(text, min(found))
            self._close()
        elif self.tokens >= self.wish.max_new_tokens:
            self.reason = "length"
            self.end()
        else:
            self._tell(text, _settled(text, self.wish.stop))

    def end(self) -> None:
        """No more tokens come. Called by the writing thread."""
        if self._open:
            text = self._decode(self._ids)
            self._tell(text, len(text))
            self._close()

    def fail(self, error: BaseException) -> None:
        """Nothing comes any more. Called by the writing thread."""
        if self._open:
            self._open = False
            self._put(error)

    async def __aiter__(self) -> AsyncIterator[str]:
        while (piece := await self._pieces.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    def _tell(self, text: str, until: int) -> None:
        if until > self._told:
            self._put(text[self._told : until])
            self._told = until

    def _close(self) -> None:
        self._open = False
        self._put(None)

    def _put(self, piece: str | BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
        except RuntimeError:  # the event loop has closed: nobody reads
            self._open = False


class Writer:
    """A host that writes marked text, one batch after another, in a thread of its own."""

    def __init__(self, watermark: Watermark, *, name: str, render: Render, waiting: int, batch: int) -> None:
        """``render`` turns a conversation into a prompt."""
        self.watermark, self.name, self.render = watermark, name, render
        self.host = watermark.host  # loads the weights now, not when the first request waits
        self._most, self._batch = waiting, batch
        self._streams: deque[Stream] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def check(self, wish: Wish) -> None:
        """Refuse what the host or the scheme cannot do, before it waits."""
        check_decoding(wish.decoding, self.watermark.scheme)
        self.host.check_prompts([wish.prompt], wish.max_new_tokens)

    def count(self, prompt: str) -> int:
        """How many tokens a prompt has; a chat template's marks are one each where the engine knows them."""
        tokenizer = self.host.info.tokenizer
        if isinstance(tokenizer, HFTokenizer):
            return len(tokenizer.encode_prompts([prompt])[0])
        return len(tokenizer.encode([prompt])[0].ids)

    def submit(self, wishes: Sequence[Wish]) -> list[Stream]:
        """Queue checked wishes; call it in the event loop that reads the streams."""
        streams = [Stream(wish, self._decoded) for wish in wishes]
        with self._changed:
            if self._closing or (self._streams and len(self._streams) + len(streams) > self._most):
                raise Overloaded(_PATIENCE)
            self._streams.extend(streams)
            self._changed.notify()
        return streams

    def close(self) -> None:
        """Finish what was taken, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _decoded(self, ids: list[int]) -> str:
        return self.host.info.tokenizer.decode([ids])[0]

    def _run(self) -> None:
        while streams := self._take():
            try:
                self._write(streams)
            except DewmarkError as error:
                for stream in streams:
                    stream.fail(error)
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                _log.exception("writing failed", exc_info=error)
                for stream in streams:
                    stream.fail(error)

    def _take(self) -> list[Stream]:
        """The next streams that sample alike; nothing when the writer has closed."""
        with self._changed:
            while not self._streams:
                if self._closing:
                    return []
                self._changed.wait()
        time.sleep(_GATHER)
        with self._changed:
            first = self._streams[0].wish
            alike = [
                stream
                for stream in self._streams
                if (stream.wish.temperature, stream.wish.top_p) == (first.temperature, first.top_p)
            ][: self._batch]
            self._streams = deque(stream for stream in self._streams if stream not in alike)
        return alike

    def _write(self, streams: list[Stream]) -> None:
        streams = [stream for stream in streams if stream.open]
        if not streams:
            return
        longest = max((stream.wish for stream in streams), key=lambda wish: wish.max_new_tokens)

        def hand_out(step: list[int | None]) -> bool:
            for stream, token in zip(streams, step, strict=True):
                if stream.open:
                    stream.take(token)
            return any(stream.open for stream in streams)

        self.host.stream(
            [stream.wish.prompt for stream in streams],
            scheme=self.watermark.scheme,
            seeds=[stream.wish.seed for stream in streams],
            decoding=longest.decoding,
            on_step=hand_out,
        )
        for stream in streams:
            stream.end()


def _settled(text: str, stops: Sequence[str]) -> int:
    """How much of a growing text will not change any more, nor turn out to begin a stop sequence."""
    end = len(text.rstrip(_UNFINISHED))
    for stop in stops:
        for size in range(min(len(stop) - 1, end), 0, -1):
            if text[:end].endswith(stop[:size]):
                end -= size
                break
    return end
