"""Tools: the grammar of calls, the conversation around them, and OpenAI's format, whole and streamed."""

from __future__ import annotations

import json

import pytest
import torch
from tests.desk.test_structured_output import letters  # noqa: F401 - a fixture

from dewmark.decoding import Decoding
from dewmark_desk.generation import TextStream
from dewmark_desk.http_errors import ApiError
from dewmark_desk.routes.openai import ChatMessage
from dewmark_desk.routes.tool_calls import NamedTool, Tool, call_of, description, grammar_of_tools, offered
from dewmark_desk.structured_output import GrammarSession

llguidance = pytest.importorskip("llguidance")

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Ulm", "Bern"]}, "days": {"type": "integer", "maximum": 9}},
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "maxProperties": 0}}},
]
CALL = '{"name": "weather", "arguments": {"city": "Ulm", "days": 2}}'
ASKED = {"model": "tiny", "max_tokens": 20, "messages": [{"role": "user", "content": "the old bridge"}]}


def functions(choice=None):
    return offered([Tool.model_validate(each) for each in TOOLS], choice)


def written(letters, choice, rows=24, steps=120):  # noqa: F811 - the fixture
    """What a host of random logits writes under the grammar: finished texts."""
    tokenizer, end = letters
    vocab = tokenizer.get_vocab_size()
    guide = llguidance.LLTokenizer(tokenizer.to_str(), n_vocab=vocab, eos_token=end)
    ids = torch.zeros((rows, 1), dtype=torch.long)
    grammar = grammar_of_tools(functions(choice), choice)
    session = GrammarSession(grammar, guide, None, ids, seeds=range(rows))
    generator = torch.Generator().manual_seed(7)
    brace = tokenizer.encode("{").ids[0]
    for step in range(steps):
        logits = torch.randn((rows, vocab), generator=generator)
        if step == 0:
            logits[::2, brace] += 20.0  # half of them would rather call
        ids = torch.cat((ids, session.choose(ids, logits, Decoding())[0][:, None]), dim=1)
    found = [row[: row.index(end)] for row in ids[:, 1:].tolist() if end in row]
    return [tokenizer.decode(row) for row in found]


def test_required_calls_are_calls(letters):  # noqa: F811 - the fixture
    calls = [call_of(text) for text in written(letters, "required")]
    assert len(calls) == 24
    assert {each["name"] for each in calls} == {"weather", "now"}
    for each in calls:
        if each["name"] == "weather":
            assert each["arguments"]["city"] in ("Ulm", "Bern")
            assert each["arguments"]["days"] <= 9
        else:
            assert each["arguments"] == {}


def test_the_model_may_choose_between_a_call_and_a_text(letters):  # noqa: F811 - the fixture
    texts = written(letters, "auto")
    calls = [text for text in texts if text.startswith("{")]
    assert len(calls) == 12
    assert all(call_of(text) for text in calls)


def test_a_named_function_is_the_only_one():
    choice = NamedTool.model_validate({"type": "function", "function": {"name": "now"}})
    assert [each.name for each in functions(choice)] == ["now"]
    assert functions("none") == []
    other = NamedTool.model_validate({"type": "function", "function": {"name": "later"}})
    with pytest.raises(ApiError, match="no such function"):
        functions(other)


def test_the_conversation_describes_functions_and_keeps_calls():
    assert '"name": "weather"' in description(functions())
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    message = ChatMessage.model_validate({"role": "assistant", "content": None, "tool_calls": [call]})
    assert json.loads(message.text) == {"name": "now", "arguments": {}}


@pytest.fixture
def client(open_service, monkeypatch):
    """A service whose host writes `CALL`: the tests' own host knows words only."""

    async def pieces(self):
        for place in range(0, len(CALL), 9):
            yield CALL[place : place + 9]

    monkeypatch.setattr(TextStream, "__aiter__", pieces)
    monkeypatch.setattr("dewmark_desk.routes.openai.grammar_of_tools", lambda *_: None)
    return open_service(generates=True)


def test_calls_in_openai_s_format(client):
    (choice,) = client.post("/v1/chat/completions", json={**ASKED, "tools": TOOLS}).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Ulm", "days": 2}
    said = client.post("/v1/chat/completions", json={**ASKED, "tools": TOOLS, "stream": True}).text
    rows = [json.loads(line[6:])["choices"][0] for line in said.split("\n\n") if line.startswith("data: {")]
    (delta,) = (row["delta"] for row in rows if "tool_calls" in row["delta"])
    assert delta["tool_calls"][0]["function"] == call["function"]
    assert rows[-1]["finish_reason"] == "tool_calls"
    assert not any(row["delta"].get("content") for row in rows)


def test_tools_and_a_response_format_exclude_each_other(client):
    asked = {**ASKED, "tools": TOOLS, "response_format": {"type": "json_object"}}
    assert client.post("/v1/chat/completions", json=asked).status_code == 422
    twice = {**ASKED, "tools": [TOOLS[0], TOOLS[0]]}
    assert "same name" in client.post("/v1/chat/completions", json=twice).text
