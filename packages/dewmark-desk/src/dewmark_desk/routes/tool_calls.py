"""Tools of OpenAI's chat completions: which functions a model may call, and the calls that it writes.

The functions are described in the conversation, and a grammar holds what is written: a call is one JSON
object with the function's name and its arguments by their schema. ``auto`` lets the model choose between a
call and a text, which then does not begin with a brace. An answer has at most one call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dewmark.errors import MissingExtraError
from dewmark_desk.http_errors import ApiError
from dewmark_desk.json_grammar import grammar_of, object_schema

Json = dict[str, Any]

_ASK = """You may call one of these functions, described as JSON:
{tools}
To call one, answer with its name and arguments alone: {{"name": "...", "arguments": {{...}}}}"""


class Strict(BaseModel):
    """Rejects unknown fields."""

    model_config = ConfigDict(extra="forbid")


class Function(Strict):
    """A function that may be called, and the JSON schema of its arguments."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = Field(None, max_length=4000)
    parameters: Json | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool; only functions are known."""

    type: Literal["function"]
    function: Function


class Named(Strict):
    """The name of a function."""

    name: str = Field(max_length=64)


class NamedTool(Strict):
    """The function that must be called."""

    type: Literal["function"]
    function: Named


class Called(BaseModel):
    """A function that the assistant called earlier, and its arguments as JSON."""

    name: str = Field(max_length=64)
    arguments: str


class ToolCall(BaseModel):
    """A call earlier in the conversation."""

    function: Called

    @property
    def text(self) -> str:
        """The call as the model wrote it."""
        return f'{{"name": {json.dumps(self.function.name)}, "arguments": {self.function.arguments}}}'


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def offered(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> list[Function]:
    """The functions that may be called."""
    functions = [each.function for each in tools or ()]
    if len({each.name for each in functions}) < len(functions):
        raise ApiError(422, "invalid_request", "tools: two functions have the same name")
    if choice == "none":
        return []
    if isinstance(choice, NamedTool):
        functions = [each for each in functions if each.name == choice.function.name]
    if not functions and choice not in (None, "auto"):
        raise ApiError(422, "invalid_request", "tool_choice: no such function in tools")
    return functions


def grammar_of_tools(functions: Sequence[Function], choice: ToolChoice | None) -> str:
    """What an answer must look like: a call, or also a text where the model may choose."""
    calls = [
        object_schema(name={"const": each.name}, arguments=each.parameters or {"type": "object"})
        for each in functions
    ]
    try:
        return grammar_of({"anyOf": calls}, what="tools", or_text=choice in (None, "auto"))
    except MissingExtraError as error:
        raise ApiError(422, "invalid_request", f"tools: {error}") from None


def description(functions: Sequence[Function]) -> str:
    """What the model is told about the functions."""
    lines = [json.dumps(each.model_dump(exclude_none=True, exclude={"strict"})) for each in functions]
    return _ASK.format(tools="\n".join(lines))


def call_of(text: str) -> Json | None:
    """The call that a text is, as JSON with ``name`` and ``arguments``; None for a text or half a call."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.keys() == {"name", "arguments"} else None


def tool_call(text: str, call_id: str) -> Json | None:
    """The same in OpenAI's format."""
    if (found := call_of(text)) is None:
        return None
    function = {"name": found["name"], "arguments": json.dumps(found["arguments"], ensure_ascii=False)}
    return {"id": call_id, "type": "function", "function": function}
