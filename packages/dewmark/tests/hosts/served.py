"""What the tests of engines' own servers share: tenants, a running server, and what its texts carry."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dewmark
from dewmark.capabilities import for_member
from dewmark.detect import score_texts
from dewmark.hosts.base import Host
from dewmark.policy import Policy

HOST = "smollm2-135m"
SETTINGS = {"alpha": 0.7}
TOKENS = 100
STARTS = 600  # seconds that a server may take to start on a slow machine
PROMPTS = [
    "The old bridge over the river",
    "My grandmother kept a small shop at the end of the harbour, and every summer",
    "There are three reasons why people move to the mountains:",
]
Kind = tuple[str | None, dict[str, Any], dict[str, Any]]
"""The key that texts carry, what a request says of it, and what else it asks for."""
RING = {"dewmark_key_id": "ring", "dewmark_member": 3, "dewmark_payload": 5}
CODE = "```\\n[a-z ]{600}"  # a block of code, which the policy leaves unmarked


def tenants(folder: Path) -> dict[str, dewmark.Key]:
    """Two tenants and a ring: their keys, and in the folder a configuration that names them and a policy."""
    made = {"acme": dewmark.Key(bytes([7] * 32)), "globex": dewmark.Key(bytes([8] * 32))}
    made["ring"] = dewmark.Key(bytes([9] * 32), members=4, payload_bits=3)
    for name, key in made.items():
        key.save(folder / f"{name}.key")
    names = "".join(f'{name} = "{name}.key"\n' for name in made)
    text = f'host = "{HOST}"\ndefault_key = "acme"\npolicy = "default"\nsettings = {{ alpha = 0.7 }}\n'
    (folder / "dewmark.toml").write_text(f"{text}[keys]\n{names}", encoding="utf-8")
    return made


def free_port() -> int:
    """A port of this machine that nothing listens to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    command: Sequence[str], address: str, *, environment: Mapping[str, str], log: Path, keys: Path
) -> Iterator[None]:
    """A server, until the block ends; its log must not name a key of the folder ``keys``."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=stream, stderr=subprocess.STDOUT
        )
    try:
        end = time.monotonic() + STARTS
        while not _answers(f"{address}/health"):
            assert process.poll() is None, log.read_text(encoding="utf-8", errors="replace")[-3000:]
            assert time.monotonic() < end
            time.sleep(1.0)
        yield
    finally:
        process.terminate()
        process.wait(60)
    text = log.read_text(encoding="utf-8", errors="replace")
    for file in keys.glob("*.key"):
        assert file.read_text(encoding="utf-8").split()[-1] not in text


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def ask(server: str, prompt: str, **more: object) -> tuple[int, list[str]]:
    """Status, and the texts or the error's message."""
    body = {
        "model": "smollm2",
        "prompt": prompt,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 1.0,
    }
    request = urllib.request.Request(
        f"{server}/v1/completions",
        data=json.dumps(body | more).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.status, [choice["text"] for choice in json.load(answer)["choices"]]
    except urllib.error.HTTPError as error:
        return error.code, [json.load(error)["error"]["message"]]


def ask_at_once(
    server: str, kinds: Sequence[Kind], host: Host, *, field: str, structured: str
) -> Iterator[tuple[int, str, Kind, list[str]]]:
    """Seed, prompt, kind and texts of 32 requests, which say what they want of the mark in ``field``.

    All but those of ``structured`` output have the length of the own loop's texts, and its tokens.
    """
    special = sorted(host.info.tokenizer.special_ids)  # which the own loop does not write
    asked = [(100 * i, PROMPTS[i % 3], kinds[i % len(kinds)]) for i in range(32)]

    def answer(one: tuple[int, str, Kind]) -> tuple[int, list[str]]:
        seed, prompt, (_, said, more) = one
        free = {} if structured in more else {"min_tokens": TOKENS, "stop_token_ids": special}
        return ask(server, prompt, **{field: said, "seed": seed, **free, **more})

    with ThreadPoolExecutor(32) as pool:
        for one, (status, texts) in zip(asked, list(pool.map(answer, asked)), strict=True):
            assert status == 200, texts
            yield *one, texts


def counted(server: str, metric: str) -> float:
    """A counter of the server's."""
    with urllib.request.urlopen(f"{server}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(metric))


@dataclass(frozen=True)
class Served:
    """A text of a server, the key that it carries, and what its request said."""

    text: str
    prompt: str
    key: str | None
    said: Mapping[str, Any]
    seed: int | None = None  # None if dewmark's own loop cannot write the text


def check_keys(served: Sequence[Served], keys: Mapping[str, dewmark.Key]) -> None:
    """Each text is found under its own key (p < 0.001) and under no other.

    100 tokens of this configuration have z of about 7 (standard deviation about 1): p < 0.001 is z > 3.1. Of
    the 92 p-values that are no mark's, 0.09 are expected below 0.001; keys and seeds are fixed.
    """
    texts, prompts = [one.text for one in served], [one.prompt for one in served]
    carried = np.array([one.key for one in served])
    for name, key in keys.items():
        found = score_texts(dewmark.load_scheme(key, host=HOST, settings=SETTINGS), texts, prompts=prompts)
        p = np.array([one.p_value for one in found])
        assert (p[carried == name] < 0.001).all()
        assert (p[carried != name] > 0.001).all()
        if name == "ring":
            assert {one.payload for one, own in zip(found, carried, strict=True) if own == name} == {5}


def equal_to_the_own_loop(
    served: Sequence[Served], keys: Mapping[str, dewmark.Key], host: Host
) -> list[bool]:
    """Whether each marked text with a seed is that of dewmark's own loop.

    It is, except where sums in another order turn a close race. Texts with a place that the policy leaves to
    the engine's draw are left out.
    """
    policy, equal = Policy(numbers=False), []
    decoding = dewmark.Decoding(max_new_tokens=TOKENS, min_new_tokens=TOKENS)
    followed = [s for s in served if s.key is not None and s.seed is not None]
    for name, said in {str((s.key, s.said)): (s.key, s.said) for s in followed}.values():
        assert name is not None
        mine = [s for s in followed if (s.key, s.said) == (name, said)]
        bound = dewmark.load_scheme(keys[name], host=HOST, settings=SETTINGS)
        bound = for_member(bound, member=said.get("dewmark_member"), payload=said.get("dewmark_payload"))
        seeds = [s.seed for s in mine if s.seed is not None]
        own = host.generate([s.prompt for s in mine], scheme=bound, seeds=seeds, decoding=decoding)
        for one, s in zip(own, mine, strict=True):
            before = host.info.tokenizer.decode([list(one.token_ids[:i]) for i in range(TOKENS)])
            if not any(policy.reason(text.rstrip("\N{REPLACEMENT CHARACTER}"), s.prompt) for text in before):
                equal.append(one.text == s.text)
    return equal
