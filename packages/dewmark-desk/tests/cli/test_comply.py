"""``dewmark comply``: a dossier whose figures are those of its rows, signed, resumable, planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dewmark.decoding import Decoding
from dewmark.hosts.base import ChatFormat
from dewmark_audit.negatives import Negatives
from dewmark_desk.compliance.measuring import _tasks
from dewmark_desk.signing import SigningKey, load_signers, verify

SMALL = (
    "--scheme", "dew-paper", "--set", "lambda=4", "--texts", "6", "--chats", "3", "--per-language", "1",
    "--per-format", "1", "--languages", "de,fr", "--length", "20,40", "--batch-size", "4",
    "--attack", "delete:r=0.3", "--attack", "truncate:n=20",
)  # fmt: skip


@pytest.fixture
def signer(tmp_path: Path) -> Path:
    made = SigningKey.generate()
    made.save(tmp_path / "s.pem")
    made.public.save(tmp_path / "s.jwk")
    return tmp_path / "s.pem"


@pytest.fixture
def deployment(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny host with a chat template and generation settings of its own."""
    form = ChatFormat(lambda messages: f"Q {messages[0]['content'][:20]} A", Decoding(temperature=0.8))
    monkeypatch.setattr("dewmark.hosts.chat_format", lambda name: form)
    few = Negatives(Negatives.packaged().documents[:30])
    monkeypatch.setattr(Negatives, "packaged", lambda: few)


@pytest.fixture
def arguments(deployment, key_file: Path, signer: Path, tmp_path: Path) -> tuple[object, ...]:
    return ("comply", "--key", key_file, "--signer", signer, "--out", tmp_path / "d", *SMALL)


def test_the_dossier_says_what_the_rows_say_and_a_third_party_checks_it(run, arguments, tmp_path):
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"text": "An old bridge."}\n{"text": "A new one."}\n')
    proof = {"policy": "1-x", "host": "llama", "key_fingerprint": "0", "requests": 66, "max_new_tokens": 9}
    parsed = {"kind": "JSON", "requests": 66, "unmarked": 66, "marked": 66, "p_value": 1.0}
    spans = [{"reason": "code", "words": 9, "mean": 0.1, "error": 0.3}]
    (tmp_path / "proof.json").write_text(json.dumps({**proof, "parsed": [parsed], "spans": spans}))
    compared = {"difference": {"value": 0.1, "low": 0.0, "high": 0.2}, "margin": 0.5, "outcome": "within"}
    quality = {"outcome": "within", "texts": 4, "scheme": "dew", "host": "llama"}
    quality["measures"] = {"log_perplexity": {"compared": compared}}
    (tmp_path / "quality.json").write_text(json.dumps(quality))
    made = run(
        *arguments, "--negatives", mine, "--provider", "Acme", "--contact", "desk@acme.example", "--json",
        "--policy-proof", tmp_path / "proof.json", "--quality", tmp_path / "quality.json",
        "--public-page", "https://p.example",
    )  # fmt: skip
    assert made.code == 0, made.err
    out = tmp_path / "d"
    signed = verify((out / "dossier.jws").read_text(), load_signers(tmp_path / "s.jwk"), kind="dossier")
    dossier = signed.payload
    plain = json.loads((out / "dossier.json").read_text(encoding="utf-8"))
    assert {name: value for name, value in dossier.items() if name != "files"} == plain
    rows = [json.loads(line) for line in (out / "rows" / "openings.jsonl").open(encoding="utf-8")]
    found = dossier["findings"]
    for level in (0.01, 0.001):
        hits = sum(row["scores"][-1]["conclusive"] and row["scores"][-1]["p_value"] < level for row in rows)
        whole = next(row for row in found["power_by_length"] if row["tokens"] is None)
        (share,) = [each for each in whole["at"] if each["level"] == level]
        assert (share["found"], share["texts"]) == (hits, 6)
        (clean,) = [each for each in found["robustness"][0]["at"] if each["level"] == level]
        assert clean["found"] == hits
    assert [row["attack"] for row in found["robustness"]] == ["none", "delete:r=0.3", "truncate:n=20"]
    assert {"paraphrase", "dipper"} <= found["not_measured"].keys()
    assert [row["language"] for row in found["power_by_language"]] == ["en", "de", "fr"]
    assert [row["format"] for row in found["formats"]] == ["code", "JSON", "short labels"]
    assert sum(row["at"][0]["texts"] for row in found["power_by_entropy"]) == 6
    false = found["false_positives"]
    domains = {row["domain"]: row["texts"] + row["without_verdict"] for row in false["domains"]}
    assert domains["this host unmarked, chat"] == 3
    assert domains["your texts, mine.jsonl"] == 2
    assert domains["prose, en"] > 20
    together = {row["domain"]: row for row in false["one_key"]}
    assert together.keys() >= {"all texts", "prose, en"}
    rates = together["prose, en"]["of_98_percent_of_keys"]
    assert rates["low"] < 0.01 < rates["high"]
    assert {row["measure"] for row in found["quality"]} >= {"log perplexity, nats per token"}
    assert dossier["deployment"]["chat_decoding"]["temperature"] == 0.8
    page = (out / "dossier.md").read_text(encoding="utf-8")
    assert f"{rates['low']:.2%} to {rates['high']:.2%}" in page
    for each in ("Acme", "desk@acme.example", "delete:r=0.3", "Not covered", "Article 50"):
        assert each in page
    for each in (
        "JSON | 66 of 66 | 66 of 66",
        "within",
        "the Code of Practice on marking and labelling; its own text was not available",
        "| signed metadata | Both layers | not stated: give --certificate |",
        "https://p.example",
    ):
        assert each in page
    signpost = json.loads((out / "signpost.json").read_text())
    assert signpost["provider"] == "Acme"
    assert signpost["reports"]["keys"][0]["kid"] == signed.signer
    check = ("report", "verify", out / "dossier.jws", "--signer", tmp_path / "s.jwk")
    fine = run(*check)
    assert fine.code == 0
    assert fine.out.count("unchanged: ") == 3
    (out / "dossier.md").write_text(page.replace("of 6", "of 5"), encoding="utf-8")
    assert "not the file that was signed" in run(*check).out


