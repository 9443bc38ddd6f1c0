"""The real scheme on a tiny real model, from prompts to an exported detector."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from tests.command_line import SECRET, json_lines

from dewmark.core.keys import Key

WORDS = ["the", "old", "bridge", "over", "river", "house", "water", "light", "night", "city"]


def write_prompts(path: Path) -> None:
    rows = [{"prompt": f"the {a} {b}"} for a in WORDS[:2] for b in WORDS[4:7]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_from_prompts_to_an_exported_detector(run, tiny, key_file, tmp_path):
    prompts, out, unmarked = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "unmarked.jsonl"
    write_prompts(prompts)
    common = ["--prompts", prompts, "--max-new-tokens", 120, "--batch-size", 2, "--seed", 11]
    strong = ["--set", "strength=4"]
    assert run("generate", "--key", key_file, *common, *strong, "--out", out).code == 0
    assert run("generate", "--scheme", "none", *common, "--out", unmarked).code == 0

    data = out.read_bytes()
    out.write_bytes(data[: len(data) * 4 // 5])
    assert run("generate", "--key", key_file, *common, *strong, "--out", out).code == 0
    assert out.read_bytes() == data

    detect = ["detect", "--key", key_file, *strong, "--json"]
    found = json_lines(run(*detect, "--jsonl", out))
    assert sum(row["p_value"] < 0.01 for row in found) >= 5
    clean = json_lines(run(*detect, "--jsonl", unmarked))
    assert sum(row["p_value"] < 0.01 for row in clean) <= 1
    other = tmp_path / "other.key"
    Key(bytes(32)).save(other)
    wrong = json_lines(run("detect", "--key", other, *strong, "--json", "--jsonl", out))
    assert sum(row["p_value"] < 0.01 for row in wrong) <= 1

    folder = tmp_path / "detector"
    assert run("detector", "export", "--key", key_file, *strong, "--host", "tiny", "--out", folder).code == 0
    again = json_lines(run("detect", "--detector", folder, "--json", "--jsonl", out))
    assert [row["p_value"] for row in again] == pytest.approx([row["p_value"] for row in found], rel=1e-6)
    assert no_secret_in(tmp_path, but=key_file)


def no_secret_in(folder: Path, *, but: Path) -> bool:
    """No file but the key's own holds the key."""
    shapes = (SECRET, SECRET.hex().encode(), base64.b64encode(SECRET).rstrip(b"="))
    files = [path for path in folder.rglob("*") if path.is_file() and path != but]
    assert len(files) > 5
    return not any(shape in path.read_bytes() for path in files for shape in shapes)
