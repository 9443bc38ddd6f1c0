"""Streams of generated text, and transcripts."""

from __future__ import annotations

import asyncio

from dewmark.decoding import Decoding
from dewmark_desk.generation import GenerationRequest, TextStream, transcript


class TestTextStream:
    def test_split_character_is_sent_whole(self):
        data = "a né 👩 z".encode()

        async def main() -> list[str]:
            request = GenerationRequest("", "acme", seed=0, decoding=Decoding(max_new_tokens=100))
            stream = TextStream(request, lambda ids: bytes(ids).decode(errors="replace"))
            for byte in data:
                stream.take(byte)
            stream.take(None)
            return [piece async for piece in stream]

        pieces = asyncio.run(main())
        assert "".join(pieces).encode() == data
        assert not any("\ufffd" in piece for piece in pieces)


def test_transcript_names_the_speakers():
    messages = [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "Hello"}]
    assert transcript(messages) == "System: Be brief.\n\nUser: Hello\n\nAssistant:"