def test_a_stopped_run_continues_and_another_plan_is_refused(run, arguments, tmp_path, monkeypatch):
    from dewmark_lab.testing.fake_host import FakeHost

    written = FakeHost.complete
    calls = []

    def stop_after_three(self, prompts, **options):
        calls.append(len(prompts))
        if len(calls) > 3:
            raise KeyboardInterrupt
        return written(self, prompts, **options)

    monkeypatch.setattr(FakeHost, "complete", stop_after_three)
    little = ("--chats", 0, "--per-language", 0, "--per-format", 0, "--length", "20", "--texts", 6)
    arguments = (*arguments, *little, "--batch-size", 2)
    assert run(*arguments).code == 130
    before = (tmp_path / "d" / "rows" / "openings.jsonl").read_bytes()
    monkeypatch.setattr(FakeHost, "complete", written)
    assert run(*arguments).code == 0
    assert (tmp_path / "d" / "rows" / "openings.jsonl").read_bytes() == before
    assert "belongs to another run" in run(*arguments, "--temperature", "0.5").error


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--attack", "delte"), "delte"),
        (("--attack", "delete:r=2"), "must lie in [0, 1]"),
        (("--fpr", "2"), "level"),
        (("--length", "x"), "--length"),
        (("--languages", "xx"), "'xx'"),
        (("--texts", "2"), "at least 4"),
        (("--policy-proof", "pyproject.toml"), "--policy-proof pyproject.toml has no policy"),
    ],
)
def test_mistakes_are_reported_before_the_host_is_loaded(run, arguments, more, message):
    assert message in run(*arguments[: -len(SMALL)], *more).error


def test_tasks_of_enough_unmarked_answers_are_judged_alone() -> None:
    rows = [{"group": name} for name in ["recipe"] * 8 + ["story"] * 7]
    assert _tasks("chat", rows) == ["chat: recipe"] * 8 + ["chat"] * 7
    assert _tasks("openings", [{"group": "opening"}] * 9) == ["openings"] * 9
