"""Schemes and attacks in files of a user's own, in experiments."""

from __future__ import annotations

from pathlib import Path

from dewmark.core.keys import Key


def test_the_examples_are_schemes_and_attacks_from_files() -> None:
    from dewmark.hosts.fake import FakeHost
    from dewmark.opening import load_scheme
    from dewmark_lab.experiments.recipe import load_recipe

    folder = Path(__file__).parents[4] / "examples"
    own = f"{folder}/own_scheme.py:Halves"
    assert load_scheme(Key.generate(), host=FakeHost().info, scheme=own).scheme.name == "halves"
    recipe = load_recipe("main", profile="local").narrowed(
        schemes=["kgw", own], attacks=["delete-0.3", f"{folder}/own_attack.py:Swap"]
    )
    assert [entry.label for entry in recipe.schemes] == ["kgw", "halves"]
    assert [(entry.label, entry.attack) for entry in recipe.attacks][1] == (
        "swap",
        f"{folder}/own_attack.py:Swap",
    )
