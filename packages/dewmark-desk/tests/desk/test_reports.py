"""Signed reports over HTTP and what they say of origin, the signpost, and readiness."""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.desk.conftest import bearer
from tests.desk.live import bound, marked_text, plain_text

from dewmark.cli.app import main
from dewmark.dew.scheme import DEW
from dewmark.errors import ConfigError
from dewmark.types import Detection, ForgeryTest, Verdict
from dewmark_desk.browser_detector import FORMAT
from dewmark_desk.detection_report import REPORT, render_report, report_claims
from dewmark_desk.routes import detect, reports
from dewmark_desk.settings import Settings
from dewmark_desk.signing import SigningKey, verify

DOCS = Path(__file__).parents[4] / "docs"


@pytest.fixture
def signers(tmp_path: Path) -> tuple[str, ...]:
    files = tuple(str(tmp_path / name) for name in ("new.pem", "old.pem"))
    for file in files:
        SigningKey.generate().save(file)
    return files


@pytest.fixture
def signing(open_service, signers):
    return open_service(signers=signers, provider="Acme", public_url="https://desk.example")


def test_a_report_says_what_detect_says_and_can_be_verified_by_anyone(signing):
    desk = bearer(signing, "detect")
    text = marked_text()
    made = signing.post(
        "/v1/reports", json={"text": text, "name": "a.txt", "page": True}, headers=desk
    ).json()
    alone = signing.post("/v1/detect", json={"text": text}, headers=desk).json()["results"][0]
    claims = made["claims"]
    assert (claims["verdict"], claims["p_value"]) == (alone["verdict"], alone["p_value"])
    assert claims["attribution"] == {
        "owner": "acme", "key_fingerprint": bound("acme").fingerprint, "epoch": None,
    }  # fmt: skip
    assert claims["issuer"] == "Acme"
    assert None not in claims["technique"]["settings"].values()
    assert made["document"] in made["page"]
    for about, same in ((text, True), (plain_text(), False)):
        checked = signing.post("/v1/reports/verify", json={"document": made["document"], "text": about})
        assert checked.status_code == 200
        assert (checked.json()["valid"], checked.json()["text_matches"]) == (True, same)
        assert checked.json()["claims"] == claims


def test_an_older_signer_is_still_recognised_and_a_stranger_is_not(signing, signers):
    for key, valid in ((SigningKey.load(signers[1]), True), (SigningKey.generate(), False)):
        document = key.sign({"verdict": "marked"}, kind="detection-report")
        answer = signing.post("/v1/reports/verify", json={"document": document}).json()
        assert (answer["valid"], bool(answer["reason"])) == (valid, not valid)


def test_a_table_of_reports_is_signed_and_anyone_can_verify_it(signing, tmp_path, capsys):
    asked = {"=a, b.txt": marked_text(), "two.txt": plain_text()}
    made = [
        signing.post("/v1/reports", json={"text": text, "name": name}).json() for name, text in asked.items()
    ]
    documents = [each["document"] for each in made]
    table = signing.post("/v1/reports/table", json={"documents": documents}).json()
    rows = list(csv.DictReader(io.StringIO(table["table"], newline="")))
    assert [row["text"] for row in rows] == ["'=a, b.txt", "two.txt"]  # no formula
    for row, each in zip(rows, made, strict=True):
        claims = each["claims"]
        assert (row["verdict"], float(row["p_value"])) == (claims["verdict"], claims["p_value"])
        assert (row["report"], row["sha256"]) == (claims["id"], claims["text"]["sha256"])
    (tmp_path / "t.jws").write_text(table["document"])
    (tmp_path / "keys.json").write_text(signing.get("/.well-known/jwks.json").text)
    command = ["report", "verify", str(tmp_path / "t.jws"), "--signer", str(tmp_path / "keys.json")]
    for change, code, said in (("", 0, "unchanged"), ("x", 1, "is not the file that was signed")):
        (tmp_path / "verdicts.csv").write_bytes((table["table"] + change).encode())
        assert main(command) == code
        assert said in capsys.readouterr().out


def test_a_table_takes_only_reports_of_this_service(signing, signers, client):
    bare = SigningKey.load(signers[1]).sign({"verdict": "marked"}, kind="detection-report")
    foreign = SigningKey.generate().sign({"verdict": "marked"}, kind="detection-report")
    own = signing.post("/v1/reports", json={"text": plain_text()}).json()["document"]
    inner = signing.post("/v1/reports/table", json={"documents": [own]}).json()["document"]
    for bad in (bare, foreign, inner, "x"):
        answer = signing.post("/v1/reports/table", json={"documents": [own, bad]})
        assert answer.status_code == 422
        assert "a report is not valid" in answer.json()["error"]["message"]
    assert client.post("/v1/reports/table", json={"documents": [own]}).status_code == 404


def test_reports_need_a_signing_key_and_the_scope(client, signing):
    assert client.post("/v1/reports", json={"text": plain_text()}).status_code == 404
    public = bearer(signing, "detect-public")
    assert signing.post("/v1/reports", json={"text": plain_text()}, headers=public).status_code == 403
    assert signing.post("/v1/reports", json={"text": plain_text()}).status_code == 401


