"""Answers to the public: texts that are nearly the same get one answer, and pay for it once.

Someone who may ask often enough can measure how much each word of a marked text counts, by changing words and
watching the answer. So a public token gets one answer for a text and everything near it: an answer is stored
with a keyed sketch of its text (`text_sketch`, of pairs of words), and a later text whose sketch is similar
gets that answer. With `SIMILARITY` = 0.15 two texts count as nearly the same while about half of the words,
scattered over the text, are unchanged; unrelated texts have a similarity of about 0.02. To learn anything
more about a text, an attacker has to change half of it, and to pay from the token's budget of bytes.

Answers are shared within a token, not between tokens: otherwise anyone could decide what others are told
about a text by first asking about a scrambled copy.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.engine import Connection

from dewmark_desk.store import Store, answers, tokens
from dewmark_desk.text_sketch import Sketcher

SIMILARITY = 0.15
_PLACES, _SHINGLE = 128, 2
_MOST = 5_000  # answers kept per token; the oldest are forgotten
_MOST_TOKENS = 200  # whose answers one process remembers; the others are read again
_KEY = "public-answers"

Sketch = NDArray[np.uint32]  # (_PLACES,)
Answer = dict[str, Any]


class _Known:
    """The answers of one token that this process has read."""

    def __init__(self) -> None:
        self.last = 0
        self.sketches: list[Sketch] = []
        self.answers: list[Answer] = []

    def add(self, sketch: Sketch, answer: Answer, number: int) -> None:
        self.sketches.append(sketch)
        self.answers.append(answer)
        self.last = number
        if len(self.answers) > _MOST:
            del self.sketches[0], self.answers[0]

    def nearest(self, sketch: Sketch) -> Answer | None:
        if not self.sketches:
            return None
        similar = (np.stack(self.sketches) == sketch).mean(axis=1)
        best = int(similar.argmax())
        return self.answers[best] if similar[best] >= SIMILARITY else None


class PublicAnswers:
    """The answers that public tokens were given; with ``remember=False`` in this process's memory only."""

    def __init__(
        self, store: Store, *, remember: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        self._store, self._remember, self._clock = store, remember, clock
        self._sketch = Sketcher(bytes.fromhex(store.secret(_KEY)), shingle=_SHINGLE, places=_PLACES)
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def sketches(self, texts: Sequence[str]) -> list[Sketch]:
        """The sketches of texts."""
        return [np.array(self._sketch(text).places, dtype=np.uint32) for text in texts]

    @staticmethod
    def alike(one: Sketch, other: Sketch) -> bool:
        """Whether two texts are nearly the same."""
        return bool((one == other).mean() >= SIMILARITY)

    def find(self, token: str, sketches: Sequence[Sketch]) -> list[Answer | None]:
        """The answers that a token got for texts near these."""
        with self._lock, self._store.read() as connection:
            known = self._read(connection, token)
            return [known.nearest(sketch) for sketch in sketches]

    def keep(self, token: str, sketch: Sketch, answer: Answer) -> Answer:
        """Store an answer, unless another process has just stored one for a near text: that one counts."""
        with self._lock, self._store.write() as connection:
            known = self._read(connection, token)
            if (before := known.nearest(sketch)) is not None:
                return before
            number = known.last + 1
            if self._remember:
                row = {
                    "token": token,
                    "number": number,
                    "time": self._clock(),
                    "sketch": sketch.astype("<u4").tobytes(),
                    "answer": json.dumps(answer, ensure_ascii=False),
                }
                connection.execute(sa.insert(answers).values(row))
                connection.execute(
                    sa.delete(answers).where(answers.c.token == token, answers.c.number <= number - _MOST)
                )
            known.add(sketch, answer, number)
        return answer

    def expire(self) -> int:
        """Delete the answers of tokens that have ended; returns their number."""
        now = self._clock()
        ended = sa.select(tokens.c.id).where(sa.or_(tokens.c.revoked.is_not(None), tokens.c.expires < now))
        with self._store.write() as connection:
            return int(connection.execute(sa.delete(answers).where(answers.c.token.in_(ended))).rowcount)

    def _read(self, connection: Connection, token: str) -> _Known:
        """The answers of a token, with those that other processes have stored since."""
        if token not in self._known and len(self._known) >= _MOST_TOKENS and self._remember:
            self._known.clear()
        known = self._known.setdefault(token, _Known())
        if self._remember:
            newer = sa.select(answers).where(answers.c.token == token, answers.c.number > known.last)
            for row in connection.execute(newer.order_by(answers.c.number)):
                known.add(np.frombuffer(row.sketch, dtype="<u4"), json.loads(row.answer), row.number)
        return known
