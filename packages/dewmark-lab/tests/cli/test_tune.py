"""``dewmark tune``, with DEW on the tiny model."""

from __future__ import annotations

import json

import pytest

GRID = ["--scheme", "dew-paper", "--grid", "sampler=bias", "--grid", "lambda=0.1,6"]
SMALL = ["--texts", 6, "--tokens", 30, *GRID]


@pytest.fixture
def tune(run, tiny):
    def invoke(*arguments: object):
        return run("tune", *arguments, "-q")

    return invoke


def test_a_small_budget_takes_the_weak_mark_and_a_large_one_the_strong(tune, tmp_path):
    out = tmp_path / "tuned"
    small = tune(*SMALL, "--budget-perplexity", 1.5, "--out", out, "--json")
    assert small.code == 0, small.err
    row = json.loads(small.out)
    assert row.pop("version")
    assert row == json.loads((out / "tune.json").read_text(encoding="utf-8"))
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in ("tune.png", "pareto.png"))
    weak, strong = row["results"]
    assert (weak["within"], strong["within"]) == (True, False)
    assert strong["ratio"]["value"] < 1 / 1.5  # a bias of 6 takes likely tokens only
    assert weak["z_deleted"] < strong["z_deleted"]
    assert row["flags"] == "--set sampler=bias --set lambda=0.1"
    assert (row["host"], row["texts"], row["tokens"], row["keys"]) == ("llama", 6, 30, 1)

    large = json.loads(tune(*SMALL, "--budget-perplexity", 1e6, "--out", out, "--json").out)
    assert large["chosen"]["lambda"] == 6.0 or strong["change"]["value"] < -0.01
    assert large["results"][0]["ratio"] == weak["ratio"]  # from the files


def test_the_table_names_the_chosen_and_the_flags(tune):
    result = tune(*SMALL, "--budget-perplexity", 1.5)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].split()[:2] == ["configuration", "perpl."]
    assert lines[1].split()[0] == "unmarked"
    assert lines[2].startswith("bias lambda=0.1 ")  # what all have in common is left out
    assert lines[2].split()[-1] == "chosen"
    assert lines[3].split()[-1] == "no"
    assert "--set sampler=bias --set lambda=0.1" in lines


def test_chat_measures_at_the_host_s_own_decoding(tune):
    one = ["--texts", 4, "--tokens", 30, *GRID[:4], "--grid", "lambda=0.1", "--budget-perplexity", 1e6]
    plain, chat = (json.loads(tune(*one, "--json", *extra).out) for extra in ([], ["--chat"]))
    assert chat["results"][0]["ratio"] != plain["results"][0]["ratio"]
    again = json.loads(tune(*one, "--json", "--chat", "--temperature", 0.9).out)
    assert again["results"] == chat["results"]


def test_no_configuration_within_the_budget_is_exit_code_1(tune):
    result = tune("--texts", 6, "--tokens", 30, *GRID[:4], "--grid", "lambda=6")
    assert result.code == 1
    assert "Note: no configuration is within the budget" in result.out
    assert "--set" not in result.out


def test_own_prompts_another_scheme_and_two_keys(tune, tmp_path):
    prompts = tmp_path / "in.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"the {w}"}) + "\n" for w in ("sea", "hill", "town")))
    options = ["--prompts", prompts, "--tokens", 25, "--keys", 2, "--budget-perplexity", 1000, "--json"]
    result = tune("--scheme", "kgw", "--grid", "delta=1", *options)
    row = json.loads(result.out)
    assert (row["texts"], row["keys"], row["scheme"]) == (3, 2, "kgw")
    assert row["results"][0]["settings"] == {"delta": 1.0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--grid", "lambda="], "--grid lambda needs at least one value"),
        (["--grid", "strength=1"], "unknown parameter 'strength'"),
        (["--scheme", "dew-paper", "--sampler", "beam"], "sampler must be one of bias, gumbel, got 'beam'"),
        (
            ["--scheme", "dew-paper", "--sampler", "bias", "--grid", "alpha=1"],
            "no sampler of the grid uses alpha",
        ),
        (["--sampler", "bias"], "use the scheme dew-paper"),
        (["--budget-perplexity", "1"], "a ratio of perplexities above 1, such as 1.05, got 1"),
        (["--texts", "5000"], "--texts must not exceed that, got 5000"),
        (["--texts", "1"], "--texts"),
        (["--scheme", "kgw"], "kgw has no default grid"),
        (["--temperature", "0"], "temperature 0 always takes the likeliest token"),
        (["--prompts", "missing.jsonl"], "cannot read missing.jsonl"),
    ],
)
def test_bad_options(tune, arguments, said):
    assert said in tune(*arguments, "--tokens", 25).error
