"""Webhooks: tell a caller's server that a job has ended.

The request follows the Standard Webhooks conventions: ``webhook-id`` is the job's id, ``webhook-timestamp``
the time, and ``webhook-signature`` is ``v1a,`` and the base64 of an Ed25519 signature over
``id.timestamp.body`` under the service's signing key, whose public half it publishes. The body names the job
and its state, and holds no text and no result.

The service calls only host names that its operator allows, over HTTPS (or HTTP on loopback), and follows no
redirects: otherwise a caller could make it ask servers that only it can reach.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

from dewmark.errors import ConfigError
from dewmark_desk.jobs import Job
from dewmark_desk.settings import is_loopback
from dewmark_desk.signing import SigningKey

_SECONDS = 10.0
_LONGEST = 2000


def check_url(url: str, *, hosts: Collection[str]) -> SplitResult:
    """The parts of a webhook's URL; raises `ConfigError` unless it may be called."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise ConfigError("webhook: not a URL") from None
    if parts.username is not None or parts.password is not None or parts.fragment or len(url) > _LONGEST:
        raise ConfigError("webhook: the URL must have no user, password or fragment")
    if host.lower() not in hosts:
        raise ConfigError("webhook: this service does not call that host; its operator may allow it")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise ConfigError("webhook: the URL must begin with https://")
    if not url.isascii() or any(character <= " " for character in url):
        raise ConfigError("webhook: the URL must be ASCII without spaces")
    return parts


def call(url: str, job: Job, *, signer: SigningKey, hosts: Collection[str]) -> bool:
    """Call a webhook once; returns whether the server accepted it (any 2xx status)."""
    parts = check_url(url, hosts=hosts)
    body = json.dumps({"type": f"job.{job.state}", "data": job.to_dict(result=False)}).encode()
    now = int(time.time())
    signature = base64.b64encode(signer.sign_bytes(f"{job.id}.{now}.".encode() + body)).decode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "dewmark",
        "webhook-id": job.id,
        "webhook-timestamp": str(now),
        "webhook-signature": f"v1a,{signature}",
    }
    host, port = parts.hostname or "", parts.port
    connection = (
        http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=_SECONDS)
    )
    path = parts.path or "/"
    try:
        connection.request("POST", f"{path}?{parts.query}" if parts.query else path, body, headers)
        return 200 <= connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
