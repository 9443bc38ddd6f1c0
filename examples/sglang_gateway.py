"""A gateway before SGLang: every request is marked, and wrong parameters are rejected with a reason.

    DEWMARK_SGLANG_CONFIG=dewmark.toml python sglang_gateway.py --upstream http://127.0.0.1:30000 --port 8000

SGLang marks only requests that carry the processor, and cannot reject one from inside it. This program adds
the processor, answers requests with wrong `dewmark` parameters with HTTP 400, and passes everything else on,
streams included. It needs dewmark and the configuration (not SGLang, no GPU), and reads only key files whose
members or payloads a request asks for.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from dewmark.errors import ConfigError
from dewmark.hosts.engines.vllm_config import config_from_environment

CONFIG = "DEWMARK_SGLANG_CONFIG"
# the class by its name, as SGLang's to_str writes it
PROCESSOR = json.dumps({"callable": b"cdewmark.hosts.engines.sglang\nDewLogitProcessor\n.".hex()})
PATHS = ("/generate", "/v1/completions", "/v1/chat/completions")
HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


def admitted(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The request's body with the processor; `ConfigError` says why a request is rejected."""
    if body.get("custom_logit_processor") not in (None, PROCESSOR):
        raise ConfigError("custom_logit_processor is set by this server: leave it out")
    body = {**body, "custom_logit_processor": PROCESSOR}
    if path != "/generate":
        return _checked(body)
    params = body.get("sampling_params") or {}
    body["sampling_params"] = [_checked(p) for p in params] if isinstance(params, list) else _checked(params)
    return body


def _checked(params: dict[str, Any]) -> dict[str, Any]:
    said, temperature = params.get("custom_params") or {}, params.get("temperature")
    if not isinstance(said, dict):
        raise ConfigError("custom_params must be an object")
    if temperature is not None and not isinstance(temperature, (int, float)):
        raise ConfigError("temperature must be a number")
    greedy = params.get("top_k") == 1 or temperature == 0
    config_from_environment(CONFIG).mark_request(said, temperature=0.0 if greedy else 1.0)
    return {**params, "custom_params": said}  # without it SGLang does not name the request


class Gateway(BaseHTTPRequestHandler):
    """Passes requests on to ``upstream``."""

    protocol_version = "HTTP/1.1"
    upstream: tuple[str, int]

    def do_POST(self) -> None:
        """Check a request and pass it on."""
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path in PATHS:
            try:
                body = json.loads(data)
                if not isinstance(body, dict):
                    raise ConfigError("the body must be an object")
                data = json.dumps(admitted(self.path, body)).encode()
            except ValueError as error:  # ConfigError is one, and so is wrong JSON
                self._answer(400, json.dumps({"error": {"message": str(error), "code": 400}}).encode())
                return
        self._pass_on(data)

    def do_GET(self) -> None:
        """Pass a request on."""
        self._pass_on(None)

    def _pass_on(self, data: bytes | None) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        with contextlib.closing(http.client.HTTPConnection(*self.upstream, timeout=600)) as link:
            try:
                link.request(self.command, self.path, data, headers)
                answer = link.getresponse()
            except OSError as error:
                self._answer(502, json.dumps({"error": {"message": str(error), "code": 502}}).encode())
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP:
                    self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while piece := answer.read1(1 << 16):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--upstream", default="http://127.0.0.1:30000")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    config_from_environment(CONFIG)
    address = urlsplit(options.upstream)
    Gateway.upstream = (address.hostname or "127.0.0.1", address.port or 80)
    ThreadingHTTPServer(("127.0.0.1", options.port), Gateway).serve_forever()


if __name__ == "__main__":
    main()
