"""The service under attack, beside an ordinary client of another tenant (docs/service.md).

    python benchmarks/service_flood.py
    python benchmarks/service_flood.py --json --only refused table
    python benchmarks/service_flood.py --keys 50 --only prompts idle --proxy nginx

Starts ``dewmark serve`` on loopback with one worker and two tenants, and runs one attack after another with
tokens of one of them, each in a fresh service and for ``--seconds``. Meanwhile a client of the other tenant
has a text of 150 words checked every tenth of a second, which no language model reads, and another asks for
``/healthz``. The attacker has a process of its own, at low priority. For each attack it prints the other
tenant's median and 95th percentile, that of the health check, the largest memory of the worker, the processor
time of the worker and its children, and what the attacker got; a request that was not answered has the name
of its error for a status. At last 50 clients load a fresh service: requests a second, and the worker's
memory. The attacks that write use a random model of two layers. All attacks of the default take less than
six minutes on two idle cores; the clients share the cores with the service.

``--only`` also names attacks that are not in the default. With ``--proxy nginx`` clients go through nginx,
with the limits of docs/service.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import functools
import io
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from script_inputs import script_parser
from service_load import load, ordinary_texts, quantile, serving, workers_of

from dewmark.config import cache_dir
from dewmark.core.keys import Key
from dewmark.encoders.lexicon import load_lexicon
from dewmark.extras import require
from dewmark.workspace import Workspace
from dewmark_desk.api_tokens import Tokens
from dewmark_desk.signing import SigningKey
from dewmark_desk.store import Store
from dewmark_lab.testing.fake_host import tiny_model

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SOURCE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
WRITING = ("patterns", "described", "logged")
LONG = {"content-type": "application/json"}
Attack = Callable[["Target"], Coroutine[None, None, dict[str, object]]]

NGINX = """
pid {folder}/nginx.pid; error_log {folder}/error.log; daemon off; worker_processes 1;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder};
  fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  client_header_timeout 10s; client_body_timeout 15s; client_max_body_size 16m;
  server {{ listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass {url}; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; }} }}
}}
"""


class Target:
    """A service, and the attacker's tokens."""

    def __init__(
        self, url: str, heads: dict[str, dict[str, str]], store: Path, seconds: float, model: str
    ) -> None:
        self.url, self.heads, self.store, self.seconds, self.model = url, heads, store, seconds, model
        self.statuses: Counter[str] = Counter()

    async def send(
        self, method: str, path: str, *, scope: str = "detect", **options: object
    ) -> httpx.Response | None:
        """One request of the attacker; None if it was not answered in time."""
        headers = {**LONG, **self.heads[scope], **options.pop("headers", {})}  # type: ignore[dict-item]
        if "files" in options:
            del headers["content-type"]
        try:
            async with (
                asyncio.timeout(self.seconds),
                httpx.AsyncClient(base_url=self.url, timeout=self.seconds, verify=False) as client,
            ):
                found = await client.request(method, path, headers=headers, **options)  # type: ignore[arg-type]
        except (httpx.TransportError, TimeoutError) as error:
            self.statuses[type(error).__name__] += 1
            return None
        self.statuses[str(found.status_code)] += 1
        return found

    async def until_over(self, method: str, path: str, **options: object) -> None:
        """The same request again and again."""
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline:
            await self.send(method, path, **options)  # type: ignore[arg-type]

    async def clients(self, number: int, method: str, path: str, **options: object) -> None:
        """So many clients that send the same request."""
        await asyncio.gather(*(self.until_over(method, path, **options) for _ in range(number)))

    def asked(self, schema: object) -> dict[str, object]:
        """A request for an answer that follows a schema."""
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        said = [{"role": "user", "content": "the old bridge"}]
        return {
            "model": self.model,
            "tenant": "k00",
            "messages": said,
            "max_tokens": 8,
            "response_format": form,
        }

    async def job(self, made: httpx.Response | None) -> str:
        """How a job ends, and with how many results."""
        deadline = time.monotonic() + self.seconds
        while made is not None and made.status_code == 202 and time.monotonic() < deadline:
            found = await self.send("GET", made.headers["location"])
            if found is not None and found.json()["state"] in ("done", "failed"):
                return f"{found.json()['state']}, {found.json()['done']} texts"
            await asyncio.sleep(0.2)
        return "not done"

    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)


