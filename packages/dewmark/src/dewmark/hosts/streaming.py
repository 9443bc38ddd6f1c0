"""One text piece by piece, while a host writes it.

Boundary: an iterator over strings; the host runs in a thread of its own until the text or the reader ends.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from dewmark.decoding import Decoding
from dewmark.hosts.base import Host
from dewmark.scheme import BoundScheme

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # the decoding of an incomplete character


def stream_text(
    host: Host, prompt: str, *, scheme: BoundScheme | None, seed: int, decoding: Decoding
) -> Iterator[str]:
    """The pieces of the text that `Host.generate` would return; closing the iterator stops the host.

    No piece ends inside a character.
    """
    pieces: queue.Queue[str | BaseException | None] = queue.Queue()
    stopped = threading.Event()
    decode, special = host.info.tokenizer.decode, host.info.tokenizer.special_ids
    ids: list[int] = []
    sent = 0

    def take(step: list[int | None]) -> bool:
        nonlocal sent
        (token,) = step
        if token is not None and token not in special:
            ids.append(token)
            text = decode([ids])[0]
            settled = len(text.rstrip(_UNFINISHED))
            if settled > sent:
                pieces.put(text[sent:settled])
                sent = settled
        return token is not None and not stopped.is_set()

    def run() -> None:
        try:
            host.stream([prompt], scheme=scheme, seeds=[seed], decoding=decoding, on_step=take)
            pieces.put(decode([ids])[0][sent:] or None)
            pieces.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again where the text is read
            pieces.put(error)

    thread = threading.Thread(target=run, name="streaming", daemon=True)
    thread.start()
    try:
        while (piece := pieces.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece
    finally:
        stopped.set()
        thread.join()
