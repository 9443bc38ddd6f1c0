"""Local chat models, cached answers, and chat settings."""

from __future__ import annotations

import dataclasses
import json
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.hosts.chat_server import KEY, Reply, echo, serving

from dewmark.decoding import CHAT_DECODING, Decoding
from dewmark.errors import ConfigError, InputError, ModelError
from dewmark.hosts import chat_format, load_host
from dewmark.hosts.base import check_conversation
from dewmark.hosts.transformers.description import chat_format_of
from dewmark.hosts.transformers.model import TransformersHost
from dewmark_desk.generation import transcript
from dewmark_lab.chat.settings import CachedChat, ChatSettings, LocalChat
from dewmark_lab.testing.fake_host import FakeHost

TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}the"


def said(*texts: str) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": text}] for text in texts]


class Counting:
    """Answers with the text, its seed and the length, and counts."""

    def __init__(self, *, fail_after: int | None = None, name: str = "counting"):
        self.asked: list[str] = []
        self._fail_after = fail_after
        self._name = name

    def identity(self):
        return {"model": self._name}

    def complete(self, conversations, *, seeds, max_new_tokens, on_answer=None):
        answers = []
        for index, (conversation, seed) in enumerate(zip(conversations, seeds, strict=True)):
            if len(self.asked) == self._fail_after:
                raise ModelError("killed")
            self.asked.append(conversation[-1]["content"])
            answers.append(f"{self.asked[-1]} {seed} {max_new_tokens}")
            if on_answer is not None:
                on_answer(index, answers[-1])
        return answers