def text(size: int, seed: int = 0) -> str:
    """Ordinary words, about ``size`` characters."""
    return " ".join(random.Random(seed).choices(_words(), k=size // 5))[:size]


@functools.cache
def _words() -> list[str]:
    return " ".join(ordinary_texts(20)).split()


async def prompts(target: Target) -> dict[str, object]:
    """Two prompts of half a megabyte, for all keys."""
    body = {"texts": [text(800), text(900, 1)], "prompts": [text(500_000), text(500_000, 2)]}
    await target.send("POST", "/v1/detect", json=body)
    return {}


async def utf16(target: Target) -> dict[str, object]:
    """Millions of values that a count of the bytes' quotes does not see."""
    head, tail = '{"\u0122": 1, "texts": [', "{}]}"
    body = head + "{}," * ((15 * (1 << 20) // 2 - 100) // 3) + tail
    await target.send("POST", "/v1/batches", content=body.encode("utf-16-le"))
    return {}


async def lists(target: Target) -> dict[str, object]:
    """A long list of wrong values."""
    await target.send("POST", "/v1/batches", content=b'{"texts": [' + b"1," * 119_000 + b"1]}")
    return {}


async def keys(target: Target) -> dict[str, object]:
    """32 KiB under all keys, searched for passages, four at a time."""
    body = {"text": text(32_000)}
    await asyncio.gather(*(target.send("POST", "/v1/detect", json=body) for _ in range(4)))
    return {}


async def below(target: Target) -> dict[str, object]:
    """Requests just below the limit of work, eight at a time."""
    body = {"text": text(4_500)}
    await asyncio.gather(*(target.send("POST", "/v1/detect", json=body) for _ in range(8)))
    return {}


async def reading(target: Target) -> dict[str, object]:
    """Texts that a language model (``--reader``) reads for seconds, eight at a time."""
    bodies_ = [{"text": text(1_200, i), "tenants": ["k00"]} for i in range(8)]
    await asyncio.gather(*(target.send("POST", "/v1/detect", json=body) for body in bodies_))
    return {}


async def texts(target: Target) -> dict[str, object]:
    """64 texts of 8 KiB under all keys."""
    await target.send("POST", "/v1/detect", json={"texts": [text(8_000, i) for i in range(64)]})
    return {}


async def example(target: Target) -> dict[str, object]:
    """45 requests for the example at once, with a public token."""
    await asyncio.gather(*(target.send("GET", "/v1/example", scope="detect-public") for _ in range(45)))
    return {}


async def idle(target: Target) -> dict[str, object]:
    """4,000 connections that send nothing."""
    return await _hold(target, 4000, b"")


async def bodies(target: Target) -> dict[str, object]:
    """600 bodies that arrive byte by byte."""
    token = target.heads["detect"]["Authorization"]
    lines = ("POST /v1/detect HTTP/1.1", "Host: 127.0.0.1", f"Authorization: {token}", "Content-Length: 999")
    return await _hold(target, 600, "\r\n".join((*lines, "", "{")).encode())


async def _hold(target: Target, count: int, sent: bytes) -> dict[str, object]:
    open_, refused = [], 0
    deadline = time.monotonic() + min(target.seconds, 25.0)
    for _ in range(count):
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(*target.address()), 5.0)
            writer.write(sent)
            open_.append(writer)
        except (OSError, TimeoutError):
            refused += 1
    while time.monotonic() < deadline:
        await asyncio.sleep(1.0)
        for writer in open_:
            if sent and not writer.is_closing():
                writer.write(b" ")
    for writer in open_:
        writer.close()
    return {"refused": refused}


async def methods(target: Target) -> dict[str, object]:
    """2,000 requests with invented methods."""
    async with httpx.AsyncClient(base_url=target.url, timeout=30) as client:
        for i in range(2000):
            await client.request(f"M{'X' * 3000}{i}", "/healthz")
        size = len((await client.get("/metrics", headers=target.heads["metrics"])).content)
    return {"metrics_bytes": size}


async def jobs(target: Target) -> dict[str, object]:
    """Four jobs of one token; how long another token's job of one text takes."""
    body = {"texts": [{"text": text(2_000, i)} for i in range(400)]}
    for _ in range(4):
        await target.send("POST", "/v1/batches", json=body)
    await asyncio.sleep(1.0)
    started = time.monotonic()
    made = await target.send("POST", "/v1/batches", scope="other", json={"texts": [{"text": text(800)}]})
    assert made is not None
    where = made.headers["location"]
    while time.monotonic() - started < target.seconds:
        found = await target.send("GET", where, scope="other")
        if found is not None and found.json()["state"] == "done":
            return {"other_job_s": round(time.monotonic() - started, 1)}
        await asyncio.sleep(0.2)
    return {"other_job_s": f"more than {target.seconds:g}"}


async def rows(target: Target) -> dict[str, object]:
    """A batch of 4,000 texts of one letter: what it leaves in the store."""
    body = {"texts": [{"text": "a"}] * 4000, "tenants": ["k00"]}
    made = await target.send("POST", "/v1/batches", json=body)
    sent = len(json.dumps(body))
    deadline = time.monotonic() + target.seconds
    while made is not None and time.monotonic() < deadline:
        found = await target.send("GET", made.headers["location"])
        if found is not None and found.json()["state"] == "done":
            break
        await asyncio.sleep(0.5)
    files = sum(each.stat().st_size for each in target.store.parent.glob("service.db*"))
    return {"sent_bytes": sent, "store_bytes": files}


async def uploads(target: Target) -> dict[str, object]:
    """Documents that take long to read, four at a time; whether another token's upload is read."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("content.xml", b"<a>" + b"<b/>" * 5_000_000)
    slow = stream.getvalue()
    own = [
        asyncio.create_task(target.send("POST", "/v1/extract", files={"file": ("a.odt", slow)}))
        for _ in range(4)
    ]
    await asyncio.sleep(1.0)
    started = time.monotonic()
    found = await target.send(
        "POST", "/v1/extract", scope="other", files={"file": ("b.txt", b"the old bridge")}
    )
    seconds = time.monotonic() - started
    await asyncio.gather(*own)
    return {"other_upload": None if found is None else found.status_code, "other_upload_s": round(seconds, 2)}


async def refused(target: Target) -> dict[str, object]:
    """Public tokens that cannot pay: half a megabyte, 45 clients at a time."""
    for i in range(5):  # the next answer about such a text costs four, and two are left of eight
        await target.send("POST", "/v1/detect", scope="poor", json={"text": f"{text(2_000)} {i}"})
    many = {"texts": [text(160_000, i) for i in range(3)]}
    dear = {"text": f"{text(2_000)} {text(400_000, 7)}"}
    bodies_ = [("broke", json.dumps(many)), ("poor", json.dumps(dear))]

    async def client(i: int) -> None:
        scope, body = bodies_[i % 2]
        await target.until_over("POST", "/v1/detect", scope=scope, content=body)

    await asyncio.gather(*map(client, range(45)))
    return {}


async def plain_uploads(target: Target) -> dict[str, object]:
    """Text files: two clients send a million letters of Latin-1, a megabyte, and a million of four bytes.

    Both are read to their end and returned. A third sends eight megabytes of Latin-1, which is refused: how
    many letters it has is known only when it is decoded.
    """
    latin = b"the old bridge \xe9 " * 500_000
    contents = (latin[:999_000], ("the old bridge " + "\U00020000" * 40).encode() * 18_000, latin[:8_388_000])
    sent = ({"file": ("a.txt", data)} for data in contents)
    await asyncio.gather(*(target.until_over("POST", "/v1/extract", files=files) for files in sent))
    return {}


async def patterns(target: Target) -> dict[str, object]:
    """A schema of one kilobyte whose automaton has no end."""
    schema = {"allOf": [{"type": "string", "pattern": f".*{letter}.{{30}}"} for letter in LETTERS[:20]]}
    await target.clients(4, "POST", "/v1/chat/completions", scope="generate", json=target.asked(schema))
    return {}


async def logged(target: Target) -> dict[str, object]:
    """Completions after code, lists and quotations, whose parts the policy log names, four at a time."""
    parts = (
        "```\nx = 1\n```",
        "1. the old bridge",
        "- a river",
        '"quoted"',
        "http://example.org/a",
        "`f(x)`",
    )
    prompt = "\n\n".join(random.Random(0).choices(parts, k=60))
    body = {"model": target.model, "tenant": "k00", "prompt": prompt, "max_tokens": 512}
    await target.clients(4, "POST", "/v1/completions", scope="generate", json=body)
    log = target.store.parent / "policy.jsonl"
    return {"log_bytes": log.stat().st_size if log.exists() else 0}


async def described(target: Target) -> dict[str, object]:
    """Schemas with megabytes of description."""
    schema = {"type": "object", "description": "the old bridge " * 500_000}
    await target.clients(2, "POST", "/v1/chat/completions", scope="generate", json=target.asked(schema))
    return {}


async def manifest(target: Target) -> dict[str, object]:
    """A signed manifest whose software agent is a string, in one of ten texts, and in one of a batch."""
    hostile = text(900) + hostile_manifest(text(900))
    many = [text(900, i) for i in range(9)]
    await target.clients(2, "POST", "/v1/detect", json={"texts": [*many, hostile]})
    rows = [{"text": each} for each in (*many, hostile)]
    made = await target.send("POST", "/v1/batches", json={"texts": rows})
    return {"batch": await target.job(made), "of": len(rows)}


async def rewriting(target: Target) -> dict[str, object]:
    """Texts of 600 words to be rewritten, two at a time."""
    body = {"text": text(3_900), "budget": 0.5, "tenant": "k00"}
    await target.clients(2, "POST", "/v1/rewrite", scope="generate", json=body)
    return {}


async def asking(target: Target) -> dict[str, object]:
    """A public token asks about variants of one text, diluted by words without a mark: answers it gets."""
    random_, given = random.Random(0), text(900).split()

    def variant() -> str:
        pieces: list[str] = []
        for start in range(0, len(given), 12):
            pieces += [
                word if random_.random() < 0.9 else random_.choice(_rare())
                for word in given[start : start + 12]
            ]
            pieces += [f"1 2 3 {random_.choice(_rare())}" for _ in range(60)] + ["1 2 3"]
        return " ".join(pieces)

    deadline = time.monotonic() + target.seconds
    while time.monotonic() < deadline:
        found = await target.send("POST", "/v1/detect", scope="detect-public", json={"text": variant()})
        if found is not None and found.status_code == 403:
            break
    return {"answers": target.statuses["200"]}


@functools.cache
def _rare() -> list[str]:
    forms = load_lexicon(workspace=Workspace(cache_dir())).forms
    return [form for form in forms[20_000:60_000] if form.isascii()]


async def table(target: Target) -> dict[str, object]:
    """Tables of a thousand reports, three at a time."""
    made = await target.send("POST", "/v1/reports", json={"text": text(900)})
    assert made is not None
    documents = [made.json()["document"]] * 1_000
    await target.clients(3, "POST", "/v1/reports/table", content=json.dumps({"documents": documents}))
    return {}


async def reports(target: Target) -> dict[str, object]:
    """Reports on dense Hangul and on English, the longest that are admitted, one after the other.

    Texts are halved until one is: half a megabyte is more work than a request may ask for.
    """
    letters = [chr(code) for code in range(0xAC00, 0xD7A4)]
    draw = random.Random(0)
    hangul = " ".join("".join(draw.choices(letters, k=2)) for _ in range(70_000))
    lengths = []
    for each in (hangul, text(520_000)):
        long = each
        while found := await target.send(
            "POST", "/v1/reports", json={"text": long, "tenants": ["k00"], "page": True}
        ):
            if found.status_code != 413:
                break
            long = long[: len(long) // 2]
        lengths.append(len(long.encode()))
    return {"bytes": lengths}


async def scores(target: Target) -> dict[str, object]:
    """The scores of all words of texts of 8 KB, of as many as a request may hold, four at a time."""
    body = {"texts": [text(8_000, i) for i in range(10)], "tokens": True, "tenants": ["k00"]}
    await target.clients(4, "POST", "/v1/detect", content=json.dumps(body))
    return {}


async def many_texts(target: Target) -> dict[str, object]:
    """Jobs of 20,000 texts, stored and deleted again."""
    body = json.dumps({"texts": [{"text": f"{i} {text(300, i % 50)}"} for i in range(20_000)]})
    deadline = time.monotonic() + target.seconds
    while time.monotonic() < deadline:
        made = await target.send("POST", "/v1/batches", content=body)
        if made is not None and made.status_code == 202:
            await target.send("DELETE", made.headers["location"])
    return {}


def hostile_manifest(text: str) -> str:
    """A manifest of somebody's own certificate, with a string for an object."""
    c2pa = require("c2pa", extra="c2pa", package="dewmark-desk")
    c2pa_text = require("c2pa_text", extra="c2pa", package="dewmark-desk")

    action = {"action": "c2pa.created", "softwareAgent": "a string", "digitalSourceType": SOURCE}
    claim = {
        "claim_generator_info": [{"name": "somebody", "version": "1"}],
        "format": "text/plain",
        "assertions": [{"label": "c2pa.actions", "data": {"actions": [action]}}],
    }
    claim["assertions"][0]["label"] = "c2pa.actions.v2"  # type: ignore[index]
    key = ec.generate_private_key(ec.SECP256R1())
    root = ec.generate_private_key(ec.SECP256R1())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    chain = [_certificate(key, root, ca=False), _certificate(root, root, ca=True)]
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    info = c2pa.C2paSignerInfo(b"es256", b"".join(each.public_bytes(pem) for each in chain), secret, None)
    with c2pa.Builder(json.dumps(claim)) as builder, c2pa.Signer.from_info(info) as signer:
        builder.set_no_embed()
        signed = builder.sign(signer, "text/plain", io.BytesIO(text.encode()), io.BytesIO())
    return str(c2pa_text.encode_wrapper(signed))


def _certificate(
    own: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey, *, ca: bool
) -> x509.Certificate:
    names = [
        x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "X"),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        for name in ("root" if ca else "leaf", "root")
    ]
    uses = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=ca, crl_sign=ca, encipher_only=False, decipher_only=False,
        **dict.fromkeys(uses, False),
    )  # fmt: skip
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    made = (
        x509.CertificateBuilder(
            names[1], names[0], own.public_key(), x509.random_serial_number(), now - day, now + day
        )
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
    )
    if not ca:
        mail = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])
        made = made.add_extension(mail, critical=False)
    return made.sign(by, hashes.SHA256())


