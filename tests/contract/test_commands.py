"""Every scheme works from the command line: generate marks, detect and an exported detector find it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dewmark.detector
import dewmark.hosts
import dewmark.watermark
from dewmark.cli.app import main
from dewmark.core.keys import Key
from dewmark.registry import SCHEMES
from dewmark_lab.testing.trial import host_for

FAST = ("dew", "kgw")  # the others run under the marker ``contract``
# passed with --set
SETTINGS = {"dew": "k=2", "kgw": "prefix=3"}
NAMES = [name if name in FAST else pytest.param(name, marks=pytest.mark.contract) for name in SCHEMES]


@pytest.fixture
def key(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bag_encoder: object) -> Path:
    """A key file; every host that a command loads is the tiny one."""
    host = host_for(SCHEMES[name]())
    for module in (dewmark.hosts, dewmark.watermark, dewmark.detector):
        monkeypatch.setattr(module, "host_info", lambda name, **_: host.info, raising=False)
        monkeypatch.setattr(module, "load_host", lambda name, **_: host, raising=False)
    path = tmp_path / "the.key"
    Key(bytes(range(32))).save(path)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_generate_and_detect(name, key, tmp_path, capsys) -> None:
    def run(*arguments: object) -> list[dict]:
        capsys.readouterr()
        assert main([*map(str, arguments), "--json", "--quiet"]) == 0, capsys.readouterr().err
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    chosen = ["--key", key, "--scheme", name]
    if name in SETTINGS:
        chosen += ["--set", SETTINGS[name]]
    length = ["--max-new-tokens", 200, "--min-new-tokens", 200, "--no-repeat-ngram", 0]
    prompt = " the old bridge over the river"
    written = run("generate", *chosen, "--prompt", prompt, "--seed", 1, *length)[0]
    text = tmp_path / "text.txt"
    text.write_text(written["text"], encoding="utf-8")
    found = run("detect", text, *chosen)[0]
    assert found["scheme"] == name
    assert found["verdict"] == "marked", found
    run("detector", "export", *chosen, "--out", tmp_path / "detector")
    again = run("detect", text, "--detector", tmp_path / "detector")[0]
    assert again["p_value"] == pytest.approx(found["p_value"], rel=1e-3)
