"""Tasks whose answers can be checked by a program, and what the package asks a host.

The package's own: requests for JSON and for Python that must parse, questions about short passages, and sums
in words, drawn from templates. A file of your own is JSONL with a ``prompt`` (or ``question``) and one of

- ``answer``: a text, a number or a list of accepted ones. A number must be the last number of the answer, a
  text must occur in it word by word. Of GSM8K's solutions only what follows ``####`` counts.
- ``pattern``: a regular expression that the answer must contain (format instructions such as IFEval's).
- ``check``: ``json`` or ``python``, which the answer must parse as.

Boundary: files and answers in, items and verdicts out; no host.
"""

from __future__ import annotations

import ast
import json
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from dewmark.errors import ConfigError, InputError
from dewmark.registry import unknown_name
from dewmark.storage import read_jsonl
from dewmark.text.words import words

PACKAGED = ("json", "code", "arithmetic", "reading")
_CHECKS = ("json", "python")
_DRAWS = 6  # sums of each template

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_REFUSAL = re.compile(
    r"(i'm|i am|we are|we're) (very |so |really )?(sorry|unable|afraid)|i (can't|cannot|won't|will not) "
    r"|i apologi[sz]e|as an? (ai|language model|assistant)|(it is|it's) not (possible|appropriate) for me"
)
_OPENING = 120  # characters of an answer in which a refusal is looked for


@dataclass(frozen=True, slots=True)
class TaskItem:
    """A prompt, and what its answer is checked for: nothing, accepted answers, a pattern or a format."""

    id: str
    prompt: str
    accepted: tuple[str, ...] = ()
    pattern: str = ""
    check: str = ""

    @property
    def checked(self) -> bool:
        """Whether an answer can be right or wrong."""
        return bool(self.accepted or self.pattern or self.check)

    def solved(self, text: str) -> bool:
        """Whether an answer is right."""
        if self.check:
            return parses_json(text) if self.check == "json" else parses_python(text)
        if self.pattern:
            return re.search(self.pattern, text) is not None
        return any(answers(text, each) for each in self.accepted)


def packaged_tasks(name: str) -> list[TaskItem]:
    """The items of one of the package's tasks."""
    if name not in PACKAGED:
        raise unknown_name("task", name, PACKAGED)
    if name == "arithmetic":
        return list(_sums())
    file = Path(str(resources.files("dewmark_lab"))) / "data" / "quality" / f"{name}.jsonl"
    rows = [row for _, row in read_jsonl(file)]
    if name != "reading":
        return [TaskItem(**row) for row in rows]
    return [
        TaskItem(
            f"reading-{i:02d}-{j}",
            f"{row['passage']}\n\n{asked['question']} Answer in a few words.",
            accepted=_accepted(asked["answer"]),
        )
        for i, row in enumerate(rows, start=1)
        for j, asked in enumerate(row["questions"], start=1)
    ]


def read_tasks(file: Path) -> list[TaskItem]:
    """The items of a user's file; `InputError` names the first line that cannot be used."""
    found = [_item(row, f"{file}, line {number}") for number, row in read_jsonl(file)]
    if not found:
        raise InputError(f"{file} has no items: each line needs a prompt and an answer, pattern or check")
    return found


def parses_json(text: str) -> bool:
    """Whether the first object or array of an answer, in a fence or not, is complete JSON."""
    fenced = _FENCE.search(text)
    inner = fenced[1] if fenced else text
    start = re.search(r"[{\[]", inner)
    if start is None:
        return False
    try:
        json.JSONDecoder().raw_decode(inner[start.start() :])
    except (ValueError, RecursionError):
        return False
    return True