DEFAULT: tuple[Attack, ...] = (
    refused, plain_uploads, patterns, described, logged, manifest, rewriting, asking, table, reports, scores,
    many_texts,
)  # fmt: skip
FURTHER: tuple[Attack, ...] = (
    prompts, utf16, lists, keys, below, reading, texts, example, idle, bodies, methods, jobs, rows, uploads,
)  # fmt: skip
ATTACKS: dict[str, Attack] = {each.__name__: each for each in (*DEFAULT, *FURTHER)}


class Ordinary(threading.Thread):
    """The other tenant's client, and the largest memory of the worker."""

    def __init__(self, url: str, head: dict[str, str], pid: int) -> None:
        super().__init__(daemon=True)
        self._url, self._head, self._pid = url, head, pid
        self.over = threading.Event()
        self.seconds: list[float] = []
        self.healthy: list[float] = []
        self.failed: Counter[str] = Counter()
        self.megabytes = 0.0

    def run(self) -> None:
        """Ask until it is over."""
        body = {"text": text(900), "read": False}
        for beside in (self._watch, self._check):
            threading.Thread(target=beside, daemon=True).start()
        with httpx.Client(base_url=self._url, timeout=60, headers=self._head) as client:
            while not self.over.is_set():
                started = time.monotonic()
                try:
                    found = client.post("/v1/detect", json=body)
                    if found.status_code == 200:
                        self.seconds.append(time.monotonic() - started)
                    else:
                        self.failed[str(found.status_code)] += 1
                except httpx.TransportError as error:
                    self.failed[type(error).__name__] += 1
                self.over.wait(0.1)

    def _check(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self.over.wait(0.1):
                started = time.monotonic()
                with contextlib.suppress(httpx.TransportError):
                    client.get("/healthz")
                self.healthy.append(time.monotonic() - started)

    def _watch(self) -> None:
        while not self.over.wait(0.05):
            for pid in workers_of(self._pid):
                self.megabytes = max(self.megabytes, resident(pid))


@contextlib.contextmanager
def behind(proxy: str | None, url: str, folder: Path) -> Iterator[str]:
    """The service's address, or that of a proxy in front of it."""
    if proxy is None:
        yield url
        return
    port = random.randrange(20_000, 30_000)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port, url=url))
    process = subprocess.Popen([shutil.which(proxy) or proxy, "-c", str(folder / "nginx.conf")])
    time.sleep(1.0)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def attacked(name: str, target: Target) -> tuple[dict[str, object], Counter[str], float]:
    """What an attack found, the statuses it got, and the seconds it took."""
    started = time.monotonic()
    found = asyncio.run(ATTACKS[name](target))
    return found, target.statuses, time.monotonic() - started


