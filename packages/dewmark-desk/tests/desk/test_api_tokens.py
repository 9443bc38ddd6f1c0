from __future__ import annotations

import hmac
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from tests.desk.conftest import Clock

from dewmark.errors import ConfigError, UnknownNameError
from dewmark_desk.api_tokens import BURST, PUBLIC_BYTES, PUBLIC_TEXTS, Caller, Rejected, Scope, Tokens
from dewmark_desk.store import Store


@pytest.fixture
def tokens(store_url, clock) -> Iterator[Tokens]:
    store = Store(store_url)
    yield Tokens(store, clock=clock, ticks=clock)
    store.close()


def spends(tokens: Tokens, caller: Caller, texts: int, **options: int) -> bool:
    """Whether the token may spend so much."""
    try:
        tokens.spend(caller, texts, **options)
    except Rejected:
        return False
    return True


class TestLifetime:
    def test_token_is_recognized_by_its_secret(self, tokens):
        made, text = tokens.new("desk", ["detect"], tenants=["acme"])
        found = tokens.caller(text)
        assert found == made
        assert found.may(Scope.DETECT)
        assert not found.may(Scope.GENERATE)
        assert (found.may_use("acme"), found.may_use("beta")) == (True, False)
        for wrong in (text[:-1], text + "x", text.replace(made.id, "0" * 12), "dwm__", "", "dwm_" + "é" * 9):
            assert tokens.caller(wrong) is None

    def test_store_contains_no_secret(self, tokens, tmp_path, store_url):
        if not store_url.startswith("sqlite"):
            pytest.skip("SQLite only")
        _, text = tokens.new("desk", ["detect"])
        secret = text.split("_", 2)[2].encode()
        files = list((tmp_path / "a").iterdir())
        assert files
        for file in files:
            assert secret not in file.read_bytes()
            assert file.stat().st_mode & 0o077 == 0

    def test_digests_are_compared_in_constant_time(self, tokens, monkeypatch):
        _, text = tokens.new("desk", ["detect"])
        compared = []
        monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
        assert tokens.caller(text)
        assert tokens.caller("dwm_0123456789ab_unknown") is None
        assert len(compared) == 2

    def test_what_cannot_be_a_token_costs_no_look_at_the_store(self):
        unread = Tokens(SimpleNamespace(read=lambda: pytest.fail("the store was read")))
        for wrong in ("dwm_0123456789abcdef0_x", "dwm_0-1_x", "dwm_01_", f"dwm_01_{'x' * 200}", "abc_01_x"):
            assert unread.caller(wrong) is None

    def test_revoked_and_expired_tokens_are_invalid(self, tokens, clock):
        made, text = tokens.new("desk", ["detect"])
        _, short = tokens.new("guest", ["detect"], days=1)
        tokens.revoke(made.id)
        assert tokens.caller(text) is None
        assert tokens.caller(short)
        clock.now += 86_401
        assert tokens.caller(short) is None
        assert all(token.revoked is not None for token in tokens.all())  # seen after its end: revoked

    def test_other_processes_notice_a_revocation_within_a_second(self, tokens, store_url, clock):
        made, text = tokens.new("desk", ["detect"])
        other = Tokens(Store(store_url), clock=clock, ticks=clock)
        assert other.caller(text)
        tokens.revoke(made.id)
        clock.now += 1.1
        assert other.caller(text) is None

    def test_a_token_has_ended_at_the_moment_it_expires(self, tokens, clock):
        caller, text = tokens.new("desk", ["detect"], days=1.0)
        clock.now = caller.expires - 1e-3
        assert tokens.caller(text)
        clock.now = caller.expires
        assert tokens.caller(text) is None

    def test_setting_the_clock_back_revives_no_token(self, store_url):
        day, ticks = Clock(), Clock()
        tokens, other = (Tokens(Store(store_url), clock=day, ticks=ticks) for _ in range(2))
        made, text = tokens.new("desk", ["detect"])
        _, short = tokens.new("guest", ["detect"], days=1)
        assert other.caller(text)
        tokens.revoke(made.id)
        day.now += 86_401
        assert other.caller(short) is None
        day.now -= 2 * 86_400
        ticks.now += 1.1
        assert other.caller(text) is None
        assert other.caller(short) is None

    def test_setting_the_clock_back_locks_nobody_out(self, tokens, clock):
        caller, _ = tokens.new("desk", ["detect"], per_minute=60)
        tokens.spend(caller, 60)
        clock.now -= 86_400
        tokens.check(caller)
        tokens.spend(caller, 60)
        assert not spends(tokens, caller, 60)

    @pytest.mark.parametrize("wrong", [[""], [], ["acme", ""], ["a b"], ["acme@2025"]])
    def test_token_without_a_tenant_is_not_made(self, tokens, wrong):
        with pytest.raises(ConfigError, match="tenant"):
            tokens.new("x", ["detect"], tenants=wrong)

    def test_all_tenants_must_be_asked_for(self):
        assert not Caller("x", "", frozenset(Scope)).may_use("acme")
        assert Caller("x", "", frozenset(Scope), frozenset("*")).may_use("acme")

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"scopes": []}, "at least one scope"),
            ({"scopes": ["everything"]}, "unknown scope 'everything'"),
            ({"per_minute": 0}, "per-minute must be positive, got 0"),
            ({"per_minute": math.inf}, "per-minute must be positive, got inf"),
            ({"budget": 0}, "budget must be at least 1, got 0"),
            ({"budget_bytes": 0}, "budget-bytes must be at least 1, got 0"),
            ({"budget": 5, "unlimited": True}, "not both"),
            ({"days": -1}, "days must lie between 0 and .*, got -1"),
        ],
    )
    def test_invalid_options_are_rejected(self, tokens, wrong, message):
        with pytest.raises(ConfigError, match=message):
            tokens.new("x", **{"scopes": ["detect"], **wrong})

    def test_unknown_tokens_cannot_be_revoked(self, tokens):
        with pytest.raises(UnknownNameError, match="dewmark token list"):
            tokens.revoke("nobody")


