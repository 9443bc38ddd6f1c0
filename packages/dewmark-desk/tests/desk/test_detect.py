from __future__ import annotations

import dataclasses
import threading

import pytest
from tests.desk.conftest import bearer
from tests.desk.live import bound, make_service, marked_text, marked_texts, old_text, plain_text, plain_texts

from dewmark.detect import score_text
from dewmark.errors import ConfigError
from dewmark.scheme import for_languages
from dewmark.stats.multiple_testing import sidak_min
from dewmark.text.languages import LanguagePolicy
from dewmark_desk.tenants import Tenant, unmarked_text
from dewmark_desk.verdicts import Examination


def results(response):
    assert response.status_code == 200, response.text
    return response.json()["results"]


class TestDetect:
    def test_answer_equals_the_library_s(self, shared):
        for text, verdict in ((marked_text(), "marked"), (plain_text(), "not_marked")):
            (found,) = results(shared.post("/v1/detect", json={"text": text, "tokens": True}))
            own = score_text(bound("acme"), text)
            assert found["verdict"] == verdict == own.verdict
            assert found["p_value_of_key"] == own.p_value
            assert found["p_value"] == own.p_value
            assert (found["coverage"] is None) == (verdict == "not_marked")
            assert (found["z"], found["effective_length"]) == (own.z, own.effective_length)
            assert found["tokens"] == [token.to_dict() for token in own.tokens]
            assert (found["tenant"], found["keys"], found["per_tenant"]) == ("acme", 1, None)
            assert found["characters"] == len(text)

    def test_prompt_is_context(self, shared):
        text = marked_text()
        alone, after = (
            results(shared.post("/v1/detect", json={"text": text, "prompt": prompt}))[0]
            for prompt in (None, "the old bridge over the river")
        )
        assert after["tokens_scored"] == alone["tokens_scored"] + 3

    def test_level_decides_the_verdict(self, shared):
        for fpr, verdict in ((0.05, "marked"), (1e-300, "not_marked")):
            (found,) = results(shared.post("/v1/detect", json={"text": marked_text(), "fpr": fpr}))
            assert (found["verdict"], found["fpr"]) == (verdict, fpr)
            assert (found["p_value"] < fpr) == (verdict == "marked")

    def test_a_long_text_is_refused_rather_than_cut(self, open_service):
        client = open_service(text_bytes=1000)
        refused = client.post("/v1/detect", json={"text": "é" + plain_text()})
        assert refused.status_code == 413
        assert "more than 1,000 bytes" in refused.json()["error"]["message"]

    def test_language_is_guessed(self, shared):
        german = "Der alte Mann ging langsam über die Brücke und sah auf das Wasser des Flusses hinab."
        (found,) = results(shared.post("/v1/detect", json={"text": german}))
        assert found["language"] == {"code": "de", "name": "German", "supported": True}
        (found,) = results(shared.post("/v1/detect", json={"text": "12 34 56"}))
        assert found["language"] == {"code": None, "name": None, "supported": None}
        (found,) = results(shared.post("/v1/detect", json={"text": "Το παλιό γεφύρι πάνω από το ποτάμι"}))
        assert found["language"] == {"code": "el", "name": "Greek", "supported": False}

    def test_a_language_that_the_encoder_does_not_know_is_refused(self, open_service, tmp_path):
        service = make_service(tmp_path)
        strict = for_languages(bound("acme"), LanguagePolicy(known=frozenset({"en", "de"})))
        service.tenants["acme"] = Tenant("acme", strict)
        client = open_service(service)
        greek = "Το παλιό γεφύρι πάνω από το ποτάμι είναι κλειστό και κανείς δεν το επισκευάζει πια."
        (found,) = results(client.post("/v1/detect", json={"text": greek * 20}))
        assert found["verdict"] == "unsupported_language"
        assert "in Greek, which this detector does not know" in found["sentence"]
        assert found["leaves_no_room"]  # the tiny host reads no Greek: more of it would not help
        service.tenants["acme"] = Tenant(
            "acme", for_languages(bound("acme"), LanguagePolicy(known=frozenset({"el"})))
        )
        (found,) = results(client.post("/v1/detect", json={"text": unmarked_text()}))
        assert (found["verdict"], found["leaves_no_room"]) == (
            "unsupported_language",
            False,
        )  # an audit would help
        head = bearer(client, "detect-public")
        (found,) = results(
            client.post("/v1/detect", json={"text": "in a house by the old river" * 2}, headers=head)
        )
        assert (found["verdict"], found["leaves_no_room"]) == ("unsupported_language", True)


