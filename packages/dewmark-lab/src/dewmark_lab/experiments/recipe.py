"""Recipes: the rows, columns, models and texts of one table of the paper (``data/recipes/*.yaml``).

A recipe refers to schemes by label; labels and their groups are defined in ``schemes.yaml``. A profile
chooses the models and texts: ``paper`` those of the paper, ``local`` and ``real`` those that packages
provide, the smallest and the largest. Boundary: YAML files in, validated dataclasses out; no model is loaded
here.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import httpx2

from dewmark.config import config_hash
from dewmark.core.keys import Key
from dewmark.decoding import Decoding, check_int
from dewmark.errors import ConfigError, ModelError
from dewmark.registry import SCHEMES, unknown_name
from dewmark.scheme import Scheme
from dewmark_lab.attacks.base import ATTACKS
from dewmark_lab.chat.endpoint import check_base_url

STAGES = (
    "train",
    "generate",
    "attack",
    "score",
    "quality",
    "preference",
    "runtime",
    "steal",
    "evaluate",
    "report",
)
KEYS = ("one", "per-seed")
"""Key protocols: all seeds share one key, or each seed has its own."""
LOCAL_MODEL = "qwen2.5-coder-1.5b"
_WHO = ("base_url", "model", "host", "key_env")  # settings that name a language model
_SCORES = ("z", "mean")
_CATALOGUE = "schemes"
_ALL = "all"

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class SchemeEntry:
    """A row of a table: a scheme, its settings, its host, and how it detects.

    ``test`` is None for the scheme's default. ``reader`` is the model that reads texts before they are scored
    (``host`` for the row's own host), or None. ``score`` is what thresholds are set on: ``z``, or the
    ``mean`` score of a text's tokens, as in the paper. Rows that differ only in these three share texts.
    """

    label: str
    scheme: str
    host: str
    settings: Settings = field(default_factory=dict)
    test: str | None = None
    reader: str | None = None
    score: str = "z"

    def build(self) -> Scheme:
        """The configured scheme; invalid settings raise `ConfigError`."""
        built: Scheme = SCHEMES[self.scheme]().with_settings(dict(self.settings))
        if self.reader is not None and not built.takes_reader:
            raise ConfigError(f"{self.label}: {self.scheme} makes no use of a reader: leave it out")
        if self.score not in _SCORES:
            raise unknown_name(f"score of {self.label}", self.score, _SCORES)
        return built

    @property
    def reader_model(self) -> str | None:
        """The name of the model that reads the texts."""
        return self.host if self.reader == "host" else self.reader


@dataclass(frozen=True)
class AttackEntry:
    """A column of a table: an attack and its settings."""

    label: str
    attack: str
    settings: Settings = field(default_factory=dict)

    @property
    def uses_language_model(self) -> bool:
        """Whether a language model rewrites the texts."""
        return self.attack in ("paraphrase", "summarise") or self.settings.get("engine") == "llm"


@dataclass(frozen=True)
class Recipe:
    """A table under one profile. ``prompts`` is a source of `dewmark_lab.prompt_sources`.

    With ``chat`` the prompts are requests, which hosts answer in their chat template. ``keys`` is one of
    `KEYS`. ``lengths`` are the numbers of tokens to which texts are truncated for the figure over lengths.
    ``settings`` are the profile's settings by scheme, which override those of the scheme's rows. ``training``
    maps learned schemes to the ``encoder`` (and ``lexicon``, ``contexts``, ``steps``) that their artifacts
    are trained with for the row's host; the rows of other learned schemes use the artifacts of the package.
    ``options`` configure stages by name. ``llm`` is the language model of attacks and judge, unless another
    is asked for (`language_model_settings`).
    """

    name: str
    profile: str
    title: str
    stages: tuple[str, ...]
    schemes: tuple[SchemeEntry, ...]
    attacks: tuple[AttackEntry, ...]
    decoding: Decoding
    prompts: str
    prompt_tokens: int
    texts: int
    seeds: int
    judge: str
    keys: str = "per-seed"
    lengths: Sequence[int] = ()
    human: bool = False
    chat: bool = False
    settings: Mapping[str, Settings] = field(default_factory=dict)
    training: Mapping[str, Settings] = field(default_factory=dict)
    options: Mapping[str, Settings] = field(default_factory=dict)
    llm: str | None = None

    def narrowed(
        self,
        *,
        schemes: Sequence[str] = (),
        attacks: Sequence[str] = (),
        stages: Sequence[str] = (),
        tokens: int | None = None,
        **changes: Any,  # noqa: ANN401 - fields of this class
    ) -> Recipe:
        """A copy with only these schemes (labels or groups), attacks and stages, and other fields replaced.

        ``tokens`` is the number of tokens of each text; values of None change nothing.
        """
        chosen = {name: value for name, value in changes.items() if value is not None}
        if tokens is not None:
            length = {"max_new_tokens": tokens, "min_new_tokens": tokens}
            chosen["decoding"] = dataclasses.replace(self.decoding, **length)
        if schemes:
            host = self.schemes[0].host
            known = {entry.label: entry for entry in self.schemes}
            # a class in a file of the user's, FILE.py:CLASS
            known |= {name: SchemeEntry(SCHEMES[name].name, name, host) for name in schemes if ".py:" in name}
            wanted = _labels(schemes, own=list(known))
            # rows that the recipe lacks come from the catalogue
            chosen["schemes"] = tuple(
                known[label] if label in known else _catalogue_entry(label, self.settings, host)
                for label in wanted
            )
        if attacks:
            table = {entry.label: entry for entry in self.attacks}
            table |= {name: AttackEntry(ATTACKS[name].name, name) for name in attacks if ".py:" in name}
            for label in attacks:
                if label not in table and label != "none":
                    raise unknown_name("attack of this recipe", label, table)
            chosen["attacks"] = tuple(table[label] for label in attacks if label != "none")
        for stage in stages:
            if stage not in STAGES:
                raise unknown_name("stage", stage, STAGES)
        if stages:
            chosen["stages"] = tuple(stage for stage in self.stages if stage in stages)
        return _checked(dataclasses.replace(self, **chosen))

    def key_number(self, seed: int) -> int:
        """Which `experiment_key` the texts of a seed are marked and scored with."""
        return seed if self.keys == "per-seed" else 0

    @property
    def uses_language_model(self) -> bool:
        """Whether the recipe has a place for a language model."""
        return "preference" in self.stages or any(each.uses_language_model for each in self.attacks)

    def with_language_model(self, settings: Settings) -> Recipe:
        """A copy with this model wherever there is one; other settings, such as ``target``, stay."""

        def named(given: Settings) -> Settings:
            return {**{name: value for name, value in given.items() if name not in _WHO}, **settings}

        attacks = tuple(
            dataclasses.replace(each, settings=named(each.settings)) if each.uses_language_model else each
            for each in self.attacks
        )
        options = dict(self.options)
        if "preference" in self.stages:
            options["preference"] = named(options.get("preference", {}))
        return dataclasses.replace(self, attacks=attacks, options=options)

    def with_artifacts(self, folder: Path) -> Recipe:
        """A copy whose learned rows use the artifacts that are trained into a folder."""
        rows = []
        for entry in self.schemes:
            training = self.training.get(entry.scheme)
            if training is not None and "artifact" not in entry.settings:
                name = f"{entry.scheme}-{config_hash(entry.host, dict(training))}"
                settings = {**entry.settings, "artifact": str(folder / name)}
                entry = dataclasses.replace(entry, settings=settings)
            rows.append(entry)
        return dataclasses.replace(self, schemes=tuple(rows))

    def on_host(self, host: str) -> Recipe:
        """A copy that uses another host for every row."""
        rows = tuple(dataclasses.replace(entry, host=host) for entry in self.schemes)
        return dataclasses.replace(self, schemes=rows)

    def to_dict(self) -> dict[str, Any]:
        """Everything that determines the results, as plain values; the stages of this run are left out."""
        values = {**dataclasses.asdict(self), "decoding": self.decoding.to_dict()}
        del values["stages"]
        return values


def experiment_key(number: int) -> Key:
    """One of the keys of experiments. It is the same in every run, so that runs agree; it is not a secret."""
    return Key(hashlib.sha256(f"dewmark reproduce, seed {number}".encode()).digest())


def tables() -> list[str]:
    """The names of the recipes that the package provides."""
    files = (resources.files("dewmark_lab") / "data" / "recipes").iterdir()
    names = (file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))
    return sorted(name for name in names if name != _CATALOGUE)


def language_model_settings(llm: str, *, device: str, dtype: str, batch_size: int) -> dict[str, Any]:
    """The chat settings of ``--llm``: ``local`` is a packaged model, any other name a host.

    Hosts run inside the workers. A URL is a running endpoint, whose first model is used.
    """
    if not llm.startswith(("http://", "https://")):
        host = LOCAL_MODEL if llm == "local" else llm
        return {"host": host, "batch_size": batch_size, "device": device, "dtype": dtype}
    check_base_url(llm, with_key=False)
    try:
        listed = httpx2.get(f"{llm.rstrip('/')}/models", timeout=10).json()
        return {"base_url": llm, "model": str(listed["data"][0]["id"])}
    except (httpx2.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ModelError(
            f"{llm} lists no model ({type(error).__name__}): start the server, or name model and base_url in "
            "a recipe"
        ) from None


def load_recipe(name: str, *, profile: str) -> Recipe:
    """Load one of the package's recipes by name, or any recipe by the path of its ``.yaml`` file."""
    raw = _read(name)
    table = Path(name).stem
    profiles = raw.pop("profiles", {})
    if profile not in profiles:
        raise unknown_name(f"profile of {table}", profile, profiles)
    whole = {**raw, **profiles[profile]}
    if "missing" in whole:
        raise ConfigError(f"{table} in profile {profile}: {whole['missing']}")
    return _recipe(table, profile, whole)


def _read(name: str) -> dict[str, Any]:
    """The mapping in a recipe's file, merged over its ``base`` if it has one."""
    if name.endswith((".yaml", ".yml")):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the recipe {name}: {error}") from None
    elif name in tables():
        text = _shipped(name)
    else:
        raise unknown_name("table", name, tables())
    raw = _parse(text, name)
    if "base" not in raw:
        return raw
    base = _read(raw.pop("base"))
    mine = raw.get("profiles", {})
    profiles = {each: {**own, **mine.get(each, {})} for each, own in base["profiles"].items()}
    return {**base, **raw, "profiles": {**mine, **profiles}}


def _recipe(name: str, profile: str, raw: dict[str, Any]) -> Recipe:
    """A `Recipe` from the merged mapping; unknown fields raise `ConfigError`."""
    try:
        host = raw.pop("host")
        overrides = raw.pop("settings", {})
        schemes = raw.pop("schemes")
        rows: list[SchemeEntry] = []
        if isinstance(schemes, Mapping):  # the recipe defines its own rows, by label
            rows = [_scheme_entry(label, row, overrides, host) for label, row in schemes.items()]
        else:
            rows = [_catalogue_entry(label, overrides, host) for label in _labels(schemes)]
        attacks = tuple(
            AttackEntry(
                label, attack["attack"], {name: value for name, value in attack.items() if name != "attack"}
            )
            for label, attack in raw.pop("attacks", {}).items()
        )
        decoding = Decoding(**raw.pop("decoding"))
        stages = tuple(raw.pop("stages"))
        return _checked(
            Recipe(
                name=name,
                profile=profile,
                schemes=tuple(rows),
                attacks=attacks,
                decoding=decoding,
                stages=stages,
                settings=overrides,
                **raw,
            )
        )
    except KeyError as missing:
        raise ConfigError(f"the recipe {name} ({profile}) has no {missing}: add it") from None
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"the recipe {name} ({profile}) is invalid: {error}") from None