def test_the_signpost_names_detector_technique_and_keys_but_no_tenant(open_service, signers):
    client = open_service(
        tenants=("acme", "beta"), signers=signers, contact="desk@example.org", public_url="https://d.example/",
        dossier_url="https://d.example/dossier.md", public_page="https://d.example/public/",
    )  # fmt: skip
    bearer(client, "detect")  # from now on requests need a token, the signpost does not
    found = client.get("/.well-known/dewmark.json")
    assert found.status_code == 200
    post = found.json()
    assert post["detector"]["api"] == "https://d.example/v1/detect"
    assert post["techniques"] == [{"scheme": "dew-paper", "summary": bound("acme").scheme.summary}]
    assert "desk@example.org" in post["how_to_ask"]["access"]
    assert len(post["reports"]["keys"]) == 2
    assert post["public_detector"]["description"] == "https://d.example/public/detector.json"
    assert post["public_detector"]["format"] == FORMAT
    assert client.get("/v1/whoami").json()["public_page"] == "https://d.example/public/"
    schema = json.loads((DOCS / "signpost.schema.json").read_text(encoding="utf-8"))
    assert post.keys() == set(schema["required"]) == schema["properties"].keys()
    for name in ("detector", "public_detector", "how_to_ask", "reports"):
        part = schema["properties"][name]
        assert post[name].keys() == set(part["required"]) == part["properties"].keys()
    for secret in ("acme", "beta", bound("acme").fingerprint, bound("beta").fingerprint):
        assert secret not in json.dumps(post)


def test_readyz_follows_the_store_and_the_end(client, monkeypatch):
    assert client.get("/readyz").json()["ready"] is True
    bearer(client, "detect")
    assert client.get("/readyz").status_code == 200

    def gone() -> None:
        import sqlalchemy as sa

        raise sa.exc.OperationalError("select", {}, Exception("gone"))

    with monkeypatch.context() as patch:
        patch.setattr(client.service.store, "check", gone)
        patch.setattr("dewmark_desk.service._CHECK_SECONDS", 0.0)
        assert client.get("/readyz").status_code == 503
    client.service.draining = True
    assert client.get("/readyz").status_code == 503
    client.service.draining = False


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"log_days": 0.0}, "--log-days"), ({"public_url": "desk.example"}, "--public-url")],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Settings(keys=(("a", "b"),), **settings)


BOUND = SimpleNamespace(scheme=DEW(), config_hash="0" * 8)
MARKED = Detection(
    verdict=Verdict.MARKED,
    p_value=1e-9,
    z=7.0,
    score=0.5,
    effective_length=80.0,
    tokens_scored=90,
    tokens=(),
    fpr=0.01,
    test="key",
    scheme="dew",
    key_fingerprint="feed",
)


def claims_of(found: Detection) -> dict:
    return report_claims("a text", found.to_dict(), BOUND, said="marked")


def test_member_payload_epoch_and_attribution_are_signed_and_shown() -> None:
    held = ForgeryTest(attributable=True, z_form=5.0, p_form=1e-7)
    found = dataclasses.replace(
        MARKED, member=35, payload=9, payload_confidence=0.999, epoch="2027q1", forgery=held
    )
    claims = claims_of(found)
    assert claims["attribution"]["epoch"] == "2027q1"
    assert claims["origin"] == {
        "member": 35,
        "payload": 9,
        "payload_confidence": 0.999,
        "attributable": True,
        "p_value_of_form": 1e-7,
    }
    key = SigningKey.generate()
    document = key.sign(claims, kind=REPORT)
    page = render_report(verify(document, [key.public]), document)
    assert "the key’s holder, member 35, payload 9" in page
    learned = dataclasses.replace(found, forgery=dataclasses.replace(held, attributable=False))
    document = key.sign(claims_of(learned), kind=REPORT)
    assert "somebody who learned the mark" in render_report(verify(document, [key.public]), document)


def test_an_unmarked_text_has_no_origin() -> None:
    found = dataclasses.replace(MARKED, verdict=Verdict.NOT_MARKED, p_value=0.5)
    assert claims_of(found)["origin"] is None
    plain = claims_of(MARKED)["origin"]
    assert plain["attributable"] is None
    assert plain["member"] is None


def test_large_answers_are_made_off_the_event_loop(signing, monkeypatch):
    """There they would keep all other requests waiting."""
    where: list[str] = []

    def off(name, function):
        def noted(*arguments, **options):
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop()
            where.append(name)
            return function(*arguments, **options)

        return noted

    desk = bearer(signing, "detect")
    document = signing.post("/v1/reports", json={"text": plain_text()}, headers=desk).json()["document"]
    for name in ("verify", "table_csv", "report_claims"):
        monkeypatch.setattr(reports, name, off(name, getattr(reports, name)))
    monkeypatch.setattr(detect, "JSONResponse", off("answer", detect.JSONResponse))
    asked = {"/v1/reports/table": {"documents": [document] * 600}, "/v1/reports": {"text": plain_text()}}
    asked["/v1/detect"] = {"text": plain_text(), "tokens": True}
    for path, body in asked.items():
        assert signing.post(path, json=body, headers=desk).status_code == 200
    assert where == ["verify"] * 600 + ["table_csv", "report_claims", "answer"]
