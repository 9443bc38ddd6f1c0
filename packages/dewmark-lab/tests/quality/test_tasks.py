"""Tasks: the package's items, files of one's own, and how answers are checked."""

from __future__ import annotations

import json
import re

import pytest

from dewmark.errors import ConfigError, InputError
from dewmark_lab.quality.tasks import (
    PACKAGED,
    answers,
    packaged_tasks,
    parses_json,
    parses_python,
    read_tasks,
    refuses,
    task_items,
)


def test_the_package_s_items_are_many_and_distinct():
    numbers = {name: len(packaged_tasks(name)) for name in PACKAGED}
    assert numbers == {"json": 24, "code": 24, "arithmetic": 60, "reading": 60}
    items = [item for name in PACKAGED for item in packaged_tasks(name)]
    assert len({item.id for item in items}) == len({item.prompt for item in items}) == 168
    assert all(item.checked for item in items)


def test_sums_come_out_even_and_passages_hold_their_answers():
    for item in packaged_tasks("arithmetic"):
        (result,) = map(int, item.accepted)
        assert result >= 0
        assert item.solved(f"So there are {result:,}.")
        assert not item.solved(f"{result} of {result + 1}")
        if "share" in item.prompt or "cartons" in item.prompt:
            a, b = sorted(map(int, re.findall(r"\d+", item.prompt)))
            assert a * result == b
    for item in packaged_tasks("reading"):
        passage, _, question = item.prompt.partition("\n\n")
        words = passage.lower().replace("-", " ")
        assert any(each.lower() in words for each in item.accepted), item
        assert question.count("?") == 1


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"a": [1, 2]}', True),
        ('Sure!\n```json\n{"a": 1}\n```\nHere {it} is.', True),
        ('Here it is: [{"a": 1}] as asked.', True),
        ('```json\n{"a": 1,\n```', False),
        ('{"a": 1', False),
        ("{'a': 1}", False),
        ("I have no idea.", False),
        ("[" * 100_000, False),
    ],
)
def test_json_must_be_complete(text, right):
    assert parses_json(text) is right


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("def f(x):\n    return x\n", True),
        ("Here you go:\n```python\ndef f(x):\n    return '\\d'\n```\nEnjoy!", True),
        ("```python\ndef f(x):\n```", False),
        ("```\ndef f(x):\n    return (x", False),
        ("Here is the function.", False),
        ("# nothing", False),
        ("x = '\0'", False),
    ],
)
def test_python_must_parse(text, right):
    assert parses_python(text) is right


def test_numbers_count_if_last_and_words_if_side_by_side():
    assert answers("12 and 30 make 42.", "42")
    assert answers("It costs $1,234.50", "1234.5")
    assert not answers("42 is not 43", "42")
    assert not answers("none", "42")
    assert answers("In the READING room, I think.", "reading room")
    assert not answers("In the room for reading", "reading room")
    assert not answers("blacker", "black")


def test_refusals_open_an_answer():
    assert refuses("I’m sorry, but I can't help with that.")
    assert refuses("As an AI language model, I have no opinion.")
    assert not refuses("The captain was not sorry. " * 10 + "I cannot go on.")


def test_files_of_one_s_own(tmp_path):
    file = tmp_path / "own.jsonl"
    rows = [
        {"question": "2+2?", "answer": "First we add.\n#### 4"},
        {"prompt": "Name a colour in capitals.", "pattern": "^[A-Z]+$"},
        {"prompt": "JSON, please", "check": "json"},
        {"prompt": "How many?", "answer": [7, "seven"]},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sums, colour, made, several = read_tasks(file)
    assert sums.solved("It is 4")
    assert (colour.solved("RED"), colour.solved("Red")) == (True, False)
    assert made.solved("[]")
    assert several.solved("there are seven of them")
    assert list(task_items(f"json,{file}")) == ["json", "own"]
    assert task_items("none") == {}
    with pytest.raises(ConfigError, match="'own' twice"):
        task_items(f"{file},{file}")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"answer": "4"}, "prompt .or question. must be a text"),
        ({"prompt": " ", "answer": "4"}, "must be a text"),
        ({"prompt": "a"}, "needs an answer"),
        ({"prompt": "a", "answer": None}, "needs an answer"),
        ({"prompt": "a", "answer": ["4", ""]}, "needs an answer"),
        ({"prompt": "a", "pattern": "("}, "pattern must be a regular expression"),
        ({"prompt": "a", "check": "xml"}, "check must be json or python, got 'xml'"),
    ],
)
def test_items_that_cannot_be_used_are_named(tmp_path, row, said):
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps({"prompt": "a", "answer": 1}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(InputError, match=f"line 2: .*{said}"):
        read_tasks(file)
