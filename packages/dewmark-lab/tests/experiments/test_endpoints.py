"""A run with a chat endpoint (a server in this process): preferences in both orders, and costs in advance."""

from __future__ import annotations

import pytest
from tests.experiments.conftest import command, rows
from tests.hosts.chat_server import Reply, serving

from dewmark.cli.app import main

RECIPE = """
base: main
stages: [generate, attack, score, preference, evaluate, report]
lengths: []
profiles:
  local:
    schemes:
      kgw: {{scheme: kgw, settings: {{prefix: 1}}}}
    attacks:
      paraphrase: {{attack: paraphrase, model: stub, base_url: {url}}}
    options:
      preference: {{model: stub, base_url: {url}}}
"""


def samples(body: dict) -> list[str]:
    """The two texts of a judge's question."""
    query = body["messages"][-1]["content"]
    return [
        query.split(f"=== Start of Sample {n} ===\n")[1].split(f"\n=== End of Sample {n} ===")[0]
        for n in (1, 2)
    ]


def judge(body: dict) -> str:
    """By pair: always the first text, always a tie, or the text that sorts first."""
    first, second = samples(body)
    kind = sum(map(ord, min(first, second))) % 4
    if kind < 2:
        return ("1", "'TIE'")[kind]
    return "1" if first < second else "2"


def expected(marked: str, unmarked: str) -> int:
    if sum(map(ord, min(marked, unmarked))) % 4 < 2:
        return 0
    return 1 if marked < unmarked else -1


def script(body: dict, _number: int) -> Reply:
    asked = body["messages"][-1]["content"]
    return Reply(judge(body) if "=== Start of Sample 1 ===" in asked else asked.upper())


@pytest.fixture(autouse=True)
def _without_figures(monkeypatch):
    """Drawing takes most of a tiny run."""
    monkeypatch.setattr("dewmark_lab.reports.experiment_report._draw", lambda *_: [])


def test_preferences_and_paraphrases_from_an_endpoint(tiny_folder, tmp_path, capsys):
    recipe, out = tmp_path / "endpoint.yaml", tmp_path / "out"
    with serving(script) as server:
        recipe.write_text(RECIPE.format(url=server.url), encoding="utf-8")
        more = ("--attacks", "paraphrase", "--texts", "10")
        words = [word for word in command(tiny_folder, out, *more, recipe=recipe) if word != "-q"]
        assert main(words) == 0
        messages = capsys.readouterr().err
        judged = [body for body in server.bodies if "Sample 1" in body["messages"][-1]["content"]]
        assert len(judged) == 2 * 2 * 10  # seeds, orders, texts
        assert len(server.bodies) - len(judged) == 2 * 2 * 10  # seeds, marked and unmarked, texts
        assert "paraphrase: 40 requests to stub, about" in messages
        assert "preference: 40 requests to stub" in messages
        requests = len(server.bodies)
        assert main([*words, "--stages", "attack,preference"]) == 0  # all answers are cached
        assert len(server.bodies) == requests
        assert "requests to stub" not in capsys.readouterr().err
    written = [row for file in (out / "generate").glob("*/rows.jsonl") for row in rows(file)]
    texts = {(row["scheme"], row["seed"] // 1_000_000, row["id"]): row["text"] for row in written}
    found = rows(out / "preference.jsonl")
    assert len(found) == 20
    for row in found:
        pair = [texts[scheme, row["seed"], row["id"]] for scheme in ("kgw", "none")]
        assert row["outcome"] == expected(*pair)
        assert row["unreadable"] == 0
    assert {row["outcome"] for row in found} == {-1, 0, 1}
    score = sum(row["outcome"] for row in found) / len(found)
    assert f"{score:+.3f}" in (out / "report.md").read_text(encoding="utf-8")


def test_a_tiny_local_model_paraphrases_and_judges(tiny_chat_folder, tmp_path):
    """``--llm MODEL``: a recipe's endpoint is replaced by a host."""
    recipe, out = tmp_path / "local.yaml", tmp_path / "out"
    nobody = RECIPE.format(url="http://127.0.0.1:1/v1")
    recipe.write_text(
        nobody.replace("paraphrase, model", "paraphrase, max_new_tokens: 16, model"), encoding="utf-8"
    )
    more = ("--attacks", "paraphrase", "--texts", "2", "--llm", str(tiny_chat_folder))
    assert main(command(tiny_chat_folder, out, *more, recipe=recipe)) == 0
    assert len(rows(out / "preference.jsonl")) == 4  # seeds, texts
    rewritten = [row for file in (out / "attack").glob("*/rows.jsonl") for row in rows(file)]
    assert len(rewritten) == 8  # marked and unmarked
    assert any(row["text"].strip() for row in rewritten)
