"""The page that marks an existing text: accepted and rejected changes move its p-value."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from playwright.sync_api import expect
from tests.desk.page.desk import serious

from dewmark_desk.routes import rewrite

pytestmark = pytest.mark.serve


@pytest.fixture
def proposing(monkeypatch, marked):
    """A marked text with ten words spoiled, after a letter of two UTF-16 units; each is put right."""
    words = marked.split()[:70]
    places = range(5, 65, 6)
    spoiled = ["🌧", *(word if i not in places else f"x{i}" for i, word in enumerate(words))]
    text = " ".join(spoiled)

    def propose(given, mark, *, budget):
        assert given == text
        steps = []
        for i in places:
            start = len(" ".join(spoiled[: i + 1])) + 1
            change = SimpleNamespace(start=start, end=start + len(f"x{i}"), old=f"x{i}", new=words[i])
            steps.append(SimpleNamespace(change=change))
        return SimpleNamespace(steps=steps[::-1])

    monkeypatch.setattr(rewrite, "rewriters", {"rewrite": propose})
    return text, [words[i] for i in places]


def test_a_person_accepts_and_rejects_changes_and_sees_the_p_value_move(desk, proposing):
    text, right = proposing
    page = desk().page
    page.get_by_role("link", name="Mark an existing text").click()
    page.fill("#text", text)
    page.get_by_role("button", name="Propose changes").click()
    strength, buttons = page.locator("#strength"), page.locator("#after button")
    expect(strength).to_contain_text("10 of 10 changes accepted")
    assert buttons.all_text_contents() == right
    assert page.locator("#before").text_content() == text
    before, after = p_values(strength)
    assert after < before
    buttons.nth(0).click()
    buttons.nth(1).click()
    expect(strength).to_contain_text("8 of 10 changes accepted")
    assert buttons.nth(0).get_attribute("aria-pressed") == "false"
    assert buttons.nth(0).text_content() == "x5"
    assert p_values(strength)[0] == before
    assert p_values(strength)[1] != after
    assert serious(page) == []
    page.select_option("#language", "fr")
    expect(strength).to_contain_text("8 changements acceptés sur 10")


def p_values(strength) -> list[float]:
    said = strength.text_content().split("p-value ")[1]
    return [float(part.split()[0].rstrip(",.")) for part in (said, said.split(", ")[1])]