def _checked(recipe: Recipe) -> Recipe:
    check_int("texts", recipe.texts, least=2)
    check_int("seeds", recipe.seeds, least=1)
    check_int("prompt_tokens", recipe.prompt_tokens, least=1)
    if recipe.keys not in KEYS:
        raise unknown_name("protocol of keys", recipe.keys, KEYS)
    for length in recipe.lengths:
        check_int("lengths", length, least=1)
    for entry in recipe.schemes:
        entry.build()
    for scheme, settings in recipe.training.items():
        if "encoder" not in settings or set(settings) - {"encoder", "lexicon", "contexts", "steps"}:
            raise ConfigError(
                f"the training of {scheme} needs an encoder and may have a lexicon, contexts and steps, "
                f"got {', '.join(settings)}"
            )
    return recipe


def _labels(names: Sequence[str], *, own: Sequence[str] = ()) -> list[str]:
    """Expand groups: the distinct labels in the given order. ``own`` are the labels of a recipe's rows."""
    catalogue = _catalogue()
    groups: dict[str, list[str]] = {_ALL: list(own or catalogue)}
    for label, row in catalogue.items():
        for group in row["groups"]:
            groups.setdefault(group, []).append(label)
    found: list[str] = []
    for name in names:
        if name in own or name in catalogue:
            found.append(name)
        elif name in groups:
            found += groups[name]
        else:
            raise unknown_name("scheme or group", name, [*own, *catalogue, *groups])
    return list(dict.fromkeys(found))