class TestTenants:
    def test_p_value_is_corrected_for_the_number_of_keys(self, open_service):
        client = open_service(tenants=("acme", "beta"))
        (found,) = results(client.post("/v1/detect", json={"text": plain_text(3)}))
        alone = {name: score_text(bound(name), plain_text(3)) for name in ("acme", "beta")}
        best = min(alone, key=lambda name: alone[name].p_value)
        assert (found["tenant"], found["keys"]) == (best, 2)
        corrected = {name: sidak_min(each.p_value, tests=2) for name, each in alone.items()}
        assert found["p_value"] == pytest.approx(corrected[best])
        assert found["looks"] == {"keys": 2, "attempts": 1, "passages": False}
        assert {row["tenant"]: row["p_value"] for row in found["per_tenant"]} == pytest.approx(corrected)

    def test_each_key_has_a_verdict_of_its_own(self, open_service):
        client = open_service(tenants=("acme", "beta"))
        for text, expected in (
            (marked_text(), {"acme": "marked", "beta": "not_marked"}),
            (plain_text(), {"acme": "not_marked", "beta": "not_marked"}),
            ("the old bridge", {"acme": "too_short", "beta": "too_short"}),
        ):
            (found,) = results(client.post("/v1/detect", json={"text": text}))
            assert {row["tenant"]: row["verdict"] for row in found["per_tenant"]} == expected

    def test_asking_for_one_tenant_pays_for_all(self, open_service):
        """A caller may name the tenant because another answer pointed to it."""
        client = open_service(tenants=("acme", "beta"))
        text = plain_text(3)
        (found,) = results(client.post("/v1/detect", json={"text": text}))
        only = {"text": text, "tenants": [found["tenant"]]}
        (again,) = results(client.post("/v1/detect", json=only))
        assert found["p_value"] == again["p_value"]
        head = bearer(client, "detect", tenants=["beta"])
        (own,) = results(client.post("/v1/detect", json={"text": text}, headers=head))
        assert own["keys"] == 1

    def test_retired_keys_detect_and_are_named(self, open_service):
        client = open_service(tenants=("acme@2025", "acme", "beta"))
        head = bearer(client, "detect", tenants=["acme"])
        for text, name in ((marked_text(), "acme"), (old_text(), "acme@2025")):
            (found,) = results(client.post("/v1/detect", json={"text": text}, headers=head))
            assert (found["verdict"], found["tenant"], found["keys"]) == ("marked", name, 2)
        for named in (["acme"], ["acme@2025"]):  # the verdict pays for every key that could be named
            body = {"text": plain_text(), "tenants": named}
            assert results(client.post("/v1/detect", json=body, headers=head))[0]["keys"] == 2

    def test_unknown_and_forbidden_tenants_look_the_same(self, open_service):
        client = open_service(tenants=("acme", "beta"))
        head = bearer(client, "detect", tenants=["acme"])
        other, unknown = (
            client.post("/v1/detect", json={"text": "a b c", "tenants": [name]}, headers=head)
            for name in ("beta", "nobody")
        )
        assert other.status_code == unknown.status_code == 404
        assert other.json()["error"]["message"] == unknown.json()["error"]["message"]
        (found,) = results(client.post("/v1/detect", json={"text": plain_text()}, headers=head))
        assert found["keys"] == 1


class TestPublic:
    def test_public_answer_is_a_verdict(self, open_service):
        client = open_service(tenants=("acme", "beta"))
        head = bearer(client, "detect-public")
        for text in (marked_text(), plain_text(), plain_text(2)):
            (found,) = results(client.post("/v1/detect", json={"text": text}, headers=head))
            own = score_text(bound("acme"), text)
            assert found["verdict"] == own.verdict
            assert found["rounded"]
            assert found["tenant"] == ("acme" if own.is_marked else None)
            for name in (
                "p_value",
                "p_value_of_key",
                "z",
                "score",
                "effective_length",
                "tokens",
                "keys",
                "key_fingerprint",
                "per_tenant",
            ):
                assert found[name] is None, name

    def test_public_verdicts_are_at_a_smaller_level(self, client):
        head = bearer(client, "detect-public")
        (public,) = results(client.post("/v1/detect", json={"text": marked_text()}, headers=head))
        assert (public["verdict"], public["fpr"]) == ("marked", 1e-4)
        settings = client.service.settings
        client.service.settings = dataclasses.replace(settings, public_fpr=1e-300)
        desk = bearer(client, "detect")
        (trusted,) = results(client.post("/v1/detect", json={"text": marked_text()}, headers=desk))
        assert (trusted["verdict"], trusted["fpr"]) == ("marked", 0.01)
        head = bearer(client, "detect-public")
        (public,) = results(client.post("/v1/detect", json={"text": marked_text()}, headers=head))
        assert (public["verdict"], public["fpr"]) == ("not_marked", 1e-300)
        with pytest.raises(ConfigError, match="--public-fpr must lie"):
            dataclasses.replace(settings, public_fpr=0.0)

    def test_new_texts_are_paid_for_by_bytes(self, client):
        text = plain_text()
        head = bearer(client, "detect-public", budget_bytes=len(text.encode()) + 10)
        asked = [
            client.post("/v1/detect", json={"text": one}, headers=head).status_code
            for one in (text, plain_text(3))
        ]
        assert asked == [200, 403]

    def test_public_tokens_may_not_search_for_the_threshold(self, client):
        head = bearer(client, "detect-public")
        choices = (
            {"fpr": 0.02},
            {"test": "key"},
            {"tokens": True},
            {"tenants": ["acme"]},
        )
        for choice in choices:
            assert client.post("/v1/detect", json={"text": "a", **choice}, headers=head).status_code == 403
        assert client.post("/v1/audit", json={"texts": [{"text": "a"}]}, headers=head).status_code == 403
        assert client.get("/v1/whoami", headers=head).json()["tenants"] == []


