"""Both layers in one call: who writes attaches a manifest, and who detects reads manifest and mark."""

from __future__ import annotations

import contextlib
import http.server
import importlib.util
import json
import threading
from pathlib import Path

import httpx
import pytest
from tests.desk.live import bound, host, marked_text, plain_text
from tests.desk.test_text_manifest import two_providers

from dewmark import Key, Watermark
from dewmark.cli.app import main
from dewmark.manifests import MANIFESTS
from dewmark_desk.tenants import example_text
from dewmark_desk.text_manifest import SignedAnswers, is_read_by_programs, read_manifest

pytest.importorskip("c2pa")

ASKED = {"model": "tiny", "max_tokens": 40, "seed": 7, "prompt": "the old bridge"}


@pytest.fixture(scope="module")
def us(tmp_path_factory):
    return two_providers(tmp_path_factory)["us"]


@pytest.fixture
def files(us):
    return (str(us[0].chain), str(us[0].private_key))


def test_the_library_signs_what_it_writes(us):
    watermark = Watermark(Key(bytes(32)), host=host(), provider=us[0])
    options = {"seed": 3, "max_new_tokens": 30}
    made = watermark.generate("the old bridge", **options)
    found = read_manifest(made.text, roots=us[1])
    assert (found.state, found.model) == ("trusted", host().name)
    assert found.fingerprint == watermark.scheme.fingerprint
    *pieces, last = watermark.stream("the old bridge", **options)
    assert "".join(pieces).rstrip() == found.text
    assert read_manifest("".join(pieces) + last, roots=us[1]).state == "trusted"


def test_the_command_signs_and_reads_both_layers(us, files, tmp_path, capsys, monkeypatch):
    """By the manifest alone: the tiny host's words carry no mark of the default."""
    monkeypatch.setattr("dewmark.watermark.load_host", lambda *_, **__: host())
    monkeypatch.setattr("dewmark.hosts.host_info", lambda *_, **__: host().info)
    key = tmp_path / "my.key"
    Key(bytes(range(32))).save(key)
    wrote = ["generate", "--key", str(key), "--prompt", "the old bridge", "--continue"]
    wrote += ["--max-new-tokens", "80", "--min-new-tokens", "80"]  # room for the mark that it names
    assert main([*wrote, "--certificate", files[0], "--certificate-key", files[1], "-q"]) == 0
    text = tmp_path / "text.txt"
    text.write_text(capsys.readouterr().out, encoding="utf-8")
    detect = ["detect", "--key", str(key), str(text), "--json", "-q"]
    assert main(detect) == 0
    assert json.loads(capsys.readouterr().out)["manifest"]["state"] == "untrusted"
    assert main([*detect, "--roots", str(us[1])]) == 0
    said = json.loads(capsys.readouterr().out)["manifest"]
    assert (said["state"], said["signer"]) == ("trusted", "us, Maker")
    assert said["key_fingerprint"] == Key(bytes(range(32))).fingerprint
    assert main(["generate", "--key", str(key), "--prompt", "x", "--certificate", files[0]]) == 2
    assert "go together" in capsys.readouterr().err


def test_a_text_without_a_manifest_is_silent_unless_one_is_expected(us, tmp_path, capsys):
    key, text = tmp_path / "my.key", tmp_path / "text.txt"
    Key(bytes(range(32))).save(key)
    text.write_text(example_text(), encoding="utf-8")
    main(["detect", "--key", str(key), str(text), "--json", "-q"])
    assert json.loads(capsys.readouterr().out)["manifest"] is None
    main(["detect", "--key", str(key), str(text), "-q", "--roots", str(us[1])])
    assert "Neither a manifest nor a mark is there." in capsys.readouterr().out


def test_without_the_companion_a_manifest_is_named_and_not_read(us, tmp_path, capsys, monkeypatch):
    key, text = tmp_path / "my.key", tmp_path / "text.txt"
    Key(bytes(range(32))).save(key)
    signed = example_text() + us[0].manifest(example_text(), model="m", scheme="dew", fingerprint="0" * 16)
    text.write_text(signed, encoding="utf-8")
    monkeypatch.setattr(MANIFESTS, "_table", dict)
    assert main(["detect", "--key", str(key), str(text), "-q"]) == 0
    assert "which is not read here" in capsys.readouterr().out
    assert main(["detect", "--key", str(key), str(text), "-q", "--roots", str(us[1])]) == 2


