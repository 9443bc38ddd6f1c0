"""A stub host and a stub scheme, so that commands are tested without torch."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.fakes import BagEncoder

from dewmark.cli.app import main
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import InputError, ModelError
from dewmark.hosts.base import ChatFormat, Host
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme, Scheme, State
from dewmark.types import Detection, TokenScore
from dewmark.verdict import verdict_of
from dewmark.workspace import HostInfo, Tokenized

SECRET = bytes(range(100, 132))
MARK = "✓"  # the stub's mark: every marked token carries one

JSON_PAGE = (Path(__file__).parents[3] / "docs" / "json.md").read_text(encoding="utf-8")


def said(name: str) -> set[str]:
    """The fields that the page lists for a command."""
    (row,) = (line for line in JSON_PAGE.splitlines() if line.startswith(f"| {name} |"))
    cell = row.split("|")[2]
    fields = set(re.findall(r"`([a-z_]+)`", cell))
    return (said("`detect`") | fields) - {"detect"} if "those of `detect`" in cell else fields


class CharTokenizer:
    """One id per character."""

    identity, size, special_ids, pad_id = "chars", 0x110000, frozenset({0}), 0

    def encode(self, texts: Sequence[str]) -> list[Tokenized]:
        return [Tokenized(t, tuple(map(ord, t)), tuple((i, i + 1) for i in range(len(t)))) for t in texts]

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        return ["".join(map(chr, ids)) for ids in batch]

    def save(self, folder: Path) -> None:
        raise NotImplementedError


INFO = HostInfo("stub", "stub@1", 0x110000, CharTokenizer(), lambda: np.zeros((1, 1), dtype=np.float32))


@dataclass(frozen=True)
class StubScheme(Scheme):
    """A scheme with two parameters."""

    name: ClassVar[str] = "dew"
    summary: ClassVar[str] = "stub"
    strength: float = 0.0
    k: int = 3

    def validate(self) -> None:
        """All values are valid."""

    def bind(self, key, host, workspace):
        return StubBound(self, host, key.fingerprint)

    def restore(self, state, host, fingerprint, workspace):
        return StubBound(self, host, fingerprint)


class StubBound(BoundScheme):
    """Calls a text marked if it carries the mark of its key's fingerprint."""

    tests = ("key", "gaussian")

    def session(self, prompt_ids, attention_mask=None, *, seeds=None):
        raise NotImplementedError

    def state(self) -> State:
        return State(meta={}, arrays={})

    def whole(self, readings, *, test, fpr):
        return [self._one(each.text.text, fpr, test) for each in readings]

    def _one(self, text: str, fpr: float, test: str) -> Detection:
        marked = f"{MARK}{self.fingerprint[:4]}" in text
        tokens = tuple(
            TokenScore(c, i, i + 1, (1.5 if marked else -0.3) if i >= 3 else 0.0, i >= 3)
            for i, c in enumerate(text)
        )
        p, length = (1e-6 if marked else 0.4), float(max(len(text) - 3, 0))
        return Detection(
            verdict_of(p, length, fpr), p, 4.75, 1.0, length, int(length), test, fpr, "dew",
            self.fingerprint, tokens,
        )  # fmt: skip


class StubHost(Host):
    """Writes a text that depends on prompt, seed and scheme only; can stop after some batches."""

    def __init__(self, batches: int | None = None) -> None:
        self._alive = itertools.repeat(None) if batches is None else iter([None] * batches)
        self.calls: list[list[int]] = []

    @property
    def info(self) -> HostInfo:
        return INFO

    @property
    def chat(self):
        return ChatFormat(
            lambda messages: "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>",
            Decoding(temperature=0.6, top_k=20),
        )

    def check_prompts(self, prompts, max_new_tokens):
        for i, prompt in enumerate(prompts):
            if len(prompt) > 1000:
                raise InputError(f"prompt {i} is too long: shorten it")

    def complete(self, prompts, *, scheme, seeds, decoding):
        self.calls.append(list(seeds))
        if next(self._alive, self) is self:
            raise KeyboardInterrupt
        mark = "" if scheme is None else f" {MARK}{scheme.fingerprint[:4]}"
        texts = (
            f" {hashlib.sha256(f'{prompt}|{seed}|{decoding}'.encode()).hexdigest()[:40]}{mark} –\n\u2028é"
            for prompt, seed in zip(prompts, seeds, strict=True)
        )
        return [list(map(ord, text))[: decoding.max_new_tokens] for text in texts]

    def log_likelihood(self, prompts, texts):
        return [(-1.5 * len(text), len(text)) for text in texts]