class TestPassages:
    def test_marked_half_is_found(self, shared):
        plain, marked = plain_texts(1, 150)[0], marked_texts(1, 150)[0]
        body = {"text": plain + marked, "tokens": True}
        (found,) = results(shared.post("/v1/detect", json=body))
        (passage,) = found["coverage"]["passages"]
        # boundaries are accurate to a few tokens, of 5 characters each here
        assert abs(passage["start"] - len(plain)) < 200
        assert passage["end"] > len(plain + marked) - 200
        assert passage["text"] == (plain + marked)[passage["start"] : passage["end"]]
        assert found["tenant"] == passage["tenant"] == "acme"
        assert (len(found["tokens"]), found["coverage"]["extent"]) == (300, "part")


class TestExtract:
    def test_text_of_a_file(self, shared):
        data = "Die Brücke über den Fluss.".encode()
        found = shared.post("/v1/extract", files={"file": ("..\\a/b.txt", data)}).json()
        assert (found["name"], found["text"], found["characters"]) == ("b.txt", data.decode(), 26)

    def test_unreadable_files_are_rejected(self, open_service):
        client = open_service(extract_bytes=1000)
        for name, data, status in (
            ("a.exe", b"MZ", 415),
            ("a.pdf", b"no pdf", 422),
            ("a.docx", b"PK", 422),
            ("a.txt", b"", 422),
            ("a.txt", b"x" * 1001, 413),
        ):
            assert client.post("/v1/extract", files={"file": (name, data)}).status_code == status, name
        assert client.post("/v1/extract", data={"file": "text"}).status_code == 422


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"text": "a", "texts": ["b"]}, 422),
        ({"texts": []}, 422),
        ({"texts": ["a"] * 65}, 422),
        ({"texts": ["a", "b"], "prompts": ["c"]}, 422),
        ({"texts": ["a"], "prompt": "b"}, 422),
        ({"text": "a", "prompts": ["b"]}, 422),
        ({"text": 5}, 422),
        ({"text": "a", "fpr": 0}, 422),
        ({"text": "a", "fpr": "0.1"}, 422),
        ({"text": "a", "test": "nonsense"}, 422),
        ({"text": "a", "unknown": 1}, 422),
        ({"text": "a", "tenants": []}, 422),
        ({"text": "a", "tenants": ["nobody"]}, 404),
        ({"text": " \n"}, 422),
        ({"text": "x" * 1_000_001}, 413),
    ],
)
def test_invalid_requests_are_rejected(shared, body, status):
    response = shared.post("/v1/detect", json=body)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["request_id"] == response.headers["x-request-id"]
    assert len(error["message"]) < 300


def test_a_reader_s_requests_and_others_are_not_one_batch(client, monkeypatch):
    """A batch is handled by the first request's settings, so requests of one batch must agree on them."""
    groups = []

    async def run(handler, items, *, owner, cost, group=None):
        groups.append(group)
        return handler(list(items))

    monkeypatch.setattr(client.service.fast, "run", run)
    short = " ".join(plain_text().split()[:80])
    for read in (True, False, True):
        results(client.post("/v1/detect", json={"text": short, "read": read}))
    assert groups[0] == groups[2] != groups[1]


def test_nobody_waits_for_a_language_model_that_reads_for_another(client, monkeypatch):
    reading, free = client.service.reading, threading.Event()
    busy = threading.Thread(
        target=lambda: reading.run_job(lambda _: [free.wait(60)], [None], owner="another", cost=1.0)
    )
    busy.start()
    try:
        monkeypatch.setattr("dewmark_desk.examining.SLICE", 0.0)  # all is slow work
        results(client.post("/v1/detect", json={"text": plain_text()}))
        monkeypatch.setattr(Examination, "has_reader", True)
        read = threading.Thread(target=lambda: client.post("/v1/detect", json={"text": plain_text()}))
        read.start()
        read.join(0.5)
        assert read.is_alive()  # it has its turn in the same pool
    finally:
        free.set()
    read.join(60)
    busy.join(60)
    assert not read.is_alive()
