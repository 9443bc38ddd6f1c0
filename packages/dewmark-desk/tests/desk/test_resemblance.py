"""The next answer about a text costs more, whatever a caller does that leaves the detector's words alone."""

from __future__ import annotations

import random
import threading
from importlib.resources import files

import pytest
from tests.desk.conftest import bearer
from tests.desk.live import make_service

from dewmark.config import cache_dir
from dewmark.encoders.lexicon import load_lexicon
from dewmark.text.words import Places
from dewmark.workspace import Workspace
from dewmark_desk.resemblance import FREE
from dewmark_desk.verdicts import Query

LINES = (files("dewmark") / "data" / "ordinary" / "en.txt").read_text(encoding="utf-8").splitlines()


def text(seed: int, lines: int = 14) -> str:
    """Ordinary sentences, all different for different seeds below ten."""
    return " ".join(LINES[seed * lines : (seed + 1) * lines])


@pytest.fixture
def ask(tmp_path):
    """The price of an answer to a new public token, or to a named one."""
    service = make_service(tmp_path)
    service.start()
    callers = {}

    def price(*texts: str, token: str = "one", prompt: str | None = None) -> int:
        if token not in callers:
            callers[token] = service.tokens.new(token, ["detect-public"])[0]
        return service.resemblance.ask(callers[token], [Query(each, prompt) for each in texts]).price

    price.service = service
    yield price
    service.close()


def mixed(one: str, share: float, seed: int) -> str:
    """A text of which a share of the words is replaced by other ordinary words."""
    draw = random.Random(seed)
    others = load_lexicon(workspace=Workspace(cache_dir())).forms
    return " ".join(draw.choice(others) if draw.random() < share else word for word in one.split())


def test_texts_are_compared_without_placing_their_words(ask, monkeypatch):
    """Four fifths of the time of a long text, and who cannot pay for an answer has it compared, too."""
    monkeypatch.setattr(Places, "_all", None)
    digest, hashes = ask.service.resemblance.sketch(Query(text(0), "the old bridge"))
    assert len(digest) == 32
    assert len(hashes) > 48


INVISIBLE = {  # to the detector
    "superscript digits": lambda one, i: " ".join(f"{word}{'¹²³⁴⁵⁶⁷⁸⁹'[i % 9]}" for word in one.split()),
    "zero-width characters": lambda one, i: ("\u200b" * (i + 1)).join(one),
    "markup": lambda one, i: " ".join(
        f"<b>{word}</b>" if (j + i) % 3 else word for j, word in enumerate(one.split())
    ),
    "blanks": lambda one, i: one.replace(" ", " " * (i + 2)),
}


def padded(one: str, seed: int, *, fillers: int = 5) -> str:
    """A text with rare words between its own, each behind three numbers, where no word carries a mark."""
    draw = random.Random(seed)
    rare = [
        form for form in load_lexicon(workspace=Workspace(cache_dir())).forms[20_000:60_000] if form.isascii()
    ]
    words, pieces = one.split(), []
    for start in range(0, len(words), 12):
        pieces += words[start : start + 12]
        pieces += [f"{draw.randrange(10)} 2 3 {draw.choice(rare)}" for _ in range(12 * fillers)] + ["1 2 3"]
    return " ".join(pieces)


