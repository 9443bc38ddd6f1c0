"""``dewmark train``, on the tiny host: a short training, its artifact, and repeated runs."""

from __future__ import annotations

import json

import pytest

import dewmark.hosts
import dewmark.watermark  # before the hosts are patched, as it takes their functions on import
from dewmark.cli.app import main
from dewmark.decoding import Decoding
from dewmark_lab.artifacts import load_artifact
from dewmark_lab.testing.trial import tiny_host


@pytest.fixture(scope="module")
def lines():
    """Forty texts of the tiny host as JSONL."""
    made = tiny_host().generate(
        [" the old bridge"] * 40,
        scheme=None,
        seeds=range(40),
        decoding=Decoding(max_new_tokens=50, min_new_tokens=50),
    )
    return "".join(json.dumps({"text": each.text}) + "\n" for each in made)


@pytest.fixture
def train(monkeypatch, bag_encoder, capsys, tmp_path, lines):
    monkeypatch.setattr(dewmark.hosts, "host_info", lambda name, **_: tiny_host().info)
    monkeypatch.setattr(dewmark.hosts, "load_host", lambda name, **_: tiny_host())
    texts = tmp_path / "texts.jsonl"
    texts.write_text(lines, encoding="utf-8")

    def run(scheme, *options, out="out", steps=3):
        capsys.readouterr()
        code = main(
            ["train", scheme, "--texts", str(texts), "--steps", str(steps), "--out", str(tmp_path / out)]
            + [str(option) for option in options]
            + ["--device", "cpu"]
        )
        return code, capsys.readouterr()

    return run


@pytest.mark.parametrize("scheme", ["sir", "xsir"])
def test_the_artifact_fits_the_scheme(train, tmp_path, scheme):
    code, said = train(scheme, "--json", "--quiet", "--seed", 4)
    assert code == 0, said.err
    row = json.loads(said.out)
    made = load_artifact(row["out"], scheme=scheme)
    assert made.identity == row["identity"]
    assert row["bytes"] < 5_000_000
    assert made.card["training"]["command"] == (
        f"dewmark train {scheme} --host {tiny_host().info.name} --encoder bag --texts texts.jsonl "
        "--steps 3 --seed 4 --out out"
    )
    assert made.card["training"]["texts"]["number"] == 40
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["artifact.safetensors", "card.json"]


def test_a_finished_training_is_not_repeated_and_not_overwritten(train, tmp_path):
    assert train("sir", "--quiet")[0] == 0
    card = (tmp_path / "out" / "card.json").stat().st_mtime_ns
    assert train("sir", "--quiet")[0] == 0
    assert (tmp_path / "out" / "card.json").stat().st_mtime_ns == card
    code, said = train("sir", "--seed", 9)
    assert code == 2
    assert "already holds another artifact" in said.err


def test_clusters_from_a_lexicon(train, tmp_path):
    lexicon = tmp_path / "lexicon.tsv"
    lexicon.write_text("bridge\triver\nbridge\tnowhere\n", encoding="utf-8")
    code, said = train("xsir", "--lexicon", lexicon, "--json", "--quiet")
    assert code == 0, said.err
    labels = load_artifact(str(tmp_path / "out"), scheme="xsir").arrays["labels"]
    bridge, river, old = (
        tiny_host().info.tokenizer.encode([f" {word}"])[0].ids[0] for word in ("bridge", "river", "old")
    )
    assert labels[bridge] == labels[river] != labels[old]
    assert json.loads(said.out)["clusters"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "sirr", "--out", "x"], "did you mean 'sir'?"),
        (["train", "kgw", "--out", "x"], "unknown trainable scheme"),
        (["train", "xsir", "--lexicon", "none.tsv", "--out", "x"], "there is no lexicon at none.tsv"),
        (["train", "sir", "--texts", "none.jsonl", "--out", "x"], "cannot read none.jsonl"),
    ],
)
def test_bad_options_are_one_line(train, capsys, arguments, message):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