class TestCachedChat:
    def test_a_killed_run_asks_only_for_missing_answers(self, tmp_path: Path):
        with pytest.raises(ModelError, match="killed"):
            CachedChat(Counting(fail_after=2), tmp_path).complete(
                said("a", "b", "c"), seeds=[1, 2, 3], max_new_tokens=5
            )
        again = Counting()
        chat = CachedChat(again, tmp_path)
        assert chat.missing(said("a", "b", "c"), seeds=[1, 2, 3], max_new_tokens=5) == [2]
        arrived: dict[int, str] = {}
        answers = chat.complete(
            said("a", "b", "c"), seeds=[1, 2, 3], max_new_tokens=5, on_answer=arrived.__setitem__
        )
        assert answers == ["a 1 5", "b 2 5", "c 3 5"] == [arrived[i] for i in range(3)]
        assert again.asked == ["c"]

    def test_an_answer_depends_on_seed_length_and_model(self, tmp_path: Path):
        model = Counting()
        chat = CachedChat(model, tmp_path)
        for seed, length in [(1, 5), (2, 5), (1, 6), (1, 5)]:
            assert chat.complete(said("a"), seeds=[seed], max_new_tokens=length) == [f"a {seed} {length}"]
        assert len(model.asked) == 3
        other = CachedChat(Counting(name="other"), tmp_path)
        assert other.missing(said("a"), seeds=[1], max_new_tokens=5) == [0]

    def test_equal_requests_are_sent_once(self, tmp_path: Path):
        model = Counting()
        answers = CachedChat(model, tmp_path).complete(said("a", "b", "a"), seeds=[1, 1, 1], max_new_tokens=5)
        assert answers == ["a 1 5", "b 1 5", "a 1 5"]
        assert model.asked == ["a", "b"]

    @pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"request": {}, "answer": "x"}'])
    def test_a_damaged_answer_counts_as_missing(self, tmp_path: Path, damage: bytes):
        CachedChat(Counting(), tmp_path).complete(said("a"), seeds=[1], max_new_tokens=5)
        (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.write_bytes(damage)
        model = Counting()
        assert CachedChat(model, tmp_path).complete(said("a"), seeds=[1], max_new_tokens=5) == ["a 1 5"]
        assert model.asked == ["a"]


class TestChatFormat:
    """Templates and generation_config, from files and from memory."""

    def test_the_host_s_own_decoding_and_the_fallback(self, tmp_path: Path):
        host = FakeHost()
        tokenizer = _tokenizer()
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(tmp_path)
        host.model.save_pretrained(tmp_path)
        assert chat_format(str(tmp_path)).decoding == CHAT_DECODING
        own = {"do_sample": True, "temperature": 0.6, "top_k": 20}
        (tmp_path / "generation_config.json").write_text(json.dumps(own))
        found = chat_format(str(tmp_path))
        assert found.decoding == Decoding(temperature=0.6, top_k=20)
        assert found.render(said("the river")[0]) == "user the river the"
        assert load_host(str(tmp_path)).chat.decoding == found.decoding
        (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": -1.0}))
        with pytest.raises(ConfigError, match="unusable generation_config"):
            chat_format(str(tmp_path))

    def test_a_model_in_memory(self):
        host = FakeHost()
        with pytest.raises(ConfigError, match="has no chat template"):
            host.chat  # noqa: B018
        tokenizer = _tokenizer()
        tokenizer.chat_template = TEMPLATE
        host.model.generation_config.update(do_sample=True, temperature=0.5)
        wrapped = TransformersHost(host.model, tokenizer)
        assert wrapped.chat.decoding.temperature == 0.5
        assert wrapped.chat.render(said("the sea")[0]) == "user the sea the"

    def test_a_template_that_rejects_a_conversation(self):
        tokenizer = _tokenizer()
        tokenizer.chat_template = "{{ raise_exception('no') }}"
        with pytest.raises(InputError, match="chat template rejects"):
            chat_format_of(tokenizer, {}, name="x").render(said("a")[0])

    @pytest.mark.parametrize(
        ("messages", "error"),
        [
            ("hello", "must be a list of messages"),
            ([], "must be a list of messages"),
            (["hello"], "message 0 needs a role and a content"),
            ([{"role": "user"}], "message 0 needs a role and a content"),
            ([{"role": "assistant", "content": "a"}], "ends with the assistant"),
        ],
    )
    def test_wrong_conversations(self, messages: object, error: str):
        with pytest.raises(InputError, match=error):
            check_conversation(messages, "conversation 0")


class TestLocalChat:
    def test_answers_depend_only_on_text_and_seed(self):
        host = FakeHost()
        chat = LocalChat(lambda: host, identity="fake", render=transcript, batch_size=2)
        arrived: dict[int, str] = {}
        answers = chat.complete(
            said("the river", "the old bridge", "the sea"),
            seeds=[5, 6, 7],
            max_new_tokens=12,
            on_answer=arrived.__setitem__,
        )
        assert answers == [arrived[i] for i in range(3)]
        assert chat.complete(said("the sea"), seeds=[7], max_new_tokens=12) == answers[2:]
        assert chat.complete(said("the sea"), seeds=[8], max_new_tokens=12) != answers[2:]
        written = host.generate(
            [transcript(said("the sea")[0])],
            scheme=None,
            seeds=[7],
            decoding=dataclasses.replace(CHAT_DECODING, max_new_tokens=12),
        )
        assert answers[2] == written[0].text.strip()

    def test_a_host_by_name_uses_its_template_and_loads_weights_on_demand(self, tmp_path, monkeypatch):
        host = FakeHost()
        host.model.save_pretrained(tmp_path / "tiny")
        tokenizer = _tokenizer()
        tokenizer.save_pretrained(tmp_path / "tiny")
        name = str(tmp_path / "tiny")
        with pytest.raises(ConfigError, match="has no chat template"):
            ChatSettings(host=name).open()

        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(tmp_path / "tiny")
        chat = ChatSettings(host=name, device="cpu", answers=str(tmp_path / "answers")).open()
        answers = chat.complete(said("the river"), seeds=[3], max_new_tokens=6)
        own = dataclasses.replace(CHAT_DECODING, max_new_tokens=6)
        expected = host.generate(["user the river the"], scheme=None, seeds=[3], decoding=own)
        assert answers == [expected[0].text.strip()]

        monkeypatch.setattr("dewmark.hosts.load_host", lambda *_, **__: pytest.fail("weights were loaded"))
        kept = ChatSettings(host=name, answers=str(tmp_path / "answers")).open()
        assert kept.complete(said("the river"), seeds=[3], max_new_tokens=6) == answers


def _tokenizer():
    from dewmark_lab.testing.fake_host import tiny_tokenizer

    return tiny_tokenizer()


class TestSettings:
    def test_an_endpoint_from_the_environment_never_writes_the_key(self, tmp_path, monkeypatch):
        with serving() as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            monkeypatch.setenv("MY_KEY", KEY)
            settings = ChatSettings(model="m", key_env="MY_KEY", answers=str(tmp_path))
            chat = settings.open()
            assert chat.complete(said("x"), seeds=[0], max_new_tokens=5) == ["X"]
            assert chat.complete(said("x"), seeds=[0], max_new_tokens=5) == ["X"]
        assert len(server.bodies) == 1
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
        (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
        kept = json.loads(file.read_text())
        assert kept["answer"] == "X"
        assert kept["request"]["model"] == {
            "base_url": server.url,
            "model": "m",
            "temperature": None,
            "top_p": None,
        }
        assert KEY not in file.read_text() + repr(settings) + str(chat.identity())

    def test_sigkill_loses_at_most_the_running_request(self, tmp_path: Path):
        with serving(lambda body, n: Reply(echo(body, n).content, delay=0.1)) as server:
            texts = [f"text {i}" for i in range(6)]
            code = (
                "from dewmark_lab.chat.settings import ChatSettings\n"
                f"chat = ChatSettings(base_url={server.url!r}, model='m', concurrency=1, "
                f"answers={str(tmp_path)!r}).open()\n"
                f"chat.complete({said(*texts)!r}, seeds=range(6), max_new_tokens=5)"
            )
            process = subprocess.Popen([sys.executable, "-c", code])
            deadline = time.monotonic() + 60
            while len(server.bodies) < 4 and time.monotonic() < deadline:
                time.sleep(0.01)
            process.kill()
            assert process.wait() == -signal.SIGKILL
            before = len(server.bodies)
            settings = ChatSettings(base_url=server.url, model="m", answers=str(tmp_path))
            answers = settings.open().complete(said(*texts), seeds=range(6), max_new_tokens=5)
        assert answers == [text.upper() for text in texts]
        assert before >= 4
        assert len(server.bodies) <= 6 + 1  # the one that was on its way

    def test_a_model_must_be_given(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
        for settings in (ChatSettings(), ChatSettings(model="gpt-4o-mini-2024-07-18")):
            with pytest.raises(ConfigError, match="no chat model given"):
                settings.open()

    @pytest.mark.parametrize(
        ("wrong", "why"),
        [
            ({"host": "smollm2-135m", "model": "m"}, "give only one"),
            ({"base_url": "ftp://example.org"}, "must look like"),
            ({"length_field": "tokens"}, "length_field must be one of"),
        ],
    )
    def test_wrong_settings_are_rejected(self, wrong: dict[str, object], why: str):
        with pytest.raises(ConfigError, match=why):
            ChatSettings(**wrong)

    def test_the_estimate_counts_tokens_up_to_the_limit(self):
        # 400 bytes are 100 tokens, and 4 more for the message; answers of 40 bytes are 10 tokens
        estimate = ChatSettings(model="m").estimate(said("x" * 400) * 1000, answers=["y" * 40] * 1000)
        assert (estimate.requests, estimate.tokens_in, estimate.tokens_out) == (1000, 104_000, 10_000)
        assert str(estimate) == "1000 requests to m, about 104000 tokens in and 10000 out"
        assert ChatSettings(max_new_tokens=7).estimate(said("x"), answers=["y" * 4000]).tokens_out == 7