class TestSpending:
    def test_rate_limit_holds_over_time(self, tokens, clock):
        caller, _ = tokens.new("desk", ["detect"], per_minute=60)
        allowed = 0
        for _ in range(240):  # two requests per second, twice the rate
            allowed += spends(tokens, caller, 1)
            clock.now += 0.5
        # one per second for 120 s, plus one burst
        assert 120 <= allowed <= 120 + BURST + 1

    def test_rejection_says_when_to_retry(self, tokens, clock):
        caller, _ = tokens.new("desk", ["detect"], per_minute=60)
        tokens.spend(caller, 60)
        with pytest.raises(Rejected) as rejected:
            tokens.spend(caller, 5)
        assert (rejected.value.texts, rejected.value.wait) == (0, pytest.approx(5.0))
        clock.now += 4.9
        assert not spends(tokens, caller, 5)
        clock.now += 0.2
        assert spends(tokens, caller, 5)

    def test_request_larger_than_the_burst_is_served_and_paid_off(self, tokens, clock):
        caller, _ = tokens.new("desk", ["detect"], per_minute=6)
        tokens.spend(caller, 64)
        with pytest.raises(Rejected) as rejected:
            tokens.spend(caller, 1)
        assert rejected.value.wait == pytest.approx(640.0 + 10.0 - BURST)

    def test_budget_holds_under_concurrency(self, tokens):
        caller, _ = tokens.new("desk", ["detect"], per_minute=1e6, budget=50)
        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(lambda _: spends(tokens, caller, 1), range(80))) == 50
        assert tokens.left(caller) == 0

    def test_rejection_costs_nothing(self, tokens):
        caller, _ = tokens.new("desk", ["detect"], budget=5)
        with pytest.raises(Rejected) as rejected:
            tokens.spend(caller, 6)
        assert rejected.value.texts == 6
        assert tokens.left(caller) == 5

    def test_what_has_no_rate_is_paid_whatever_is_owed(self, tokens):
        caller, _ = tokens.new("desk", ["detect"], per_minute=1, budget=5)
        assert spends(tokens, caller, 1, requests=3)
        assert not spends(tokens, caller, 1)
        assert spends(tokens, caller, 4, requests=0)
        assert not spends(tokens, caller, 1, requests=0)

    def test_refund_returns_the_budget(self, tokens):
        caller, _ = tokens.new("desk", ["detect"], budget=5, budget_bytes=100)
        tokens.spend(caller, 5, size=100)
        with pytest.raises(Rejected) as rejected:
            tokens.check(caller)
        assert rejected.value.texts == 1
        tokens.refund(caller, 5, size=100)
        tokens.check(caller)
        assert not spends(tokens, caller, 1, size=101)

    def test_public_tokens_have_budgets(self, tokens):
        public, _ = tokens.new("page", ["detect-public"])
        assert (public.budget, public.budget_bytes) == (PUBLIC_TEXTS, PUBLIC_BYTES)
        assert tokens.new("page", ["detect-public"], budget=5)[0].budget == 5
        assert not spends(tokens, public, 1, size=PUBLIC_BYTES + 1)
        assert tokens.new("page", ["detect-public"], unlimited=True)[0].budget_bytes is None
        assert tokens.new("page", ["detect-public"], unlimited=True)[0].budget is None
        assert tokens.new("desk", ["detect", "detect-public"])[0].budget_bytes is None
