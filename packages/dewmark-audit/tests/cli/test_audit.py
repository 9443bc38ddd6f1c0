"""``dewmark audit``, with a detector whose p-values the tests choose."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.command_line import SECRET, Result

from dewmark.core.keys import Key

FINGERPRINT = Key(SECRET).fingerprint
WORDS = ["the", "old", "bridge", "over", "river", "house", "water", "light", "night", "city", "hill", "sea"]


def write_negatives(path: Path, z: np.ndarray, *, language: str | None = None, more: str = "") -> Path:
    rows = [
        {"text": f"The text with the number {i} has the score z={value:.6f} {more}"}
        for i, value in enumerate(z)
    ]
    if language is not None:
        rows = [{**row, "language": language} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_negatives(tmp_path / "good.jsonl", np.random.default_rng(0).normal(size=450))


@pytest.fixture
def leaning(tmp_path: Path) -> Path:
    z = np.random.default_rng(1).normal(1.2, 1.0, size=150)
    return write_negatives(tmp_path / "leaning.jsonl", z, language="de")


@pytest.fixture
def audit(run, host, numbers, key_file):
    def invoke(*arguments: object) -> Result:
        return run("audit", "--key", key_file, *arguments, "-q")

    return invoke


def test_a_key_that_passes(audit, good):
    result = audit("--negatives", good, "--strict")
    assert result.code == 0
    assert "all texts" in result.out
    assert "The key passes: at 1% it calls " in result.out.replace("\n", " ")


def test_a_key_that_fails(audit, good, leaning):
    result = audit("--negatives", good, leaning)  # the second file as the shell's * would give it
    assert result.code == 0
    assert "The key fails for de: at " in result.out
    assert audit("--negatives", good, "--negatives", leaning, "--strict").code == 1


def test_json(audit, good, leaning):
    row = json.loads(audit("--negatives", good, leaning, "--json").out)
    assert row["key_fingerprint"] == FINGERPRINT
    assert (row["outcome"], row["texts"], row["too_short"], row["test"]) == ("fails", 600, 0, "key")
    groups = {(cell["kind"], cell["group"]): cell["texts"] for cell in row["cells"]}
    assert groups == {("all", "all texts"): 600, ("language", "de"): 150, ("language", "en"): 450}
    z = np.random.default_rng(0).normal(size=450)
    english = next(cell for cell in row["cells"] if cell["group"] == "en" and cell["level"] == 0.05)
    assert english["alarms"] == int((z > 1.6448536).sum())


def test_the_file(audit, good, leaning, tmp_path):
    out = tmp_path / "audit.json"
    assert audit("--negatives", good, leaning, "--out", out).code == 0
    data = json.loads(out.read_text(encoding="utf-8"))
    assert len(data["judged"]) == data["texts"] == 600
    assert set(data["judged"][0]) == {"id", "kind", "language", "length", "p_value"}
    assert SECRET.hex() not in out.read_text(encoding="utf-8")


def test_short_empty_and_repeated_texts_do_not_count(audit, good, tmp_path):
    brief = write_negatives(tmp_path / "brief.jsonl", np.full(5, 9.0), more="brief")
    again = tmp_path / "again.jsonl"
    again.write_text(good.read_text(encoding="utf-8") + '{"text": " "}\n', encoding="utf-8")
    row = json.loads(audit("--negatives", good, brief, again, "--json").out)
    assert (row["texts"], row["too_short"], row["outcome"]) == (450, 5, "passes")


def test_text_files_and_the_response_field(audit, tmp_path):
    file, rows = tmp_path / "a.txt", tmp_path / "b.jsonl"
    file.write_text("One text with z=0.5 in a file.", encoding="utf-8")
    rows.write_text(
        '{"response": "Another with z=0.1 in a row.", "prompt": "p", "id": 7}\n', encoding="utf-8"
    )
    audit("--negatives", file, rows, "--out", tmp_path / "out.json")
    judged = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["judged"]
    assert [row["id"] for row in judged] == [str(file), 7]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", 'line 1 has no "text" and no "response"'),
        ('{"text": 3}', "line 1: text must be a string"),
        ('{"text": "a", "language": 3}', "line 1: language must be a string"),
        ('{"text": "a", "id": [1]}', "line 1: id must be text or a whole number"),
        ('{"text": " "}', "no texts"),
    ],
)
def test_bad_rows(audit, tmp_path, line, said):
    path = tmp_path / "bad.jsonl"
    path.write_text(line, encoding="utf-8")
    assert said in audit("--negatives", path).error


# every token of these few words counts, so that the texts are long enough
EVERY = ["--scheme", "dew-paper", "--set", "context_encoding=composed"]


def test_a_key_on_a_real_scheme(run, tiny, key_file, tmp_path):
    """DEW on the tiny model: the covariance of the evidence tells how far texts go together."""
    rng = np.random.default_rng(2)
    path = tmp_path / "n.jsonl"
    same = " ".join(rng.choice(WORDS, size=70))
    rows = [{"text": f"{same} {' '.join(rng.choice(WORDS, size=20))}", "language": "en"} for _ in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    row = json.loads(run("audit", "--key", key_file, "--negatives", path, *EVERY, "--json", "-q").out)
    assert row["texts"] == 60
    (group,) = row["groups"]
    # the texts share most of their pairs: they are one block
    assert 0.4 < group["together"]["r"] < 0.9
    assert group["together"]["effective_number"] < 3.0
    assert group["together"]["largest_block"] == 60
    assert row["remarks"] == []  # one group only


def test_the_packaged_texts(run, host, key_file, monkeypatch):
    """Without --negatives the package's own texts are audited, by kind."""
    from dewmark_audit.negatives import Negatives

    texts = Negatives.packaged()
    kinds = {document.kind for document in texts.documents}
    assert {"prose", "code", "JSON", "logs", "form letters", "lists", "poems"} <= kinds
    assert {"fi", "cy", "sw", "hi", "vi", "de", "zh"} <= set(texts.languages)
    assert len({document.text for document in texts.documents}) == len(texts.documents)
    assert min(len(document.text) for document in texts.documents) > 150
    row = json.loads(run("audit", "--key", key_file, "--json", "-q").out)
    assert row["texts"] == len(texts.documents)


