"""The real scheme on a tiny real model: a calibration, and the detectors that it serves."""

from __future__ import annotations

import json
import random

from tests.cli.test_end_to_end import WORDS, no_secret_in
from tests.command_line import json_lines

_VOCABULARY = """
the of and to in is was for on that with as by it at from his her they this are be an which were
not have had but or one all out who more when there old new river bridge over under house water
light day night time people city town road tree hill sea ship wind rain sun story book word hand
eye heart
"""
MANY = _VOCABULARY.split()


def test_a_calibration_serves_the_key_and_its_exported_detector(run, tiny, key_file, tmp_path):
    negatives, folder, text = tmp_path / "neg.jsonl", tmp_path / "detector", tmp_path / "a.txt"
    rows = [{"text": " ".join(random.Random(i).choices(MANY, k=160))} for i in range(30)]
    negatives.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    text.write_text(" ".join(WORDS * 5), encoding="utf-8")
    assert run("detector", "export", "--key", key_file, "--host", "tiny", "--out", folder).code == 0
    common = ["calibrate", "--negatives", negatives, "-q", "--json"]
    by_key = json_lines(run(*common, "--key", key_file, "--out", tmp_path / "a.json"))
    by_folder = json_lines(run(*common, "--detector", folder, "--out", tmp_path / "b.json"))
    assert by_key[0]["config_hash"] == by_folder[0]["config_hash"]
    assert by_key[0]["negatives"] == 30
    ranks = [
        json_lines(run("detect", *given, text, "--json", "-q"))[0]["p_value"]
        for given in (
            ("--key", key_file, "--calibration", tmp_path / "a.json"),
            ("--detector", folder, "--calibration", tmp_path / "a.json"),
            ("--detector", folder, "--calibration", tmp_path / "b.json"),
        )
    ]
    assert ranks[0] == ranks[1] == ranks[2]
    assert no_secret_in(tmp_path, but=key_file)
