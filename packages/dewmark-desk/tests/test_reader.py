"""A reader everywhere: by name, in exported detectors, for many keys, in files, jobs and the command line."""

from __future__ import annotations

import dataclasses
import json

import pytest
from tests.fakes import BagEncoder, replace_encoders
from typer.testing import CliRunner

from dewmark import Detector, Watermark
from dewmark.batch.scorers import DetectorSpec
from dewmark.cli.app import command_line
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import detect_texts, score_text
from dewmark.errors import ConfigError
from dewmark.opening import Keys, load_scheme
from dewmark_desk.settings import Settings
from dewmark_desk.tenants import open_tenants
from dewmark_desk.verdicts import Examination, Query
from dewmark_desk.verdicts import detect as answer
from dewmark_lab.testing.fake_host import FakeHost

KEY = Key(bytes(range(32)))
PROMPT = "the old bridge over the river"


class Tiny(FakeHost):
    """The fake host under a name; it counts how often it reads."""

    runs = 0

    @property
    def info(self):
        return dataclasses.replace(super().info, name="tiny")

    def next_logits(self, prompts, completions):
        Tiny.runs += 1
        return super().next_logits(prompts, completions)


@pytest.fixture(scope="module")
def host() -> Tiny:
    return Tiny(400)


@pytest.fixture(scope="module", autouse=True)
def named(host):
    """The name "tiny" stands for the fake host, and a small encoder for every other."""
    with pytest.MonkeyPatch.context() as patch:
        replace_encoders(patch, BagEncoder())
        patch.setattr("dewmark.hosts.expectations.host_info", lambda name, **_: host.info)
        patch.setattr("dewmark.hosts.expectations.load_host", lambda name, **_: host)
        yield


@pytest.fixture(autouse=True)
def unread(text):
    """No test's count has another's readings."""
    Tiny.runs = 0


@pytest.fixture(scope="module")
def watermark(host, named) -> Watermark:
    return Watermark(KEY, host=host)


@pytest.fixture(scope="module")
def text(host, watermark) -> str:
    decoding = Decoding(max_new_tokens=150, min_new_tokens=150, temperature=0.7)
    (made,) = host.generate([PROMPT], scheme=watermark.scheme, seeds=[1], decoding=decoding)
    return made.text


def test_the_same_reader_gives_the_same_result_by_every_way(host, watermark, text, tmp_path) -> None:
    plain = watermark.detect(text, prompt=PROMPT)
    found = watermark.detector(reader="host").detect(text, prompt=PROMPT)
    assert (plain.reader, found.reader) == (None, "tiny")
    assert found.z != pytest.approx(plain.z, abs=1e-3)
    assert Tiny.runs == 1  # explaining where the mark is does not read again
    by_name = score_text(load_scheme(KEY, reader="tiny"), text, prompt=PROMPT)
    (many,) = detect_texts([text], Keys([KEY, Key(bytes(32))], reader="tiny"), prompts=[PROMPT])
    (found_in,) = watermark.detector(reader=host).examine([text], prompts=[PROMPT])
    watermark.detector(reader="host").save(tmp_path / "detector")
    stored = Detector.load(tmp_path / "detector")
    exported = stored.detect(text, prompt=PROMPT)
    for each in (by_name, many.detections[0], found_in.detection, exported):
        assert each.z == pytest.approx(found.z, abs=1e-4)
        assert each.reader == "tiny"
    assert json.loads((tmp_path / "detector" / "detector.json").read_text())["reader"] == "tiny"
    left_out = Detector.load(tmp_path / "detector", reader="none").detect(text, prompt=PROMPT)
    assert left_out.z == pytest.approx(plain.z, abs=1e-4)
    assert stored.scheme.config_hash != Detector.load(tmp_path / "detector", reader="none").scheme.config_hash


def test_passages_are_searched_with_the_reader(watermark, text) -> None:
    (found,) = detect_texts([text], watermark.detector(reader="host").scheme, prompts=[PROMPT])
    assert found.detection.reader == "tiny"
    assert found.passages or not found.judged.is_marked


def test_a_detector_without_a_host_needs_the_readers_name(watermark, tmp_path, text) -> None:
    watermark.detector().save(tmp_path / "detector")
    with pytest.raises(ConfigError, match="name the model"):
        Detector.load(tmp_path / "detector", reader="host")


def test_files_and_the_command_line(watermark, text, tmp_path) -> None:
    KEY.save(tmp_path / "a.key")
    Key(bytes(32)).save(tmp_path / "b.key")
    (tmp_path / "text.jsonl").write_text(json.dumps({"id": 1, "text": text, "prompt": PROMPT}) + "\n")
    expected = watermark.detector(reader="host").detect(text, prompt=PROMPT)
    spec = DetectorSpec(keys=(tmp_path / "a.key",), reader="tiny")
    assert spec.open().identity != dataclasses.replace(spec, reader=None).open().identity
    for keys in (["a.key"], ["a.key", "b.key"]):
        options = [part for name in keys for part in ("--key", str(tmp_path / name))]
        run = CliRunner().invoke(
            command_line(["detect"]),
            ["detect", "--jsonl", str(tmp_path / "text.jsonl"), *options, "--reader", "tiny", "--json", "-q"],
        )
        assert run.exit_code == 0, run.output
        row = json.loads(run.stdout)
        assert row["reader"] == "tiny"
        assert row["z"] == pytest.approx(expected.z, abs=1e-4)


def test_a_scheme_without_use_for_a_reader_says_so_before_it_reads(watermark, tmp_path) -> None:
    with pytest.raises(ConfigError, match="makes no use of a reader"):
        load_scheme(KEY, scheme="kgw", reader="tiny")
    with pytest.raises(ConfigError, match="without a reader"):
        watermark.detector(reader="host").scheme.follow()
    assert Tiny.runs == 0


def test_a_service_reads_in_memory_only(watermark, text, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DEWMARK_CACHE", str(tmp_path / "cache"))
    watermark.detector(reader="host").save(tmp_path / "acme")
    folders = (("acme", str(tmp_path / "acme")),)
    tenants = list(open_tenants(Settings(detectors=folders)).values())
    how = Examination(tenants, keys=1)
    query = Query(text, PROMPT)
    read, plain = (answer([query], dataclasses.replace(how, read=read))[0].said for read in (True, False))
    assert (read["reader"], plain["reader"]) == ("tiny", None)
    assert read["z"] != plain["z"]
    (without,) = open_tenants(Settings(detectors=folders, reader="none")).values()
    assert without.bound.expectations.name == "none"