def _catalogue_entry(label: str, overrides: Mapping[str, Settings], host: str) -> SchemeEntry:
    """A row of the catalogue; ``overrides`` are the profile's settings by scheme."""
    return _scheme_entry(label, _catalogue()[label], overrides, host)


def _scheme_entry(label: str, row: Settings, overrides: Mapping[str, Settings], host: str) -> SchemeEntry:
    settings = {**row.get("settings", {}), **overrides.get(row["scheme"], {})}
    options = {name: row[name] for name in ("test", "reader", "score") if name in row}
    return SchemeEntry(label, row["scheme"], row.get("host", host), settings, **options)


def catalogue_entry(label: str) -> SchemeEntry:
    """A row of the catalogue by its label, without a host."""
    if label not in _catalogue():
        raise unknown_name("scheme", label, _catalogue())
    return _catalogue_entry(label, {}, "")


def catalogue() -> list[str]:
    """The labels of the catalogue."""
    return list(_catalogue())


@functools.cache
def _catalogue() -> dict[str, dict[str, Any]]:
    """The rows that recipes share, by label."""
    return _parse(_shipped(_CATALOGUE), _CATALOGUE)


def _shipped(name: str) -> str:
    return (resources.files("dewmark_lab") / "data" / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")


def _parse(text: str, where: str) -> dict[str, Any]:
    import yaml

    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{where} must be a mapping, got {type(raw).__name__}")
    return raw
