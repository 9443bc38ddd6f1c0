"""``dewmark generate``: rows, seeds, and runs that resume to the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PROMPTS = [f"Prompt number {i}, with “quotes” and ü" for i in range(11)]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    rows = [{"prompt": p} if i % 2 else {"id": f"row-{i}", "prompt": p} for i, p in enumerate(PROMPTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def command(key_file: Path, prompts: Path):
    return ["generate", "--key", key_file, "--prompts", prompts, "--batch-size", 4, "--max-new-tokens", 60]


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_rows(run, host, command, tmp_path, key_file):
    out = tmp_path / "out.jsonl"
    result = run(*command, "--out", out, "--seed", 70, "--json")
    assert result.code == 0
    rows = rows_of(out)
    assert [list(row) for row in rows] == [
        ["id", "prompt", "text", "tokens", "seed", "scheme", "config_hash", "marked", "unmarked", "room"]
    ] * 11
    assert [row["id"] for row in rows[:4]] == ["row-0", "1", "row-2", "3"]
    assert [row["prompt"] for row in rows] == PROMPTS
    assert [row["seed"] for row in rows] == list(range(70, 81))
    assert all(row["tokens"] == len(row["text"]) for row in rows)  # one token per character in the stub
    assert {row["scheme"] for row in rows} == {"dew"}
    summary = json.loads(result.out)
    assert summary["rows"] == 11
    assert summary["config_hash"] == rows[0]["config_hash"]
    assert host.calls == [[70, 71, 72, 73], [74, 75, 76, 77], [78, 79, 80]]


def test_the_output_must_be_a_regular_file(run, host, command, tmp_path):
    for out in (Path("/dev/zero"), tmp_path):
        result = run(*command, "--out", out)
        assert result.code == 2
        assert "not a regular file" in result.error


def test_changed_prompts_and_foreign_files_are_rejected(run, host, command, prompts, tmp_path):
    out = tmp_path / "out.jsonl"
    assert run(*command, "--out", out, "--seed", 5).code == 0
    lines = prompts.read_text(encoding="utf-8").splitlines(keepends=True)
    prompts.write_text("".join(lines[:6]), encoding="utf-8")
    assert "this one has 6 rows" in run(*command, "--out", out, "-q").error
    prompts.write_text("".join(lines[1:] + lines[:1]), encoding="utf-8")
    assert "'row-0'" in run(*command, "--out", out, "-q").error
    prompts.write_text("".join(lines), encoding="utf-8")
    for foreign in ("my notes, no newline", "my notes\n", '[1, 2]\n{"id": 1}\n'):
        out.write_text(foreign, encoding="utf-8")
        assert str(out) in run(*command, "--out", out, "-q").error
        assert out.read_text(encoding="utf-8") == foreign
    assert "prompts file" in run(*command, "--out", prompts, "-q").error


def test_scheme_none_needs_no_key_and_leaves_no_mark(run, host, prompts, tmp_path):
    out = tmp_path / "out.jsonl"
    result = run("generate", "--scheme", "none", "--prompts", prompts, "--out", out, "--seed", 1)
    assert result.code == 0
    rows = rows_of(out)
    assert {row["scheme"] for row in rows} == {"none"}
    assert not any("✓" in row["text"] for row in rows)
    assert run("generate", "--scheme", "none", "--prompts", prompts, "--out", out).code == 0
    assert "leave out --set" in run("generate", "--scheme", "none", "--prompt", "x", "--set", "k=2").error


def test_one_prompt_goes_to_stdout(run, host, key_file):
    result = run("generate", "--key", key_file, "--prompt", "Once", "--seed", 3, "--json")
    row = json.loads(result.out)
    assert (row["id"], row["prompt"], row["seed"]) == ("0", "<user>Once<assistant>", 3)
    plain = run("generate", "--key", key_file, "--prompt", "Once", "--seed", 3)
    assert plain.out == row["text"] + "\n"  # a pipe gets the completion only
    assert "seed 3" in plain.err
    assert run("generate", "--key", key_file, "--prompt", "Once", "--quiet").err == ""
    on = json.loads(run("generate", "--key", key_file, "--prompt", "Once", "--continue", "--json").out)
    assert on["prompt"] == "Once"


def test_a_host_without_a_template_continues(run, host, key_file, monkeypatch):
    from dewmark.hosts.base import no_template

    def missing(name, **_):
        raise no_template(name)

    monkeypatch.setattr("dewmark.watermark.chat_format", missing)
    row = json.loads(run("generate", "--key", key_file, "--prompt", "Once", "--json").out)
    assert row["prompt"] == "Once"
    assert "chat" in run("generate", "--key", key_file, "--prompt", "Once", "--chat", "-q").error


def test_greedy_decoding_is_refused_before_the_model_is_loaded(run, host, key_file, monkeypatch):
    monkeypatch.setattr("dewmark.watermark.load_host", lambda *_, **__: pytest.fail("the model was loaded"))
    said = run("generate", "--key", key_file, "--prompt", "Once", "--temperature", "0", "-q").error
    assert "use a temperature above 0" in said


def test_settings_reach_the_scheme(run, host, key_file):
    hashes = {
        json.loads(run("generate", "--key", key_file, "--prompt", "x", "--json", *extra).out)["config_hash"]
        for extra in (
            [],
            ["--set", "strength=0.0"],
            ["--set", "strength=3"],
            ["--strength", "3"],
            ["--strength", "3", "--set", "k=4"],
        )
    }
    assert len(hashes) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give either --prompt"),
        (["--prompt", "a", "--out", "b"], "--prompts and --out go together"),
        (["--prompts", "b"], "--prompts and --out go together"),
        (["--prompt", "a"], "no key given: add --key FILE"),
        (["--prompt", "a", "--key", "missing.key"], "no key file missing.key"),
        (["--prompt", "a", "--temperature", "-1"], "temperature"),
        (["--prompt", "a", "--max-new-tokens", "ten"], "--max-new-tokens"),
        (["--prompt", "a", "--seed", "-1"], "--seed"),
    ],
)
def test_bad_options(run, host, arguments, said):
    assert said in run("generate", *arguments).error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prompt", " "], "--prompt is empty"),
        (["--prompt", "a", "--scheme", "dewy"], "unknown scheme 'dewy'; did you mean 'dew'?"),
        (["--prompt", "a", "--set", "strengh=2"], "unknown parameter 'strengh'; did you mean 'strength'?"),
        (["--prompt", "a", "--set", "k=three"], "k must be a whole number, got 'three'"),
        (["--prompt", "a", "--set", "k"], "name=value"),
        (["--prompt", "a", "--host", "nowhere"], "no model 'nowhere'"),
        (
            ["--prompt", "a", "--strength", "weak"],
            "--strength takes exact, free, strong or a number from 0 on, got 'weak'",
        ),
    ],
)
def test_bad_values(run, host, key_file, arguments, said):
    assert said in run("generate", "--key", key_file, *arguments, "-q").error


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", 'line 2 has no "prompt"'),
        ('{"prompt": 3}', "line 2: prompt must be a string, got int"),
        ('{"prompt": "  "}', "line 2: prompt is empty"),
        ('{"prompt": "a\\ud800"}', "lone surrogate"),
        ('{"prompt": "a", "id": [1]}', "line 2: id must be"),
        ('{"prompt": ', "line 2: not a line of JSON"),
    ],
)
def test_bad_prompt_files(run, host, key_file, tmp_path, line, said):
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n", encoding="utf-8")
    out = tmp_path / "out.jsonl"
    assert said in run("generate", "--key", key_file, "--prompts", path, "--out", out, "-q").error
    assert not out.exists()  # every line is checked before the first text is written


def test_a_prompt_that_is_too_long_is_reported_before_writing(run, host, key_file, tmp_path):
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": "a" * n}) + "\n" for n in (1, 2, 3, 2000)), encoding="utf-8"
    )
    command = ["generate", "--key", key_file, "--prompts", path, "--out", out, "--batch-size", 2, "-q"]
    assert "prompt 3 is too long" in run(*command).error
    assert not out.exists()


def test_an_empty_prompt_file(run, host, key_file, tmp_path):
    path = tmp_path / "in.jsonl"
    path.touch()
    assert (
        "has no prompts"
        in run("generate", "--key", key_file, "--prompts", path, "--out", tmp_path / "o").error
    )


CONVERSATIONS = [
    {"id": "a", "messages": [{"role": "user", "content": "Why is the sea salty?"}]},
    {"prompt": "And the lakes?"},
    {
        "id": 7,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hello!"},
            {"role": "user", "content": "Tell me more."},
        ],
    },
]


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CONVERSATIONS), encoding="utf-8")
    return path


def test_messages_are_answered_in_the_host_s_template(run, host, key_file, conversations, tmp_path):
    out = tmp_path / "out.jsonl"
    command = ["generate", "--key", key_file, "--prompts", conversations, "--out", out, "--seed", 3]
    assert run(*command).code == 0
    rows = rows_of(out)
    assert [row["id"] for row in rows] == ["a", "1", 7]
    assert rows[0]["messages"] == CONVERSATIONS[0]["messages"]
    assert rows[1]["messages"] == [{"role": "user", "content": "And the lakes?"}]
    assert rows[2]["prompt"] == "<system>Be brief.<user>Hello<assistant>Hello!<user>Tell me more.<assistant>"
    data = out.read_bytes()
    out.write_bytes(data[: len(data) // 2])
    assert run(*command).code == 0
    assert out.read_bytes() == data
    # the host's own decoding: temperature 0.6 and top-k 20, stated or not; anything else is another text
    for same in (["--temperature", "0.6"], ["--top-k", "20", "--chat"], ["--no-repeat-ngram", "0"]):
        assert run(*command, *same).code == 0
    assert "config_hash is" in run(*command, "--temperature", "1", "-q").error
    assert "config_hash is" in run(*command, "--top-p", "0.9", "-q").error


def test_chat_turns_prompts_into_requests(run, host, key_file, command, tmp_path):
    plain, chat = tmp_path / "plain.jsonl", tmp_path / "chat.jsonl"
    assert run(*command, "--out", plain, "--seed", 1).code == 0
    assert run(*command, "--out", chat, "--seed", 1, "--chat").code == 0
    assert [row["prompt"] for row in rows_of(chat)] == [f"<user>{p}<assistant>" for p in PROMPTS]
    assert "messages" not in rows_of(plain)[0]
    row = json.loads(run("generate", "--key", key_file, "--prompt", "Hello", "--chat", "--json").out)
    assert (row["prompt"], row["messages"][0]["content"]) == ("<user>Hello<assistant>", "Hello")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"messages": []}', "line 2: messages must be a list"),
        ('{"messages": [{"role": "user"}]}', "line 2: messages: message 0 needs a role"),
        ('{"id": 1}', 'line 2 has no "prompt"'),
    ],
)
def test_bad_chat_files(run, host, key_file, tmp_path, line, said):
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(CONVERSATIONS[0]) + "\n" + line + "\n", encoding="utf-8")
    assert said in run("generate", "--key", key_file, "--prompts", path, "--out", tmp_path / "o", "-q").error


def test_the_terminal_shows_a_text_as_it_is_written(run, host, key_file, monkeypatch):
    from rich.console import Console

    written: list[str] = []

    class Terminal(Console):
        is_terminal = True

        def print(self, *values, **options):
            written.extend(map(str, values))

    monkeypatch.setattr("dewmark.cli.generate.results", Terminal)
    expected = json.loads(run("generate", "--key", key_file, "--prompt", "Once", "--seed", 3, "--json").out)[
        "text"
    ]
    monkeypatch.setattr("dewmark.cli.generate.results", Terminal)
    result = run("generate", "--key", key_file, "--prompt", "Once", "--seed", 3, "--continue")
    assert result.code == 0
    assert written[0] == "Once"
    assert len(written) > 20
    assert "".join(written[1:]) != expected  # an answer is decoded as the host says
    written.clear()
    assert run("generate", "--key", key_file, "--prompt", "Once", "--seed", 3).code == 0
    from dewmark.cli.terminal import printable

    assert "".join(written[1:]) == str(printable(expected))
