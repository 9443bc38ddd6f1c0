"""``dewmark report``: what is signed is what was found, and a third party can check it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.command_line import MARK, Run

from dewmark.core.keys import Key

pytestmark = pytest.mark.usefixtures("host")


@pytest.fixture
def signer(tmp_path: Path, run: Run) -> Path:
    assert run("report", "key", "--out", tmp_path / "desk.pem").code == 0
    return tmp_path / "desk.pem"


@pytest.fixture
def text(tmp_path: Path, key_file: Path) -> Path:
    path = tmp_path / "letter.txt"
    path.write_text(
        f"An old bridge over a river. {MARK}{Key.load(key_file).fingerprint[:4]}", encoding="utf-8"
    )
    return path


@pytest.fixture
def report(run: Run, signer: Path, text: Path, key_file: Path, tmp_path: Path) -> Path:
    out = tmp_path / "report.jws"
    made = run(
        "report", "sign", text, "--key", key_file, "--signer", signer, "--out", out, "--issuer", "Desk"
    )
    assert made.code == 0, made.err
    assert made.out.startswith("marked: p = 1e-06")
    return out


def test_a_third_party_verifies_report_and_text(run: Run, report: Path, signer: Path, text: Path) -> None:
    found = run("report", "verify", report, "--signer", signer.with_suffix(".jwk"), "--text", text, "--json")
    assert found.code == 0, found.err
    row = json.loads(found.out)
    claims = row["claims"]
    assert row["valid"]
    assert row["text_checked"]
    assert claims["verdict"] == "marked"
    assert claims["issuer"] == "Desk"
    assert claims["level"] == 0.01
    assert claims["looks"]["keys"] == 1
    assert claims["technique"]["scheme"] == "dew"
    assert claims["technique"]["test"] == "key"
    assert claims["attribution"]["owner"] == "the"
    assert "bridge" not in report.read_text()


def test_another_text_a_changed_report_and_another_signer_are_not_valid(run, report, signer, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("Something else.", encoding="utf-8")
    public = signer.with_suffix(".jwk")
    assert run("report", "verify", report, "--signer", public, "--text", other).code == 1
    changed = tmp_path / "changed.jws"
    changed.write_text(report.read_text().replace(".", "x.", 1))
    assert run("report", "verify", changed, "--signer", public).out.startswith("NOT VALID: ")
    run("report", "key", "--out", tmp_path / "mallory.pem")
    assert run("report", "verify", report, "--signer", tmp_path / "mallory.jwk").code == 1


def test_with_several_keys_the_report_says_how_many_and_blames_none_in_vain(
    run: Run, signer: Path, key_file: Path, tmp_path: Path, text: Path
) -> None:
    Key(bytes(32)).save(tmp_path / "b.key")
    plain = tmp_path / "plain.txt"
    plain.write_text("An old bridge over a river, and no mark on it.", encoding="utf-8")
    out = tmp_path / "r.jws"
    for file, verdict in ((text, "marked"), (plain, "not_marked")):
        made = run(
            "report", "sign", file, "--key", key_file, "--key", tmp_path / "b.key",
            "--signer", signer, "--out", out, "--json",
        )  # fmt: skip
        claims = json.loads(made.out)["report"]
        assert claims["verdict"] == verdict
        assert claims["looks"]["keys"] == 2
        assert (claims["attribution"] is None) == (verdict == "not_marked")
    assert claims["p_value"] == pytest.approx(1 - 0.6**2)
    assert claims["looks"]["p_value_of_best_key"] == pytest.approx(0.4)


def test_the_page_shows_the_claims_and_escapes_the_name(run, signer, key_file, tmp_path):
    evil = tmp_path / "<script>alert(1)<.txt"
    evil.write_text("An old bridge over a river, and no mark on it.", encoding="utf-8")
    out, page = tmp_path / "r.jws", tmp_path / "r.html"
    arguments = ("--key", key_file, "--signer", signer, "--out", out, "--html", page)
    assert run("report", "sign", evil, *arguments).code == 0
    first = page.read_text(encoding="utf-8")
    assert "<script" not in first
    assert (
        "No mark of the was found in this text, at a false-positive rate of 0.01." in first
    )  # of the key in the.key
    assert out.read_text().strip() in first
    again = run("report", "verify", out, "--signer", signer.with_suffix(".jwk"), "--html", page)
    assert again.code == 0
    assert page.read_text(encoding="utf-8") == first


def test_mistakes_are_reported_before_anything_is_scored(run, signer, key_file, text, tmp_path):
    arguments = ("--key", key_file, "--out", tmp_path / "r.jws")
    assert "dewmark report key" in run("report", "sign", text, *arguments, "--signer", tmp_path / "x").error
    nowhere = ("--key", key_file, "--out", signer / "r.jws", "--signer", signer)
    assert "cannot write" in run("report", "sign", text, *nowhere).error
    assert "exists already" in run("report", "key", "--out", signer).error
    assert "cannot read" in run("report", "verify", tmp_path / "x", "--signer", tmp_path / "desk.jwk").error


def test_a_page_is_verified_with_what_it_shows(run: Run, report: Path, signer: Path, tmp_path: Path) -> None:
    public, page = signer.with_suffix(".jwk"), tmp_path / "report.html"
    assert run("report", "verify", report, "--signer", public, "--html", page).code == 0
    shown = page.read_text(encoding="utf-8")
    assert "carries the mark of the" in shown
    assert run("report", "verify", page, "--signer", public).out.startswith("valid: ")
    # the signature in it stays authentic; the page around it does not
    page.write_text(shown.replace("This text carries the mark", "No mark was found in this text"))
    found = run("report", "verify", page, "--signer", public)
    assert (found.code, found.out) == (
        1,
        "NOT VALID: the page was changed: it does not show the report that was signed\n",
    )
    page.write_text("<!doctype html><p>This text carries the mark of the.</p>")
    assert run("report", "verify", page, "--signer", public).code == 1


@pytest.mark.parametrize("name", ["report.jws", "report.html", "dossier/dossier.jws"])
def test_the_examples_of_the_docs_are_valid(run: Run, name: str) -> None:
    """A changed page is made anew by: dewmark report verify report.jws --html report.html."""
    folder = Path(__file__).parents[4] / "docs" / "examples"
    about = () if name.startswith("dossier") else ("--text", folder / "example.txt")
    found = run("report", "verify", folder / name, "--signer", folder / "signer.jwk", *about)
    assert (found.code, found.out.split(":")[0]) == (0, "valid")
    assert found.out.count("unchanged: ") == (3 if name.startswith("dossier") else 0)


def test_a_folder_is_sealed_and_checked(run: Run, signer: Path, tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("<p>A page.</p>")
    (page / "detector.json").write_text("{}")
    assert run("report", "seal", page, "--signer", signer).code == 0
    check = ("report", "verify", page / "seal.jws", "--signer", signer.with_suffix(".jwk"))
    assert run(*check).out.count("unchanged: ") == 2
    (page / "index.html").write_text("<p>Another.</p>")
    assert run(*check).code == 1
    assert "nothing to seal" in run("report", "seal", tmp_path / "none", "--signer", signer).error