def parses_python(text: str) -> bool:
    """Whether the fenced parts of an answer, or all of it if there are none, are Python with a statement."""
    source = "\n".join(_FENCE.findall(text)) or text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings
            return bool(ast.parse(source).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def answers(text: str, wanted: str) -> bool:
    """Whether a number is the last one in a text, or the words of an answer occur in it, side by side."""
    if _NUMBER.fullmatch(wanted):
        found = _NUMBER.findall(text)
        return bool(found) and _value(found[-1]) == _value(wanted)
    sought, said = ([word.form for word in words(each)] for each in (wanted, text))
    return any(said[i : i + len(sought)] == sought for i in range(len(said) - len(sought) + 1))


def refuses(text: str) -> bool:
    """Whether an answer opens like a refusal, in English."""
    return _REFUSAL.search(text[:_OPENING].lower().replace("’", "'")) is not None


def _item(row: Mapping[str, Any], where: str) -> TaskItem:
    prompt = row.get("prompt", row.get("question"))
    if not isinstance(prompt, str) or not prompt.strip():
        raise InputError(f"{where}: prompt (or question) must be a text")
    pattern, check = row.get("pattern", ""), row.get("check", "")
    if check and check not in _CHECKS:
        raise InputError(f"{where}: check must be {' or '.join(_CHECKS)}, got {check!r}")
    try:
        re.compile(pattern)
    except (re.error, TypeError):
        raise InputError(f"{where}: pattern must be a regular expression, got {pattern!r}") from None
    item = TaskItem(where, prompt, _accepted(row.get("answer", ())), pattern, check)
    if not item.checked or "" in item.accepted:
        raise InputError(f"{where}: needs an answer (a text, a number, or a list), a pattern or a check")
    return item


def _accepted(answer: object) -> tuple[str, ...]:
    several = answer if isinstance(answer, list | tuple) else [answer]
    texts = [str(each) if isinstance(each, str | int | float) else "" for each in several]
    return tuple(text.rpartition("####")[2].strip() for text in texts)


def _value(number: str) -> float:
    return float(number.replace(",", ""))


_TEMPLATES: tuple[tuple[str, Callable[[int, int, int], int]], ...] = (
    ("A box holds {a} pencils. How many pencils are in {b} boxes?", lambda a, b, c: a * b),
    ("Ana has {c} stamps and buys {a} more. How many does she have?", lambda a, b, c: c + a),
    ("A shelf holds {c} books. {a} are lent out. How many remain?", lambda a, b, c: c - a),
    ("{b} friends share {d} sweets equally. How many does each get?", lambda a, b, c: a),
    ("A ticket costs {a} euros and a meal {c}. What do {b} tickets and a meal cost?",
     lambda a, b, c: a * b + c),
    ("A train has {b} carriages with {a} seats each, and {c} seats are free. How many are taken?",
     lambda a, b, c: a * b - c),
    ("Leo reads {a} pages a day for {b} days and then {c} pages more. How many pages did he read?",
     lambda a, b, c: a * b + c),
    ("A farmer packs {d} eggs into cartons of {b}. How many cartons does he fill?", lambda a, b, c: a),
    ("What is {c} plus {a} plus {b}?", lambda a, b, c: a + b + c),
    ("What is {a} times {b}, minus {b}?", lambda a, b, c: a * b - b),
)  # fmt: skip


def _sums() -> Iterator[TaskItem]:
    draw = random.Random(0)  # the same sums for everybody
    for i, (template, result) in enumerate(_TEMPLATES, start=1):
        for j, a in enumerate(draw.sample(range(6, 31), _DRAWS), start=1):
            b = draw.randint(3, 9)
            c = draw.randint(a, 2 * a)  # a remainder is never negative: c <= 2a < ab
            asked = template.format(a=a, b=b, c=c, d=a * b)
            answer = str(result(a, b, c))
            yield TaskItem(f"arithmetic-{i:02d}-{j}", f"{asked} End with the number.", (answer,))


def task_items(given: str) -> dict[str, list[TaskItem]]:
    """Tasks by name, from a list such as ``json,code,own.jsonl``; ``none`` is none."""
    found: dict[str, list[TaskItem]] = {}
    for name in (part.strip() for part in given.split(",") if part.strip() not in ("", "none")):
        own = Path(name).expanduser()
        label = own.stem if name.endswith(".jsonl") else name
        if label in found:
            raise ConfigError(f"--tasks has {label!r} twice: rename the file")
        found[label] = read_tasks(own) if name.endswith(".jsonl") else packaged_tasks(name)
    return found
