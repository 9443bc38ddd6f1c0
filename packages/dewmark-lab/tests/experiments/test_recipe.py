"""Recipes: the packaged ones, selections of rows and stages, and files and classes of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from dewmark.core.keys import Key
from dewmark.errors import ConfigError, UnknownNameError
from dewmark_lab.attacks.base import ATTACKS, load_attack
from dewmark_lab.experiments.recipe import LOCAL_MODEL, STAGES, SchemeEntry, load_recipe, tables

PAPER = ["kgw", "synthid", "dipmark", "unbiased", "morphmark", "ksemstamp", "sir", "xsir", "atw", "ts"]


def every_recipe():
    return [
        (table, profile)
        for table in tables()
        for profile in ("local", "real", "paper")
        if table != "dipper" or profile == "paper"
    ]


@pytest.mark.parametrize(("table", "profile"), every_recipe())
def test_packaged_recipes_are_complete(table, profile):
    recipe = load_recipe(table, profile=profile)
    assert recipe.seeds == (1 if table in ("lexical", "dipper", "stealing") else 3)
    assert recipe.decoding.max_new_tokens == 200
    assert recipe.decoding.no_repeat_ngram == (0 if recipe.chat else 4)
    assert recipe.prompt_tokens == 30
    assert set(recipe.stages) <= set(STAGES)
    assert list(recipe.stages) == [stage for stage in STAGES if stage in recipe.stages]
    assert len({entry.label for entry in recipe.schemes}) == len(recipe.schemes)
    for attack in recipe.attacks:
        assert attack.attack in ATTACKS


def test_readers_are_rows_of_schemes_that_use_one():
    rows = {entry.label: entry for entry in load_recipe("chat", profile="local").schemes}
    assert rows["dew-default-reader"].reader_model == rows["dew-default"].host == "smollm2-135m"
    assert rows["dew-default-gemma"].reader_model == "gemma3-270m"
    assert rows["dew-default"].reader_model is None
    with pytest.raises(ConfigError, match="kgw makes no use of a reader"):
        SchemeEntry("read", "kgw", "smollm2-135m", reader="host").build()


def test_the_main_table_has_the_rows_of_the_paper():
    labels = {entry.label for entry in load_recipe("main", profile="paper").schemes}
    assert labels == {"dew-paper-2.0", "dew-paper-2.5", *PAPER}


def test_groups_and_labels_select_rows_in_order():
    recipe = load_recipe("main", profile="local")
    chosen = [entry.label for entry in recipe.narrowed(schemes=["synthid", "dew", "kgw"]).schemes]
    assert (chosen[0], chosen[-1]) == ("synthid", "kgw")
    assert {"dew-paper-2.0", "dew-paper-2.5", "dew-white-2.0", "dew-white-2.5", "dew-default"} <= set(chosen)
    everything = recipe.narrowed(schemes=["all"]).schemes
    assert everything == recipe.schemes


def test_added_rows_get_the_profile_s_settings():
    paper = load_recipe("main", profile="paper").narrowed(schemes=["dew-white-2.0", "dew-paper-2.0"])
    assert all("mpnet" in str(entry.settings["encoder"]) for entry in paper.schemes)
    assert paper.schemes[0].settings["whiten_contexts"] is True


def test_unknown_names_are_rejected():
    recipe = load_recipe("main", profile="local")
    for wrong in ({"schemes": ["kgv"]}, {"attacks": ["delete"]}, {"stages": ["scores"]}):
        with pytest.raises(UnknownNameError, match="did you mean"):
            recipe.narrowed(**wrong)
    with pytest.raises(UnknownNameError, match="main"):
        load_recipe("mian", profile="local")
    with pytest.raises(UnknownNameError, match="local"):
        load_recipe("main", profile="lokal")


def test_the_real_profile_has_a_deployed_host_and_a_language_model_everywhere():
    for table, profile in every_recipe():
        if profile == "real":
            recipe = load_recipe(table, profile=profile)
            assert {entry.host for entry in recipe.schemes} == {LOCAL_MODEL}
            named = recipe.with_language_model({"base_url": "http://127.0.0.1:1/v1", "model": "m"})
            for entry in named.attacks:
                attack = load_attack(entry.attack, **entry.settings)
                assert not attack.can_fail or (attack.model, attack.host) == ("m", None)
    main = load_recipe("main", profile="real")
    assert {"paraphrase", "translate-fr", "translate-fr-llm", "translate-de"} <= {
        a.label for a in main.attacks
    }
    assert main.llm == "local"
    assert main.uses_language_model
    assert not load_recipe("main", profile="local").uses_language_model


@pytest.mark.parametrize("table", [table for table, profile in every_recipe() if profile == "real"])
def test_the_real_profile_trains_what_the_package_has_for_another_vocabulary(table):
    recipe = load_recipe(table, profile="real")
    bound = {"xsir", "atw", "ts"} & {entry.scheme for entry in recipe.schemes}
    assert bound <= recipe.training.keys()
    assert not bound or recipe.stages[0] == "train"


def test_a_profile_without_the_model_says_so():
    with pytest.raises(ConfigError, match="DIPPER is an 11B model"):
        load_recipe("dipper", profile="local")


def test_a_recipe_file_of_the_user(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "base: main\n"
        "profiles:\n"
        "  local:\n"
        "    texts: 7\n"
        "    schemes: {strong: {scheme: kgw, settings: {delta: 4.0}}}\n"
        "    attacks: {half: {attack: delete, r: 0.5}}\n",
        encoding="utf-8",
    )
    recipe = load_recipe(str(file), profile="local")
    assert (recipe.name, recipe.texts, recipe.schemes[0].host) == ("mine", 7, "smollm2-135m")
    assert [(entry.label, entry.settings) for entry in recipe.schemes] == [("strong", {"delta": 4.0})]
    file.write_text("base: main\nprofiles: {local: {schemes: {a: {scheme: kgw, settings: {delt: 1}}}}}\n")
    with pytest.raises(UnknownNameError, match="delta"):
        load_recipe(str(file), profile="local")
    file.write_text("base: main\nprofiles: {local: {text: 5}}\n")
    with pytest.raises(ConfigError, match="is invalid"):
        load_recipe(str(file), profile="local")
    file.write_text("base: main\nprofiles: {local: {texts: many}}\n")
    with pytest.raises(ConfigError, match="texts must be"):
        load_recipe(str(file), profile="local")


def test_the_examples_are_schemes_and_attacks_from_files() -> None:
    from dewmark.opening import load_scheme
    from dewmark_lab.experiments.recipe import load_recipe
    from dewmark_lab.testing.fake_host import FakeHost

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
