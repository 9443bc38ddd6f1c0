"""A gateway before SGLang: every request is marked and, with a certificate, every text signed.

    DEWMARK_SGLANG_CONFIG=dewmark.toml python sglang_gateway.py --upstream http://127.0.0.1:30000 --port 8000

SGLang marks only requests that carry the processor, and cannot reject one from inside it. This program adds
the processor, answers requests with wrong `dewmark` parameters with HTTP 400, and passes everything else on,
streams included. It needs dewmark and the configuration (not SGLang, no GPU).

    … --certificate chain.pem --certificate-key key.pem          # needs dewmark-desk[c2pa]

appends a C2PA manifest to every text of /v1/completions and /v1/chat/completions, whole or streamed, except
to answers that programs read (JSON, tool calls). --vllm does the same before vLLM, which adds the mark and
checks requests by itself (DEWMARK_VLLM_CONFIG).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import json
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dewmark.errors import ConfigError
from dewmark.hosts.engines import vllm_config
from dewmark.hosts.engines.vllm_config import config_from_environment, decoding_of
from dewmark.manifests import MANIFESTS, Signs

if TYPE_CHECKING:
    from dewmark.decoding import Decoding
    from dewmark_desk.text_manifest import SignedAnswers

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
    said = params.get("custom_params") or {}
    if not isinstance(said, dict):
        raise ConfigError("custom_params must be an object")
    mark = config_from_environment(CONFIG).mark_request(said, decoding=_decoding(params))
    seeded = params.get("seed", params.get("sampling_seed")) is not None
    if mark is not None and seeded and (params.get("n") or 1) != 1:
        raise ConfigError(
            "SGLang gives all n samples one seed, so they would be one text: leave out n or the seed"
        )
    return {**params, "custom_params": said}  # without it SGLang does not name the request


def _decoding(params: dict[str, Any]) -> Decoding:
    """What a request says of temperature and filters."""
    options = {"temperature": 1.0, "top_k": -1, "top_p": 1.0, "min_p": 0.0}
    for name in options:
        if (value := params.get(name)) is not None:
            if not isinstance(value, (int, float)):
                raise ConfigError(f"{name} must be a number")
            options[name] = value
    return decoding_of(SimpleNamespace(**options))


def signed_answers(
    provider: Signs | None, path: str, body: dict[str, Any], variable: str
) -> SignedAnswers | None:
    """What adds manifests to the answer to a request, or None; the manifest names the key that marks."""
    if provider is None or path == "/generate":
        return None
    from dewmark_desk.text_manifest import SignedAnswers, is_read_by_programs

    if is_read_by_programs(body):
        return None
    config, said = config_from_environment(variable), body.get("custom_params") or body.get("vllm_xargs")
    mark = config.mark_request(said, decoding=_decoding(body))
    key = mark and vllm_config.load_key(config.keys[mark.key_id])
    return SignedAnswers(
        functools.partial(
            provider.manifest,
            model=str(body.get("model") or config.host),
            scheme=config.scheme.name,
            fingerprint=key and key.fingerprint,
        )
    )


def signed_events(lines: Iterable[bytes], signed: SignedAnswers) -> Iterator[bytes]:
    """The lines of a stream of events, with manifests."""
    for line in lines:
        if line.startswith(b"data: {"):
            for piece in signed.piece(json.loads(line[6:])):
                yield b"data: %s\n\n" % json.dumps(piece, ensure_ascii=False).encode()
        elif line.strip():
            yield line.rstrip() + b"\n\n"


class Gateway(BaseHTTPRequestHandler):
    """Passes requests on to ``upstream``; ``provider`` signs the texts."""

    protocol_version = "HTTP/1.1"
    upstream: tuple[str, int]
    provider: Signs | None = None
    variable = CONFIG

    def do_POST(self) -> None:
        """Check a request and pass it on."""
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        signed = None
        if self.path in PATHS:
            try:
                body = json.loads(data)
                if not isinstance(body, dict):
                    raise ConfigError("the body must be an object")
                if self.variable == CONFIG:
                    data = json.dumps(admitted(self.path, body)).encode()
                signed = signed_answers(self.provider, self.path, body, self.variable)
            except ValueError as error:  # ConfigError is one, and so is wrong JSON
                self._answer(400, json.dumps({"error": {"message": str(error), "code": 400}}).encode())
                return
        self._pass_on(data, signed)

    def do_GET(self) -> None:
        """Pass a request on."""
        self._pass_on(None)

    def _pass_on(self, data: bytes | None, signed: SignedAnswers | None = None) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        with contextlib.closing(http.client.HTTPConnection(*self.upstream, timeout=600)) as link:
            try:
                link.request(self.command, self.path, data, headers)
                answer = link.getresponse()
            except OSError as error:
                self._answer(502, json.dumps({"error": {"message": str(error), "code": 502}}).encode())
                return
            streamed = answer.getheader("Content-Type", "").startswith("text/event-stream")
            if signed is not None and answer.status == 200 and not streamed:
                whole = signed.whole(json.loads(answer.read()))
                self._answer(200, json.dumps(whole, ensure_ascii=False).encode())
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP:
                    self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            pieces = signed_events(answer, signed) if signed is not None else _pieces(answer)
            for piece in pieces:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while piece := answer.read1(1 << 16):
        yield piece


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--upstream", default="http://127.0.0.1:30000")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--certificate", type=Path)
    parser.add_argument("--certificate-key", type=Path)
    parser.add_argument("--vllm", action="store_true")
    options = parser.parse_args()
    if options.certificate is not None:
        Gateway.provider = MANIFESTS["sign"](options.certificate, options.certificate_key)
    Gateway.variable = vllm_config.CONFIG if options.vllm else CONFIG
    config_from_environment(Gateway.variable)
    address = urlsplit(options.upstream)
    Gateway.upstream = (address.hostname or "127.0.0.1", address.port or 80)
    ThreadingHTTPServer.request_queue_size = 1024  # of 5, some of 32 clients at once are turned away
    ThreadingHTTPServer(("127.0.0.1", options.port), Gateway).serve_forever()


if __name__ == "__main__":
    main()