@dataclass
class Result:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of an error."""
        lines = self.err.splitlines()
        assert self.code == 2, (self.code, self.err)
        assert len(lines) == 1, lines
        assert lines[0].startswith("dewmark: error: ")
        return lines[0].removeprefix("dewmark: error: ")


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; its output must not contain the key."""

    def invoke(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert_no_secret(captured.out + captured.err)
        return Result(code, captured.out, captured.err)

    return invoke


def assert_no_secret(text: str) -> None:
    """Neither the key's hex nor its base64, in any case."""
    import base64

    assert SECRET.hex() not in text.lower()
    assert base64.b64encode(SECRET).decode().rstrip("=") not in text
    assert base64.urlsafe_b64encode(SECRET).decode().rstrip("=") not in text


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """The file of a key with a known secret."""
    path = tmp_path / "the.key"
    Key(SECRET).save(path)
    return path


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StubHost:
    """Replace every host, whatever its name, by this one; only "nowhere" does not exist."""
    import dewmark.hosts
    import dewmark.watermark

    stub = StubHost()

    def info(name: str, **_: object) -> HostInfo:
        if name == "nowhere":
            raise ModelError("no model 'nowhere': give a packaged name, a folder or a hub id")
        return INFO

    def opened(name: str, **_: object) -> StubHost:
        info(name)
        return stub

    for module in (dewmark.hosts, dewmark.watermark):
        monkeypatch.setattr(module, "host_info", info, raising=False)
        monkeypatch.setattr(module, "load_host", opened, raising=False)
        monkeypatch.setattr(module, "chat_format", lambda name, **_: stub.chat)
    monkeypatch.setattr(type(SCHEMES), "__getitem__", _stub_scheme(type(SCHEMES).__getitem__))
    monkeypatch.setenv("DEWMARK_CACHE", str(tmp_path / "cache"))
    return stub


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stub reads a text's z from the text itself, "… z=1.5 …"; the word "brief" makes it too short."""
    from dewmark.stats.key_test import one_sided_p

    def one(self: StubBound, text: str, fpr: float, test: str) -> Detection:
        z, length = float(text.partition("z=")[2].split()[0]), 5.0 if "brief" in text else 100.0
        p = one_sided_p(z)
        verdict = verdict_of(p, length, fpr)
        return Detection(verdict, p, z, 0.0, length, 100, test, fpr, "dew", self.fingerprint)

    monkeypatch.setattr(StubBound, "_one", one)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, bag_encoder: BagEncoder) -> None:
    """Replace every host by one tiny model."""
    import dewmark.hosts
    import dewmark.watermark

    host = pytest.importorskip("dewmark_lab.testing.fake_host", exc_type=ImportError).FakeHost()
    host.chat = ChatFormat(lambda messages: f"the old {messages[-1]['content']}", Decoding(temperature=0.9))
    for module in (dewmark.hosts, dewmark.watermark):
        monkeypatch.setattr(module, "chat_format", lambda name, **_: host.chat, raising=False)
        monkeypatch.setattr(module, "host_info", lambda name, **_: host.info, raising=False)
        monkeypatch.setattr(module, "load_host", lambda name, **_: host)


def _stub_scheme(original):
    return lambda registry, name: StubScheme if name == "dew" else original(registry, name)


@pytest.fixture
def detect(run, host, key_file):
    def invoke(*arguments: object) -> Result:
        return run("detect", "--key", key_file, *arguments)

    return invoke


def json_lines(result: Result) -> list[dict[str, Any]]:
    """The rows that a command printed."""
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.split("\n")[:-1]]


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """A JSONL file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
