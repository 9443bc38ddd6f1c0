"""The client against a real server that is busy, broken, slow or wrong."""

from __future__ import annotations

import socket
import threading
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from tests.hosts.chat_server import KEY, Reply, echo, serving

from dewmark.errors import ConfigError, ModelError
from dewmark_lab.chat.endpoint import EndpointChat, Hold, backoff, retry_after

PATIENCE = 300.0  # seconds until a test that hangs ends
QUICK = {"first_pause": 0.005, "timeout": PATIENCE}


def said(*texts: str) -> list[list[dict[str, str]]]:
    return [[{"role": "system", "content": "Shout."}, {"role": "user", "content": text}] for text in texts]


def ask(chat: EndpointChat, *texts: str, **more: object) -> list[str]:
    return chat.complete(said(*texts), seeds=range(len(texts)), max_new_tokens=9, **more)


class TestRequests:
    def test_answers_are_in_order_although_they_arrive_out_of_order(self):
        arrived, others = [], threading.Event()

        def script(body, n):
            reply = echo(body, n)
            assert "SLOW" not in reply.content or others.wait(PATIENCE)
            return reply

        def note(i, answer):
            arrived.append((i, answer))
            if len(arrived) == 2:
                others.set()

        with serving(script) as server:
            chat = EndpointChat(server.url, "m", concurrency=3, timeout=PATIENCE)
            answers = ask(chat, "slow a", "b", "c", on_answer=note)
        assert answers == ["SLOW A", "B", "C"]
        assert arrived[-1] == (0, "SLOW A")
        assert sorted(arrived) == [(0, "SLOW A"), (1, "B"), (2, "C")]

    def test_the_request_body_and_headers(self):
        with serving() as server:
            ask(EndpointChat(server.url, "m", key=KEY, temperature=0.5, **QUICK), "x", "y")
        body = next(body for body in server.bodies if body["seed"] == 1)
        drawn = {"temperature": 0.5, "seed": 1}
        assert body == {"model": "m", "messages": said("y")[0], "max_tokens": 9, **drawn}
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"

    def test_no_key_no_header_and_other_field_names(self):
        with serving() as server:
            chat = EndpointChat(
                server.url, "m", send_seed=False, length_field="max_completion_tokens", **QUICK
            )
            ask(chat, "x")
        assert "authorization" not in server.headers[0]
        assert set(server.bodies[0]) == {"model", "messages", "max_completion_tokens"}

    def test_concurrency_is_a_limit(self):
        together = threading.Barrier(2, timeout=PATIENCE)

        def script(body, n):
            together.wait()
            return Reply()

        with serving(script) as server:
            ask(EndpointChat(server.url, "m", concurrency=2, timeout=PATIENCE), *"abcdef")
        assert server.most_at_once == 2


class TestRetries:
    @pytest.mark.parametrize(
        "bad",
        [
            Reply(status=500),
            Reply(status=503),
            Reply(status=429),
            Reply(raw=b'{"choices": [{"mess'),
            Reply(raw=b"<html>gateway</html>"),
            Reply(raw=b"[]"),
            Reply(raw=b'{"choices": []}'),
            Reply(content=None),
        ],
        ids=["500", "503", "429", "cut", "html", "list", "nothing", "null"],
    )
    def test_transient_failures_are_retried(self, bad):
        with serving(lambda body, n: bad if n < 2 else echo(body, n)) as server:
            assert ask(EndpointChat(server.url, "m", **QUICK), "x", "y") == ["X", "Y"]
        assert len(server.bodies) == 6

    def test_a_slow_answer_times_out_and_is_retried(self):
        again = threading.Event()

        def script(body, n):
            if n == 0:
                assert again.wait(PATIENCE)
                return Reply("late")
            again.set()
            return echo(body, n)

        with serving(script) as server:
            assert ask(EndpointChat(server.url, "m", timeout=0.5, first_pause=0.005), "x") == ["X"]
        assert len(server.bodies) >= 2  # a busy machine may need a third

    def test_retry_after_makes_all_requests_wait(self, monkeypatch):
        held, start = threading.Event(), Hold.start
        monkeypatch.setattr(Hold, "start", lambda hold, seconds: (start(hold, seconds), held.set()))

        def script(body, n):
            asked = body["messages"][1]["content"]
            if asked == "a" and n == 0:
                return Reply(status=429, headers={"Retry-After": "0.5"})
            assert asked != "b" or held.wait(PATIENCE)
            return Reply(asked.upper())

        with serving(script) as server:
            assert ask(EndpointChat(server.url, "m", concurrency=2, timeout=PATIENCE), *"abc") == [
                "A",
                "B",
                "C",
            ]
        asked = [body["messages"][1]["content"] for body in server.bodies]
        # c's turn comes after b, but a was told to wait 0.5 s
        assert server.times[asked.index("c")] - server.times[asked.index("a")] > 0.5

    def test_it_gives_up_eventually_and_says_why(self):
        failing = pytest.raises(ModelError, match="gave no answer in 3 tries .status 502.*are kept")
        with serving(lambda body, n: Reply(status=502)) as server, failing:
            ask(EndpointChat(server.url, "m", retries=2, **QUICK), "x")
        assert len(server.bodies) == 3

    def test_answers_that_arrived_are_delivered_before_the_error(self):
        def script(body, n):
            bad = body["messages"][1]["content"] == "bad"
            return Reply(status=400, delay=0.05) if bad else Reply("fine", delay=0.15)

        arrived = []
        with serving(script) as server, pytest.raises(ModelError, match="status 400"):
            chat = EndpointChat(server.url, "m", concurrency=2, **QUICK)
            ask(chat, "bad", "x", *"abcdefgh", on_answer=lambda i, _: arrived.append(i))
        assert 1 in arrived  # it was on its way when the other failed
        assert len(server.bodies) < 6  # the rest was never sent


