"""``dewmark train-reader``, on the tiny host: the folder that detection reads with."""

from __future__ import annotations

import json

import pytest

import dewmark
import dewmark.hosts
from dewmark.cli.app import main
from dewmark_audit.texts import requests
from dewmark_lab.testing.trial import tiny_host
from dewmark_lab.training.word_reader import reader_requests, request_forms

TEXT = "The old bridge over the river was closed in spring, and nobody in the village knew how long. " * 3


@pytest.fixture
def train(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(dewmark.hosts, "host_info", lambda name, **_: tiny_host().info)
    monkeypatch.setattr(dewmark.hosts, "load_host", lambda name, **_: tiny_host())

    def run(*options):
        code = main(["train-reader", "--out", str(tmp_path / "reader"), "--device", "cpu", *options])
        return code, capsys.readouterr()

    return run


def test_reader_of_words_is_trained_and_read_with(train, tmp_path) -> None:
    code, said = train("--number", "40", "--epochs", "2", "--json", "--quiet")
    assert code == 0, said.err
    row = json.loads(said.out)
    assert row["texts"] == 40
    assert {"out", "texts", "network", "model"} <= set(row)
    key = dewmark.Key(bytes(32))
    by = {
        reader: dewmark.Detector.from_key(key, reader=reader).detect(TEXT)
        for reader in (None, "none", str(tmp_path / "reader"))
    }
    assert len({found.z for found in by.values()}) == 3
    assert by[str(tmp_path / "reader")].reader == "reader"
    code, said = train("--number", "40")
    assert code == 2
    assert "exists already" in said.err


def test_wrong_language(train) -> None:
    code, said = train("--languages", "en,xx")
    assert code == 2
    assert "no requests in xx: --languages takes en, de" in said.err


def test_requests_are_many_and_none_is_measured_on() -> None:
    measured = {row["text"] for row in requests("en")}
    for language in request_forms():
        asked = reader_requests(language)
        assert len(set(asked)) == len(asked) > 200
        assert not measured & set(asked)
