"""JSON schemas as grammars for the library llguidance, within limits.

A schema of a kilobyte may describe more states than any memory holds. So schemas are bounded in bytes, depth
and patterns, and compiled for trial in a `limited_child`; what that compiles in its limits, a worker may.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from dewmark.errors import ConfigError, InputError
from dewmark.extras import require
from dewmark_desk.limited_child import Bounds, run

MAX_BYTES = 1 << 16
"""The longest schema, as JSON."""
MAX_DEPTH = 32
MAX_PATTERNS = 32
"""The most regular expressions in a schema."""
SECONDS = 2.0
"""The most processor time that a schema may take to compile, from the start of its process."""

_MEMORY = 512 << 20


def object_schema(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON schemas
    """The schema of an object with these fields and no others."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def grammar_of(schema: Mapping[str, Any], *, what: str = "response_format", or_text: bool = False) -> str:
    """The grammar of a JSON schema; `ConfigError` says what is wrong with it, in the field ``what``.

    ``or_text`` also allows any text that does not begin with a brace or white space. It blocks: call it in a
    thread.
    """
    require("llguidance", extra="structured", package="dewmark-desk")
    try:
        check_bounds(schema)
        # without free white space: small models can write it for ever
        return _compiled(json.dumps({**schema, "x-guidance": {"whitespace_flexible": False}}), or_text)
    except InputError as error:
        raise ConfigError(f"{what}: {error}") from None


def check_bounds(schema: Mapping[str, Any]) -> None:
    """Raise `InputError` for a schema that is too long, too deep, or has too many patterns."""
    patterns, level = 0, list[Any]([schema])
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                named = value.get("patternProperties")
                patterns += isinstance(value.get("pattern"), str)
                patterns += len(named) if isinstance(named, Mapping) else 0
                below += value.values()
            elif isinstance(value, list):
                below += value
        level = below
    if any(isinstance(each, Mapping | list) for each in level):
        raise InputError(f"the schema is more than {MAX_DEPTH} deep: make it flatter")
    if patterns > MAX_PATTERNS:
        raise InputError(f"the schema has {patterns} patterns: give at most {MAX_PATTERNS}")
    if (size := len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "replace"))) > MAX_BYTES:
        raise InputError(f"the schema has {size:,} bytes: give at most {MAX_BYTES:,}")


@functools.lru_cache(maxsize=64)
def _compiled(schema: str, or_text: bool) -> str:
    # an object of the schema, or also a text
    lark = f"start: value | text\nvalue: %json {schema}\ntext: /[^{{\\s](.|\\n)*/\n"
    kind, source = ("lark", lark) if or_text else ("json_schema", schema)
    bounds = Bounds(SECONDS, _MEMORY)
    try:
        return run(f"{__name__}:compiled", kind, data=source.encode(), bounds=bounds).decode()
    except (TimeoutError, ChildProcessError):
        raise InputError("the schema takes too long or too much memory to compile: simplify it") from None


def compiled(source: bytes, kind: str) -> bytes:
    """The grammar of a source of this kind. For the child process."""
    import llguidance

    matcher = llguidance.LLMatcher
    try:
        grammar: str = getattr(matcher, f"grammar_from_{kind}")(source.decode())
        problem = matcher.validate_grammar(grammar, None)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise InputError(" ".join(problem.split())[:300])
    return grammar.encode()
