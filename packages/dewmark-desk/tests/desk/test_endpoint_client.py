"""Our client for OpenAI-compatible endpoints against our own service, over a real connection."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.desk.live import live_service

from dewmark.errors import ModelError
from dewmark_lab.chat.endpoint import EndpointChat

CHATS = [
    [{"role": "user", "content": text}] for text in ("tell of the sea", "the old bridge", "tell of rain")
]


def test_answers_depend_on_conversation_and_seed(tmp_path: Path):
    with live_service(tmp_path, generates=True, greedy="refuse") as url:
        chat = EndpointChat(f"{url}/v1", "tiny", temperature=1.0, concurrency=3)
        answers = chat.complete(CHATS, seeds=[1, 2, 3], max_new_tokens=12)
        assert chat.complete(CHATS[1:2], seeds=[2], max_new_tokens=12) == answers[1:2]
        assert len(set(answers)) == 3
        assert all(answers)
        with pytest.raises(ModelError, match="rejects the request .status 422"):
            EndpointChat(f"{url}/v1", "tiny", temperature=0.0).complete(
                CHATS, seeds=[1, 2, 3], max_new_tokens=5
            )
