"""What must hold at every door of the service at once."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.desk.conftest import bearer
from tests.desk.live import host
from tests.desk.test_jobs import ended

from dewmark.core.keys import Key
from dewmark.decoding import CHAT_DECODING
from dewmark.hosts.base import ChatFormat
from dewmark.watermark import Watermark
from dewmark_desk.generation import TextGenerator, transcript
from dewmark_desk.service import Service
from dewmark_desk.settings import Settings
from dewmark_desk.signing import SigningKey
from dewmark_desk.tenants import Tenant

SECRET = bytes(range(100, 132))


@pytest.fixture
def derived(monkeypatch) -> dict[str, bytes]:
    """Every sub-key that is derived from now on, by its key's fingerprint and purpose."""
    known: dict[str, bytes] = {}
    real = Key.subkey

    def noted(self: Key, purpose: str) -> bytes:
        made = real(self, purpose)
        known[f"{made.hex()}/{purpose}"] = made
        return made

    monkeypatch.setattr(Key, "subkey", noted)
    return known


def spellings(secret: bytes) -> list[bytes]:
    return [
        secret,
        secret.hex().encode(),
        base64.b64encode(secret).rstrip(b"="),
        base64.urlsafe_b64encode(secret).rstrip(b"="),
    ]


def test_nothing_that_leaves_the_service_or_is_stored_holds_a_secret(tmp_path, open_service, derived, caplog):
    caplog.set_level("DEBUG")
    signing_key = Ed25519PrivateKey.generate()
    SigningKey(signing_key).save(tmp_path / "sign.pem")
    key = Key(SECRET, members=16, payload_bits=4).rotated("2026")
    bound = Watermark(key, host=host(), scheme="dew").scheme
    store = f"sqlite:///{tmp_path}/service.db"
    settings = Settings(detectors=(("acme", "memory"),), store=store, signers=(str(tmp_path / "sign.pem"),),
                        provider="Acme", log_queries=True)  # fmt: skip
    chat = ChatFormat(transcript, CHAT_DECODING)
    generator = TextGenerator(host(), {"acme": bound}, name="tiny", chat=chat, max_waiting=8, batch_size=8)
    client = open_service(Service(settings, {"acme": Tenant("acme", bound)}, generator=generator))
    head = bearer(client, "detect", "generate", "metrics")
    asked = {"model": "tiny", "prompt": "the old bridge", "max_tokens": 8, "payload": 3}
    chatted = {"model": "tiny", "messages": [{"role": "user", "content": "the"}], "max_tokens": 8}
    text = " ".join(["the old river ran over the bridge and under the town"] * 3)
    report = client.post("/v1/reports", json={"text": text, "page": True}, headers=head)
    answers = [
        report,
        client.post("/v1/reports/table", json={"documents": [report.json()["document"]]}, headers=head),
        client.post("/v1/completions", json=asked, headers=head),
        client.post("/v1/chat/completions", json={**chatted, "stream": True}, headers=head),
        client.post("/v1/completions", json={**asked, "payload": 10**9}, headers=head),
        client.post("/v1/detect", json={"texts": [text]}, headers=head),
        client.post("/v1/detect", json={"texts": [text], "tenants": ["no"]}, headers=head),
        client.post("/v1/rewrite", json={"text": "the old river", "tenant": "acme"}, headers=head),
    ]
    for path in ("/v1/batches", "/v1/audit"):
        started = client.post(path, json={"texts": [{"text": text}]}, headers=head)
        ended(client, started.headers["location"], headers=head)
        answers += [started, client.get(started.headers["location"], headers=head)]
    public = ["/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics", "/v1/whoami", "/v1/models",
              "/.well-known/dewmark.json", "/.well-known/jwks.json", "/v1/jobs"]  # fmt: skip
    answers += [client.get(path, headers=head) for path in public]
    assert [each.status_code for each in answers[:4]] == [200] * 4
    out = {f"{each.url} {each.status_code}": each.content + repr(each.headers).encode() for each in answers}
    out["log"] = caplog.text.encode() + repr([record.__dict__ for record in caplog.records]).encode()
    out |= {file.name: file.read_bytes() for file in tmp_path.glob("service.db*")}

    assert sum("ring" in name for name in derived) >= 16  # the keys of members were derived here
    secrets = [SECRET, key._secret, *derived.values(), signing_key.private_bytes_raw()]
    for name, data in out.items():
        assert not any(form in data for secret in secrets for form in spellings(secret)), name