def run(name: str, options: argparse.Namespace, model: str) -> dict[str, object]:
    """One attack on a fresh service."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        for i in range(options.keys):
            Key.generate().save(where / f"k{i:02d}.key")
        SigningKey.generate().save(where / "signer.pem")
        store = where / "service.db"
        tokens = Tokens(Store(f"sqlite:///{store}"))
        own: dict[str, dict[str, object]] = {
            **{scope: {} for scope in ("detect", "detect-public", "metrics", "generate")},
            "broke": {"scope": "detect-public", "budget": 2},
            "poor": {"scope": "detect-public", "budget": 8},
            "other": {"scope": "detect", "tenants": [f"k{options.keys - 1:02d}"]},
        }
        heads = {}
        for name_, how in own.items():
            scope = str(how.pop("scope", name_))
            given = how if scope == "detect-public" else {"per_minute": 1e6, **how}
            heads[name_] = {"Authorization": f"Bearer {tokens.new(name_, [scope], **given)[1]}"}  # type: ignore[arg-type]
        arguments = ["--keys", folder, "--require-tokens", "--reader", options.reader]
        arguments += ["--signer", str(where / "signer.pem")]
        if name in WRITING:
            arguments += ["--host-model", model, "--policy", "default"]
            arguments += ["--policy-log", str(where / "policy.jsonl")]
        with (
            serving(*arguments, store=f"sqlite:///{store}") as (direct, pid),
            behind(options.proxy, direct, where) as url,
            ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), os.nice, (10,)) as attacker,
        ):
            attacker.submit(text, 1).result()  # starts it
            httpx.post(f"{url}/v1/detect", json={"text": text(900)}, headers=heads["detect"], timeout=120)
            client = Ordinary(url, heads["other"], pid)
            client.start()
            time.sleep(1.0)
            before = len(client.seconds), len(client.healthy)
            (worker,) = workers_of(pid)
            used = processor_seconds(worker)
            target = Target(url, heads, store, options.seconds, model)
            found, statuses, spent = attacker.submit(attacked, name, target).result()
            used = processor_seconds(worker) - used
            client.over.set()
            client.join(90)
    during, healthy = client.seconds[before[0] :], client.healthy[before[1] :]
    return {
        "attack": name,
        "seconds": round(spent, 1),
        "other_p50_s": _rounded(quantile(during, 0.5)),
        "other_p95_s": _rounded(quantile(during, 0.95)),
        "other_max_s": _rounded(max(during, default=None)),
        "other_answers": len(during),
        "failed": dict(client.failed),
        "health_p95_s": _rounded(quantile(healthy, 0.95)),
        "worker_mb": round(client.megabytes),
        "worker_cpu_s": round(used, 2),
        "statuses": dict(statuses),
        **found,
    }


def loaded(clients: int, seconds: float) -> dict[str, object]:
    """Requests a second of clients that send texts of 150 words, and the worker's memory."""
    with tempfile.TemporaryDirectory() as folder:
        Key.generate().save(Path(folder, "k00.key"))
        with serving("--keys", folder, "--reader", "none") as (url, pid):
            texts_ = [json.dumps({"text": each}).encode() for each in ordinary_texts(200)]
            asyncio.run(load(url, texts_, clients=4, seconds=2.0))
            started = time.monotonic()
            found = asyncio.run(load(url, texts_, clients=clients, seconds=seconds))
            spent = time.monotonic() - started
            (worker,) = workers_of(pid)
            used = resident(worker)
    answered = [each for status, each in found if status == 200]
    return {
        "load": f"{clients} clients",
        "requests_per_second": round(len(answered) / spent, 1),
        "p50_s": _rounded(quantile(answered, 0.5)),
        "p95_s": _rounded(quantile(answered, 0.95)),
        "statuses": dict(Counter(str(status) for status, _ in found)),
        "worker_mb": round(used),
    }


