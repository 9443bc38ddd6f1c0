"""Prompts and conversations from JSONL files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.batch.many import write_jsonl

from dewmark.batch.inputs import Prompt, as_request, read_prompts
from dewmark.errors import InputError

TALK = [{"role": "user", "content": "Who built the bridge?"}]


def prompts_of(folder: Path, *rows: dict[str, Any], chat: bool | None = None) -> list[Prompt]:
    return read_prompts(write_jsonl(folder / "prompts.jsonl", list(rows)), chat=chat)


def test_a_chat_file_has_conversations_and_requests_of_one_message(tmp_path):
    """Its first line says that it is one; a later line with a prompt is a message of the user's."""
    request = "Name a river."
    found = prompts_of(tmp_path, {"messages": TALK, "id": "a"}, {"prompt": request})
    assert found == [Prompt("a", "Who built the bridge?", TALK), Prompt("1", request, as_request(request))]
    assert prompts_of(tmp_path, {"prompt": request}, chat=True) == [Prompt("0", request, as_request(request))]


def test_without_chat_a_prompt_is_continued_whatever_messages_stand_beside_it(tmp_path):
    row = {"prompt": "The old bridge", "messages": TALK}
    for chat in (None, False):
        first = {"prompt": "It was built"}
        assert prompts_of(tmp_path, first, row, chat=chat)[1] == Prompt("1", "The old bridge", None)
    with pytest.raises(InputError, match=r'line 1 has no "prompt", only messages, which need --chat'):
        prompts_of(tmp_path, {"messages": TALK}, chat=False)
