"""``dewmark models`` and ``dewmark detector``, with stubs for the library's loaders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dewmark.detector
import dewmark.encoders
import dewmark.hosts
import dewmark.models.packaged as packaged


@pytest.fixture
def calls(monkeypatch, tmp_path) -> list[tuple[str, object]]:
    """Record what is fetched and loaded, without doing it."""
    made: list[tuple[str, object]] = []

    def record(kind: str):
        def loaded(name: str, **_: object) -> object:
            made.append((kind, name))
            return type("Loaded", (), {"encode": lambda self, texts: made.append(("encode", name))})()

        return loaded

    monkeypatch.setenv("DEWMARK_CACHE", str(tmp_path))
    monkeypatch.setattr(packaged, "fetch", record("fetch"))
    monkeypatch.setattr(dewmark.hosts, "load_host", record("host"))
    monkeypatch.setattr(dewmark.encoders, "load_encoder", record("encoder"))
    return made


def test_list(run, calls):
    rows = {row["name"]: row for row in map(json.loads, run("models", "list", "--json").out.splitlines())}
    assert rows.keys() == packaged.PACKAGED.keys()
    assert rows["smollm2-135m"]["role"] == "host"
    assert not any(row["fetched"] for row in rows.values())
    plain = run("models", "list").out
    assert "Apache-2.0" in plain
    assert "hub id" in plain


def test_pull(run, calls):
    assert run("models", "pull", "smollm2-135m").out == "smollm2-135m is ready\n"
    assert json.loads(run("models", "pull", "use-m3", "--json").out)["role"] == "encoder"
    assert json.loads(run("models", "pull", "bergamot-pt", "--json").out)["role"] == "translator"
    assert run("models", "pull", "owner/model", "--role", "host").code == 0
    assert run("models", "pull", "owner/other", "--role", "encoder").code == 0
    assert calls == [
        ("fetch", "smollm2-135m"),
        ("host", "smollm2-135m"),
        ("fetch", "use-m3"),
        ("encoder", "use-m3"),
        ("encode", "use-m3"),
        ("fetch", "bergamot-pt"),
        ("host", "owner/model"),
        ("encoder", "owner/other"),
        ("encode", "owner/other"),
    ]


def test_pull_errors(run, calls):
    assert "did you mean 'smollm2-135m'" in run("models", "pull", "smollm-135m").error
    assert "--role host or --role encoder" in run("models", "pull", "owner/model").error
    assert (
        "is a packaged host, not encoder" in run("models", "pull", "smollm2-135m", "--role", "encoder").error
    )
    assert calls == []


def test_export_and_use_a_detector(run, host, key_file, monkeypatch, tmp_path):
    stored = {}
    monkeypatch.setattr(
        dewmark.Detector, "save", lambda self, folder: stored.update({Path(folder): self.scheme})
    )
    monkeypatch.setattr(dewmark.Detector, "load", lambda folder, **_: dewmark.Detector(stored[Path(folder)]))
    out, text = tmp_path / "detector", tmp_path / "a.txt"
    text.write_text("A text of ordinary words, long enough.", encoding="utf-8")
    result = run("detector", "export", "--key", key_file, "--out", out, "--set", "k=5", "--json")
    assert json.loads(result.out)["out"] == str(out)
    assert stored[out].scheme.k == 5
    found = json.loads(run("detect", "--detector", out, text, "--json").out)
    assert found["verdict"] == "not_marked"
    assert found["key_fingerprint"] == stored[out].fingerprint


def test_export_errors(run, host, key_file, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    for name, said in (("full", "is not empty"), ("file", "is a file")):
        assert said in run("detector", "export", "--key", key_file, "--out", tmp_path / name).error
    export = ["detector", "export", "--key", key_file, "--out", tmp_path / "new"]
    assert "leaves no mark" in run(*export, "--scheme", "none").error
    assert "unknown parameter" in run(*export, "--set", "x=1", "-q").error
    assert not (tmp_path / "new").exists()
    assert "not a detector" in run("detect", "--detector", tmp_path / "full", key_file, "-q").error