def resident(pid: int) -> float:
    """Megabytes of a process in memory."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        used = next(line for line in lines if line.startswith("VmRSS"))
        return int(used.split()[1]) / 1000.0
    return 0.0


def processor_seconds(pid: int) -> float:
    """Seconds that a process and its ended children have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def shown(row: dict[str, object]) -> str:
    """A row in words."""
    head, *values = row.items()
    return f"{head[1]!s:14s} " + ", ".join(f"{name} {value}" for name, value in values)


def main() -> None:
    parser = script_parser(__doc__)
    named = [each.__name__ for each in DEFAULT]
    parser.add_argument("--only", nargs="*", choices=[*ATTACKS, "load"], default=[*named, "load"])
    parser.add_argument("--keys", type=int, default=2, help="tenants, of which the last one is not attacked")
    parser.add_argument("--reader", default="none", help="language model that reads the texts")
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="of an attack, and of waiting for an answer"
    )
    parser.add_argument("--clients", type=int, default=50, help="of the load at last")
    parser.add_argument("--proxy", choices=["nginx"], help="put a reverse proxy in front")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each attack")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as model:
        network, tokenizer = tiny_model(context=2048)
        network.save_pretrained(model)
        tokenizer.save_pretrained(model)
        for name in options.only:
            row = loaded(options.clients, 10.0) if name == "load" else run(name, options, model)
            row = {**row, "load_average": round(os.getloadavg()[0], 1), "cores": os.cpu_count()}
            print(json.dumps(row) if options.json else shown(row), flush=True)


if __name__ == "__main__":
    main()