VISIBLE = {
    "rare words without a mark": lambda one, i: padded(mixed(one, 0.1, i), i),
    "nonsense between the words": lambda one, i: " ".join(
        f"{w} zq{i}{j}x" for j, w in enumerate(one.split())
    ),
    "another order": lambda one, i: " ".join(random.Random(i).sample(one.split(), len(one.split()))),
    "other inflections": lambda one, i: " ".join(
        w + random.Random(f"{i} {w}").choice(("", "s")) for w in one.split()
    ),
    "a third of the words": lambda one, i: mixed(one, 0.33, i),
    "half of the words": lambda one, i: mixed(one, 0.5, i),
    "a long text around it": lambda one, i: f"{mixed(text(3), 1.0, i)} {one} {mixed(text(4), 1.0, i + 50)}",
    "two thirds of it": lambda one, i: " ".join(one.split()[3 * i :][: 2 * len(one.split()) // 3]),
}


@pytest.mark.parametrize("name", INVISIBLE)
def test_what_the_detector_does_not_see_is_the_same_text(ask, name):
    sketch = ask.service.resemblance.sketch
    assert (
        len({sketch(Query(INVISIBLE[name](text(0), i)))[0] for i in range(5)} | {sketch(Query(text(0)))[0]})
        == 1
    )


@pytest.mark.parametrize("name", VISIBLE)
def test_variants_of_a_text_become_dear(ask, name):
    assert sum(ask(VISIBLE[name](text(0), i)) for i in range(20)) > 1000  # the budget of a public token


def test_unrelated_texts_cost_one_each(ask):
    assert [ask(text(seed)) for seed in range(10)] == [1] * 10


def test_price_doubles_after_the_free_answers(ask):
    prices = [ask(mixed(text(0), 0.1, i)) for i in range(9)]
    assert prices == [1] * FREE + [2, 4, 8, 16, 32]


def test_same_words_cost_one(ask):
    one = text(0)
    assert [ask(one + " " * i) for i in range(20)] == [1] * 20
    assert ask(one, prompt="Tell me of the sea.") == 1
    assert sum(ask(one, prompt=f"{LINES[i]} the number {i}") for i in range(12)) > 100


def test_texts_of_one_request_count_too(ask):
    assert ask(*(mixed(text(0), 0.2, i) for i in range(8))) == 4 + 2 + 4 + 8 + 16


def test_tokens_are_apart_and_workers_are_not(ask, tmp_path):
    for i in range(6):
        ask(mixed(text(0), 0.2, i))
    assert ask(mixed(text(0), 0.2, 9), token="another") == 1
    other = make_service(tmp_path)  # another process with the same store
    other.start()
    caller = next(each for each in other.tokens.all() if each.name == "one")
    assert other.resemblance.ask(caller, [Query(mixed(text(0), 0.2, 10))]).price == 8
    other.close()


def test_sketches_are_keyed_by_the_store(tmp_path):
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        service = make_service(tmp_path / name)
        service.start()
        found.append(set(service.resemblance.sketch(Query(text(0)))[1]))
        service.close()
    assert len(found[0] & found[1]) <= 1


def test_words_without_a_mark_are_compared_by_themselves(ask):
    """Or scored words would be diluted by them; varying them costs as much."""
    unscored = padded("", 0) + " ".join(f"1 2 3 {word}" for word in text(0).split())
    prices = [ask(f"{mixed(text(4), 1.0, i)} {unscored}") for i in range(8)]
    assert prices == [1] * FREE + [2, 4, 8, 16]


def test_words_without_a_mark_cost_bytes(client):
    head = bearer(client, "detect-public")
    for one in (text(1), padded(text(2), 1)):
        before = client.service.tokens.all()[-1].used_bytes
        assert client.post("/v1/detect", json={"text": one}, headers=head).status_code == 200
        assert client.service.tokens.all()[-1].used_bytes - before == len(one.encode())


def test_what_cannot_be_paid_for_is_not_compared(client, monkeypatch):
    monkeypatch.setattr(client.service.resemblance, "sketch", None)  # it is never called
    head = bearer(client, "detect-public", budget_bytes=100)
    refused = client.post("/v1/detect", json={"text": text(0)}, headers=head)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "budget_spent")


def test_what_cannot_be_paid_for_is_not_even_measured(client, monkeypatch):
    monkeypatch.setattr("dewmark_desk.examining.admitted", None)  # it is never called
    head = bearer(client, "detect-public", budget=2)
    refused = client.post("/v1/detect", json={"texts": [text(0), text(1), text(2)]}, headers=head)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "budget_spent")


def test_comparing_has_its_turn_in_a_pool(client, monkeypatch):
    where, ask = [], client.service.resemblance.ask

    def noted(*arguments):
        where.append(threading.current_thread().name)
        return ask(*arguments)

    monkeypatch.setattr(client.service.resemblance, "ask", noted)
    head = bearer(client, "detect-public")
    assert client.post("/v1/detect", json={"text": text(0)}, headers=head).status_code == 200
    assert where == ["pool-0"]


def test_refused_answers_count_against_the_rate(client, monkeypatch):
    monkeypatch.setattr("dewmark_desk.examining.RATE_SECONDS", 1e6)  # by their number, not by their work
    head = bearer(client, "detect-public", budget=8, per_minute=10)
    statuses = [
        client.post("/v1/detect", json={"text": mixed(text(0), 0.2, i)}, headers=head).status_code
        for i in range(12)
    ]
    assert statuses == [200] * 5 + [403] * 5 + [429] * 2  # 1 + 1 + 1 + 1 + 2 of 8, and the next costs 4


def test_workers_that_note_at_the_same_moment_agree(ask, tmp_path, monkeypatch):
    other = make_service(tmp_path)  # another process with the same store
    other.start()
    ask(mixed(text(0), 0.2, 0))
    (caller,) = other.tokens.all()
    insert = ask.service.resemblance._insert

    def late(rows):
        monkeypatch.undo()
        assert other.resemblance.ask(caller, [Query(mixed(text(0), 0.2, i)) for i in (1, 2, 3)]).price == 3
        insert(rows)

    monkeypatch.setattr(ask.service.resemblance, "_insert", late)
    assert ask(mixed(text(0), 0.2, 4)) == 2  # the fifth, not the second
    other.close()


def test_answers_are_those_of_the_text_and_the_budget_is_final(client):
    head = bearer(client, "detect-public", budget=20)
    statuses, verdicts = [], set()
    for i in range(10):
        answer = client.post("/v1/detect", json={"text": mixed(text(0), 0.2, i)}, headers=head)
        statuses.append(answer.status_code)
        if answer.status_code == 200:
            verdicts.add(answer.json()["results"][0]["verdict"])
    assert statuses == [200] * 7 + [403] * 3  # 1 + 1 + 1 + 1 + 2 + 4 + 8 of 20
    assert client.get("/v1/whoami", headers=head).json()["budget_left"] == 2
    # a refused text is forgotten, so it does not make the next one dearer; other texts are still answered
    assert client.post("/v1/detect", json={"text": text(5)}, headers=head).status_code == 200
    assert verdicts <= {"not_marked", "too_short"}