class TestService:
    def test_answers_carry_a_manifest(self, open_service, us, files):
        client = open_service(generates=True, certificate=files, roots=str(us[1]))
        made = client.post("/v1/completions", json={**ASKED, "max_tokens": 150}).json()
        text = made["choices"][0]["text"]
        found = read_manifest(text, roots=us[1])
        assert (found.state, found.fingerprint) == ("trusted", bound("acme").fingerprint)
        (said,) = client.post("/v1/detect", json={"text": text}).json()["results"]
        assert (said["verdict"], said["manifest"]["layers"]) == ("marked", "agree")

    def test_streams_end_with_it(self, open_service, us, files):
        client = open_service(generates=True, certificate=files)
        for path, field in (("completions", "text"), ("chat/completions", "content")):
            body = {**ASKED, "stream": True}
            if field == "content":
                body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
            lines = client.post(f"/v1/{path}", json=body).text.split("\n\n")
            rows = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
            pieces = [row.get("delta", row).get(field) or "" for row in rows]
            assert read_manifest("".join(pieces), roots=us[1]).state == "trusted"
            assert "\ufeff" in pieces[-2]
            assert [row["finish_reason"] for row in rows[:-1]] == [None] * (len(rows) - 1)

    def test_an_unmarked_text_s_manifest_names_no_mark(self, open_service, us, files):
        client = open_service(generates=True, certificate=files, opt_out=True)
        made = client.post("/v1/completions", json={**ASKED, "mark": False}).json()
        found = read_manifest(made["choices"][0]["text"], roots=us[1])
        assert (found.state, found.fingerprint) == ("trusted", None)

    def test_what_the_layers_say_when_they_disagree(self, open_service, us):
        client = open_service(roots=str(us[1]))
        named = {"model": "tiny", "scheme": "dew", "fingerprint": bound("acme").fingerprint}

        def said(text):
            return client.post("/v1/detect", json={"text": text}).json()["results"][0]["manifest"]["layers"]

        both = marked_text() + us[0].manifest(marked_text(), **named)
        assert said(both) == "agree"
        assert said(f"Well, {both}") == "altered_marked"
        assert said(marked_text()) == "mark_alone"
        assert said(plain_text()) == "neither"
        assert said(plain_text() + us[0].manifest(plain_text(), **named)) == "mark_missing"


def test_pieces_of_an_engine_s_stream_get_the_manifest_before_their_end():
    signed = SignedAnswers(lambda text: f"<{text}>")
    head = {"id": "x", "index": 0}
    chunks = [
        {"choices": [{**head, "text": "a ", "finish_reason": None}]},
        {"choices": [{**head, "text": "b", "finish_reason": "stop"}]},
    ]
    sent = [piece["choices"][0] for chunk in chunks for piece in signed.piece(chunk)]
    assert [each["text"] for each in sent] == ["a ", "b<a b>", ""]
    assert [each["finish_reason"] for each in sent] == [None, None, "stop"]
    answer = {"choices": [{"message": {"content": None, "tool_calls": [{}]}}, {"message": {"content": "c"}}]}
    texts = [each["message"]["content"] for each in SignedAnswers(lambda _: "!").whole(answer)["choices"]]
    assert texts == [None, "c!"]
    assert is_read_by_programs({"response_format": {"type": "json_object"}})
    assert not is_read_by_programs({"response_format": {"type": "text"}, "tools": []})


GATEWAY = Path(__file__).parents[4] / "examples" / "sglang_gateway.py"


class _Engine(http.server.BaseHTTPRequestHandler):
    """Answers like an engine, whole or streamed."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ended = {"index": 0, "finish_reason": "stop"}
        answer = {"choices": [{**ended, "message": {"role": "assistant", "content": "an old bridge"}}]}
        if body.get("stream"):
            rows = [
                {"index": 0, "delta": {"content": each}, "finish_reason": None}
                for each in ("an old", " bridge")
            ]
            rows.append({**ended, "delta": {}})
            lines = [f"data: {json.dumps({'choices': [row]})}\n\n" for row in rows]
            data = "".join([*lines, "data: [DONE]\n\n"]).encode()
        else:
            data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if body.get("stream") else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        """Say nothing."""


@contextlib.contextmanager
def served(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


@pytest.mark.parametrize("engine", ["DEWMARK_SGLANG_CONFIG", "DEWMARK_VLLM_CONFIG"])
def test_the_gateway_signs_what_an_engine_writes(us, tmp_path, monkeypatch, engine):
    Key(bytes(range(32))).save(tmp_path / "my.key")
    (tmp_path / "c.toml").write_text('[keys]\nacme = "my.key"\n')
    monkeypatch.setenv(engine, str(tmp_path / "c.toml"))
    spec = importlib.util.spec_from_file_location("sglang_gateway", GATEWAY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.Gateway.provider, module.Gateway.variable = us[0], engine
    monkeypatch.setattr(module.Gateway, "log_message", lambda *_: None)
    asked = {"model": "big", "messages": [{"role": "user", "content": "x"}]}
    with served(_Engine) as port:
        module.Gateway.upstream = ("127.0.0.1", port)
        with served(module.Gateway) as front:
            url = f"http://127.0.0.1:{front}/v1/chat/completions"
            whole = httpx.post(url, json=asked).json()["choices"][0]["message"]["content"]
            lines = httpx.post(url, json={**asked, "stream": True}).text.split("\n\n")
            asked["response_format"] = {"type": "json_object"}
            plain = httpx.post(url, json=asked).json()["choices"][0]["message"]["content"]
    rows = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    for text in (whole, "".join(row["delta"].get("content") or "" for row in rows)):
        found = read_manifest(text, roots=us[1])
        assert (found.state, found.text, found.model) == ("trusted", "an old bridge", "big")
        assert found.fingerprint == Key(bytes(range(32))).fingerprint
    assert rows[-1]["finish_reason"] == "stop"
    assert "data: [DONE]" in lines
    assert plain == "an old bridge"
