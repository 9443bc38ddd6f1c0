"""Streaming one text: the same text as in one go, in whole characters, and stopping early."""

from __future__ import annotations

import threading

import pytest

from dewmark.decoding import Decoding
from dewmark.errors import InputError, ModelError
from dewmark.hosts.base import stream_text
from dewmark.hosts.fake import FakeHost

PROMPT = "the old bridge"


@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_the_pieces_make_up_the_text(kind):
    host = FakeHost(kind=kind)
    decoding = Decoding(max_new_tokens=40)
    (made,) = host.generate([PROMPT], scheme=None, seeds=[5], decoding=decoding)
    pieces = list(stream_text(host, PROMPT, scheme=None, seed=5, decoding=decoding))
    assert "".join(pieces) == made.text
    assert len(pieces) > 5
    if kind == "bytes":  # random bytes: incomplete characters wait, or come at the end
        assert not any(piece.endswith("\ufffd") for piece in pieces[:-1])


def test_closing_the_stream_stops_the_host():
    host = FakeHost()
    steps = []
    original = host.complete_steps

    def counted(*args, on_step, **options):
        return original(*args, on_step=lambda step: steps.append(step) or on_step(step), **options)

    host.complete_steps = counted
    stream = stream_text(host, PROMPT, scheme=None, seed=5, decoding=Decoding(max_new_tokens=400))
    next(stream)
    stream.close()
    assert len(steps) < 400
    assert not any(thread.name == "streaming" for thread in threading.enumerate())


def test_errors_reach_the_reader():
    host = FakeHost(context=64)
    with pytest.raises(InputError, match="leaves no room"):
        list(stream_text(host, PROMPT, scheme=None, seed=5, decoding=Decoding(max_new_tokens=100)))

    def fail(*args, **options):
        raise ModelError("out of memory")

    host.complete_steps = fail
    with pytest.raises(ModelError, match="out of memory"):
        next(stream_text(host, PROMPT, scheme=None, seed=5, decoding=Decoding(max_new_tokens=10)))
