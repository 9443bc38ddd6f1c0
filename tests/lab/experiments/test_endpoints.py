"""A run that asks an endpoint (a server of this process): preferences in both orders, costs told before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.hosts.chat_server import Reply, serving
from tests.lab.experiments.conftest import options, tree

from dewmark import storage
from dewmark.cli.app import main
from dewmark.lab.evaluation.preference import net_preference

RECIPE = """
base: main
stages: [generate, attack, score, preference, evaluate, report]
lengths: []
profiles:
  local:
    schemes:
      kgw: {{scheme: kgw, settings: {{prefix: 1}}}}
    attacks:
      paraphrase: {{attack: paraphrase, model: stub, base_url: {url}, price_in: 1.0, price_out: 2.0}}
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
    """Of some pairs the first, whichever it is; of some neither; of the others the text that sorts first."""
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


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_preferences_and_paraphrases_from_an_endpoint(tiny_folder, tmp_path, capsys):
    recipe, out = tmp_path / "asks.yaml", tmp_path / "out"
    with serving(script) as server:
        recipe.write_text(RECIPE.format(url=server.url), encoding="utf-8")
        command = ["reproduce", str(recipe), *options(tiny_folder, out)[2:]]
        command = [word for word in command if word != "-q"]
        command[command.index("--attacks") + 1] = "paraphrase"
        assert main([*command, "--texts", "10"]) == 0
        told = capsys.readouterr().err
        judged = [body for body in server.bodies if "Sample 1" in body["messages"][-1]["content"]]
        assert len(judged) == 2 * 2 * 10  # seeds, orders, texts
        assert len(server.bodies) - len(judged) == 2 * 2 * 10  # seeds, marked and not, texts
        assert "paraphrase: 40 requests to stub, about" in told
        assert "at the prices given" in told
        assert "preference: 40 requests to stub" in told
        asked = len(server.bodies)
        assert main([*command, "--texts", "10"]) == 0  # every answer is kept
        assert len(server.bodies) == asked
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
    score = net_preference(found).score
    assert f"{score:+.3f}" in (out / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("batch", [3, 11])
def test_ctrl_c_says_how_to_go_on_and_loses_nothing(tiny_folder, tmp_path, monkeypatch, capsys, batch):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    stages = ("--stages", "generate,attack,score")
    assert main(options(tiny_folder, whole, *stages)) == 0
    append, left = storage.append_jsonl, [batch]

    def interrupted(path: Path, new: list[dict]) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        append(path, new)

    monkeypatch.setattr(storage, "append_jsonl", interrupted)
    assert main(options(tiny_folder, stopped, *stages)) == 130
    said = capsys.readouterr().err
    assert "interrupted" in said
    assert "reproduce" in said
    assert "give the same command again" in said
    assert main(options(tiny_folder, stopped, *stages)) == 0
    assert tree(stopped) == tree(whole)
