"""Logs and metrics of real requests."""

from __future__ import annotations

import json
import logging
import socket

import pytest
from tests.desk.conftest import bearer
from tests.desk.live import plain_text

from dewmark.errors import ConfigError
from dewmark_desk.monitoring import JsonLines
from dewmark_desk.settings import Settings
from dewmark_desk.supervisor import Supervisor

SECRET = "a sentence that nobody but its writer may ever see again"


def test_logs_are_json_and_never_contain_the_text(client, caplog):
    head = {**bearer(client, "detect"), "X-Request-Id": "find-me"}
    with caplog.at_level(logging.INFO, "dewmark_desk"):
        client.post(f"/v1/detect?q={SECRET[:9]}", json={"text": f"{SECRET} {plain_text()}"}, headers=head)
        client.post("/v1/detect", json={"text": SECRET, SECRET: 1}, headers=head)
        client.get(f"/v1/jobs/{SECRET}", headers=head)
    lines = [JsonLines().format(record) for record in caplog.records]
    rows = [json.loads(line) for line in lines]
    assert {row["request_id"] for row in rows if row["event"] == "request"} == {"find-me"}
    assert [row["status"] for row in rows if row["event"] == "request"] == [200, 422, 422]
    assert rows[0]["route"] == "/v1/detect"
    assert SECRET[:9] not in "".join(lines)
    assert head["Authorization"].split("_", 2)[2] not in "".join(lines)


def test_metrics_count_requests_and_texts(client):
    client.post("/v1/detect", json={"text": plain_text()})
    client.get("/nowhere/at/all")
    text = client.get("/metrics").text
    assert 'dewmark_texts_total{endpoint="detect",verdict="not_marked"} 1.0' in text
    assert 'dewmark_requests_total{method="POST",route="/v1/detect",status="200"} 1.0' in text
    assert "/nowhere" not in text


@pytest.mark.parametrize("error", [PermissionError("a key"), ConfigError("a key")])
def test_a_reload_that_fails_changes_nothing(caplog, error):
    def reread() -> Settings:
        raise error

    caplog.set_level("ERROR", logger="dewmark_desk")
    supervisor = Supervisor(Settings(keys=(("a", "b"),)), socket.socket(), reread=reread)
    supervisor._reload({})
    assert "nothing has changed" in caplog.text
    assert supervisor.pids == []