def test_a_detector_judges_languages_in_which_its_key_is_trusted(run, tiny, key_file, tmp_path):
    """audit --out, then detector export --audit."""
    rng = np.random.default_rng(3)
    path, out, exported = tmp_path / "n.jsonl", tmp_path / "audit.json", tmp_path / "detector"
    lengths = {"en": [90] * 24, "cy": [60, 130] * 24}
    rows = [
        {"text": " ".join(rng.choice(WORDS, size=size)), "language": language}
        for language, sizes in lengths.items()
        for size in sizes
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    key = ["--key", key_file, *EVERY]
    assert run("audit", *key, "--negatives", path, "--out", out, "-q").code == 0
    assert run("detector", "export", *key, "--out", exported, "--audit", out, "-q").code == 0
    assert json.loads((exported / "detector.json").read_text())["languages"]["audited"]
    Key(bytes(32)).save(tmp_path / "other.key")
    other = ["--key", tmp_path / "other.key", *EVERY, "--out", tmp_path / "other", "--audit", out, "-q"]
    assert f"is the audit of key {FINGERPRINT}" in run("detector", "export", *other).error


def test_a_key_is_drawn_until_one_passes(run, host, numbers, good, leaning, tmp_path):
    out = tmp_path / "drawn.key"
    result = run("key", "new", "--out", out, "--audit", good, "-q")
    assert result.code == 0
    assert "Drew 1 key. The key passes" in result.out.replace("\n", " ")
    refused = run("key", "new", "--out", tmp_path / "no.key", "--audit", leaning, "--tries", 2, "-q")
    assert refused.code != 0
    assert "none of 2 keys passed" in refused.err.replace("\n", " ")
    assert not (tmp_path / "no.key").exists()
    assert "add --audit" in run("key", "new", "--out", tmp_path / "x.key", "--host", "x").err


def test_an_audit_on_stdout_is_the_whole_of_it(run, host, key_file, tmp_path):
    text, out = tmp_path / "a.jsonl", tmp_path / "audit.json"
    text.write_text('{"text": "the old bridge over the river"}\n')
    arguments = ("audit", "--key", key_file, "--host", "x", "--scheme", "dew", "--negatives", text, "-q")
    assert run(*arguments, "--out", out).code == 0
    assert run(*arguments, "--out", "-").out == out.read_text()