class TestRejections:
    @pytest.mark.parametrize("status", [400, 422])
    def test_a_bad_request_is_not_retried(self, status):
        failing = pytest.raises(ModelError, match=f"status {status}")
        with serving(lambda body, n: Reply(status=status)) as server, failing:
            ask(EndpointChat(server.url, "m", **QUICK), "x")
        assert len(server.bodies) == 1

    def test_missing_credit_is_not_retried(self):
        empty = Reply(status=429, raw=b'{"error": {"message": "Quota", "code": "insufficient_quota"}}')
        with serving(lambda body, n: empty) as server, pytest.raises(ModelError, match="no credit"):
            ask(EndpointChat(server.url, "m", **QUICK), "x")
        assert len(server.bodies) == 1

    def test_a_pause_of_hours_ends_the_run(self):
        later = Reply(status=429, headers={"Retry-After": "7200"})
        with serving(lambda body, n: later) as server, pytest.raises(ModelError, match="wait 7200 s"):
            ask(EndpointChat(server.url, "m", **QUICK), "x")

    @pytest.mark.parametrize("status", [302, 307])
    def test_redirects_are_not_followed(self, status):
        with serving() as other:
            away = Reply(status=status, headers={"Location": f"{other.url}/chat/completions"})
            with serving(lambda body, n: away) as server, pytest.raises(ModelError, match=f"status {status}"):
                ask(EndpointChat(server.url, "m", key=KEY, **QUICK), "x")
        assert other.bodies == []

    def test_a_content_filter_gives_an_empty_answer(self):
        with serving(lambda body, n: Reply(content=None, finish_reason="content_filter")) as server:
            assert ask(EndpointChat(server.url, "m", **QUICK), "x") == [""]

    @pytest.mark.parametrize("status", [400, 401, 403, 500])
    def test_no_error_quotes_the_key(self, status):
        quoting = Reply(status=status, raw=f'{{"error": {{"message": "bad key {KEY}"}}}}'.encode())
        with serving(lambda body, n: quoting) as server:
            chat = EndpointChat(server.url, "m", key=KEY, retries=1, **QUICK)
            with pytest.raises(ModelError, match=f"status {status}") as caught:
                ask(chat, "x")
        assert KEY not in "".join(traceback.format_exception(caught.value))
        assert KEY not in repr(chat) + str(chat.identity())

    def test_no_error_quotes_a_reply_that_is_not_http(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:

            def answer() -> None:
                with listening.accept()[0] as client:
                    client.recv(65_536)
                    client.sendall(f"bad key {KEY}\r\n\r\n".encode())

            threading.Thread(target=answer).start()
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            chat = EndpointChat(url, "m", key=KEY, retries=0, **QUICK)
            with pytest.raises(ModelError, match="the connection broke") as caught:
                ask(chat, "x")
        assert KEY not in "".join(traceback.format_exception(caught.value))

    def test_a_key_with_a_line_break_is_rejected_without_quoting_it(self):
        with pytest.raises(ConfigError, match="a character that no key has") as caught:
            EndpointChat("https://api.example.org/v1", "m", key=f"{KEY}\nX-Other: 1")
        assert KEY not in str(caught.value)

    @pytest.mark.parametrize(
        ("url", "why"),
        [
            ("api.example.org/v1", "must look like"),
            ("file:///etc/passwd", "must look like"),
            ("http://host:port/v1", "must look like"),
            ("https://user:secret@example.org/v1", "no user, password"),
            ("https://example.org/v1?key=secret", "no user, password"),
            ("http://example.org/v1", "unencrypted"),
        ],
    )
    def test_addresses(self, url, why):
        with pytest.raises(ConfigError, match=why) as caught:
            EndpointChat(url, "m", key=KEY)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize(
        "url", ["http://localhost:8000/v1", "http://192.168.1.7/v1", "https://a.org/v1/"]
    )
    def test_addresses_that_may_have_a_key(self, url):
        assert not EndpointChat(url, "m", key=KEY).base_url.endswith("/")


class TestPacing:
    def test_pauses_double_within_their_jitter_up_to_a_minute(self):
        for attempt in range(12):
            middle = min(60.0, 0.5 * 2**attempt)
            pauses = [backoff(attempt, first=0.5) for _ in range(50)]
            assert 0.5 * middle <= min(pauses) < max(pauses) <= 1.5 * middle

    def test_retry_after_is_a_number_or_a_date(self):
        assert retry_after("1.5") == 1.5
        assert retry_after("-3") == 0.0
        assert retry_after(None) is None
        assert retry_after("soon") is None
        soon = (datetime.now(UTC) + timedelta(seconds=1000)).replace(microsecond=0)
        found, left = (
            retry_after(format_datetime(soon, usegmt=True)),
            (soon - datetime.now(UTC)).total_seconds(),
        )
        assert left <= found <= 1000

    def test_a_stopped_client_stops_waiting(self):
        pause, stop = Hold(), threading.Event()
        pause.start(60)
        threading.Timer(0.05, stop.set).start()
        assert not pause.wait(stop)
