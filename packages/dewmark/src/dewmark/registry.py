"""Lazy tables of names: a name maps to ``module:attribute``, which is imported at the first lookup.

Other packages add names through entry points, and programs through `Registry.register`. A name of the form
``FILE.py:CLASS`` is a class in a file of the user's own.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, entry_points, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from dewmark.errors import ConfigError, DewmarkError, UnknownNameError
from dewmark.extras import import_part

__all__ = ["AUDITS", "ENCODERS", "HOSTS", "SCHEMES", "TRANSLATORS", "Registry", "unknown_name"]


def unknown_name(
    kind: str, name: str, known: Iterable[str], *, companion: str | None = None
) -> UnknownNameError:
    """The error for an unknown name, with the nearest known one, or the package that may bring it."""
    names = {each.casefold(): each for each in sorted(known)}
    near = difflib.get_close_matches(name.casefold(), names, n=1)
    hint = f"did you mean {names[near[0]]!r}?" if near else f"known: {', '.join(names.values()) or 'none'}"
    if companion is not None and not near and not installed(companion):
        hint += f"; more with: pip install {companion}"
    return UnknownNameError(f"unknown {kind} {name!r}; {hint}")


@functools.cache
def installed(distribution: str) -> bool:
    """Whether a distribution is installed."""
    try:
        metadata(distribution)
    except PackageNotFoundError:
        return False
    return True


@functools.cache  # scanning all installed packages takes milliseconds
def _published(group: str) -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=group)}


@functools.cache
def _run_file(path: Path) -> ModuleType:
    """Import a Python file, once."""
    name = f"dewmark_file_{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"cannot read {path}: give FILE.py:CLASS")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, DewmarkError):
            raise
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


class Registry(Mapping[str, Any]):
    """Names of one kind: built in, published by another package's entry points, or registered.

    ``companion`` is a package of ours that publishes more.
    """

    def __init__(
        self, kind: str, built_in: dict[str, str], *, group: str | None = None, companion: str | None = None
    ) -> None:
        self.kind, self._companion, self._built_in, self._group = kind, companion, built_in, group
        self.registered: dict[str, object] = {}

    def register(self, name: str, target: object) -> None:
        """Add a name for the rest of this process; ``target`` is the object, or ``module:attribute``."""
        if name in self._built_in:
            raise ConfigError(f"{self.kind} {name!r} is built in; register another name")
        self.registered[name] = target

    def _table(self) -> dict[str, object]:
        published = {} if self._group is None else _published(self._group)
        return {**published, **self.registered, **self._built_in}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - whatever is registered
        file, colon, attribute = name.rpartition(":")
        if colon and file.endswith(".py"):
            found = getattr(_run_file(Path(file).resolve()), attribute, None)
            if not isinstance(found, type):
                raise ConfigError(f"{file} defines no class {attribute!r}: give FILE.py:CLASS")
            own = getattr(found, "name", None)
            if not isinstance(own, str) or not own:
                raise ConfigError(f"{attribute} in {file} has no name: add name: ClassVar[str] = ...")
            self.register(own, found)  # results carry its own name
            return found
        table = self._table()
        if name not in table:  # papers write KGW and SynthID
            alike = [each for each in table if each.casefold() == name.casefold()]
            if len(alike) != 1:
                raise unknown_name(self.kind, name, table, companion=self._companion)
            (name,) = alike
        target = table[name]
        if not isinstance(target, str):
            return target
        module, _, attribute = target.partition(":")
        return getattr(import_part(module), attribute)

    def __contains__(self, name: object) -> bool:
        return name in self._table()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._table()))

    def __len__(self) -> int:
        return len(self._table())


SCHEMES = Registry(
    "scheme",
    {
        "dew": "dewmark.dew.scheme:DEW",
        "dew-paper": "dewmark.dew.paper.scheme:DewPaper",
    },
    group="dewmark.schemes",
    companion="dewmark-lab",
)

# Called with ``progress`` and ``device``. A name that ends in a colon takes an argument: ``random:768``.
# ``folder:`` and ``hub:`` open what has no entry of its own.
ENCODERS = Registry(
    "encoder",
    {
        "use-m3": "dewmark.encoders.use:USEEncoder",
    },
    group="dewmark.encoders",
    companion="dewmark-lab",
)

# Called with the name, ``device``, ``dtype`` and ``progress``; gives a `dewmark.hosts.base.Host`. Folders,
# .gguf files and hub ids need no entry.
HOSTS = Registry(
    "host",
    {
        "gemma3-270m": "dewmark.hosts.transformers.model:load_host",
        "qwen2.5-coder-0.5b": "dewmark.hosts.transformers.model:load_host",
        "qwen2.5-coder-1.5b": "dewmark.hosts.transformers.model:load_host",
        "smollm2-135m": "dewmark.hosts.transformers.model:load_host",
    },
    group="dewmark.hosts",
)

# Called with the name and ``device``; gives a translator. ``fr-en`` brings French texts into English, and
# ``chat`` is called with a pair and a ``host`` that translates it. ``back`` asks them before a test.
TRANSLATORS = Registry("translator", {}, group="dewmark.translators", companion="dewmark-lab")

# ``negatives`` reads unmarked texts, ``draw`` draws a key that passes on them, ``trust`` lets a detector
# judge the languages of an audit, and ``calibration`` loads what ranks a text among unmarked ones.
AUDITS = Registry("audit", {}, group="dewmark.audits", companion="dewmark-audit")
