"""Arguments of the public functions: a wrong one is a `ConfigError` of one line that says what to write.

`checked` reads names and simple types from the signature, so a parameter is described in one place. Ranges
are checked by the functions themselves, and texts by `dewmark.scheme.check_text`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

from dewmark.errors import ConfigError
from dewmark.registry import SCHEMES

__all__ = ["checked"]

T = TypeVar("T", bound=Callable[..., Any])

_LOAD_KEY = "a Key (load a file with Key.load(path))"


def _is_key(value: object) -> bool:
    return any(each.__name__ == "Key" for each in type(value).__mro__)  # which stands above this module


def _are_keys(value: object) -> bool:
    once = isinstance(value, str | bytes | Iterator)  # an iterator would be used up by this check
    return not once and hasattr(value, "__iter__") and all(map(_is_key, value))


def _is(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


# What an annotation accepts, and how it is called; parameters annotated otherwise are not checked.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "float": (_is(Real), "a number"),
    "int": (_is(Integral), "a whole number"),
    "bool": (_is(bool), "True or False"),
    "str": (_is(str), "text"),
    "None": (lambda value: value is None, "None"),
    "Mapping[str, Any]": (_is(Mapping), "a dict"),
    "Key": (_is_key, _LOAD_KEY),
    "Sequence[Key]": (_are_keys, f"a list of keys, each {_LOAD_KEY}"),
}
_TEXTS = ("text", "prompt")  # for which there is an InputError
_OWNERS = ("self", "cls")


def checked(target: T, *, types: bool = True, options: Callable[..., Any] | None = None) -> T:
    """A function, or a class with its public methods, that rejects wrong arguments in one line.

    ``options`` is the function whose keyword-only parameters ``**options`` stands for.
    """
    if not isinstance(target, type):
        return _checked(target, types=types, options=options)
    for name, member in list(vars(target).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, classmethod):
            setattr(target, name, classmethod(_checked(member.__func__, types=types, options=options)))
        elif inspect.isfunction(member):
            setattr(target, name, _checked(member, types=types, options=options))
    return target


def _checked(function: T, *, types: bool, options: Callable[..., Any] | None) -> T:
    signature = inspect.signature(function)
    if options is not None and "options" in signature.parameters:
        own = [each for each in signature.parameters.values() if each.name != "options"]
        more = [
            each for each in inspect.signature(options).parameters.values() if each.kind is each.KEYWORD_ONLY
        ]
        signature = signature.replace(parameters=[*own, *more])
    kinds = {
        each.name: parts
        for each in signature.parameters.values()
        if types and each.name not in _TEXTS and each.kind is not each.VAR_KEYWORD
        if set(parts := str(each.annotation).split(" | ")) <= _KINDS.keys()
    }

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - those of the function
        try:
            given = signature.bind(*arguments, **named).arguments
        except TypeError as error:
            raise _misnamed(function, signature, arguments, named, error) from None
        for each, parts in kinds.items():
            if each in given and not any(_KINDS[part][0](given[each]) for part in parts):
                wanted = " or ".join(_KINDS[part][1] for part in parts if part != "None")
                got = type(given[each]).__name__  # a key's text may be the secret itself
                got += "" if _LOAD_KEY in wanted else f" {given[each]!r:.60}"
                raise ConfigError(f"{each} must be {wanted}, got {got}")
        return function(*arguments, **named)

    return call  # type: ignore[return-value]  # with the signature of the function


def _misnamed(
    function: Callable[..., Any],
    signature: inspect.Signature,
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
    error: TypeError,
) -> ConfigError:
    """The error for a call that does not fit a signature."""
    # 1. the function's name as its caller knows it: a method by the class on which it is called
    name = function.__qualname__
    if arguments and next(iter(signature.parameters)) in _OWNERS:
        owner = arguments[0] if isinstance(arguments[0], type) else type(arguments[0])
        method = "" if function.__name__ == "__init__" else f".{function.__name__}"
        name = f"{owner.__name__}{method}"
    known = [each for each in signature.parameters if each not in _OWNERS]
    wrong = next((each for each in named if each not in known), None)
    if wrong is None:
        return ConfigError(f"{name}: {error}; its parameters: {', '.join(known)}")
    # 2. the nearest parameter, be it one of the scheme
    settings: list[str] = []
    if "settings" in known:
        with contextlib.suppress(ConfigError, ImportError, AttributeError, TypeError):
            fields = dataclasses.fields(SCHEMES[named.get("scheme", "dew")])
            settings = [field.name.rstrip("_") for field in fields]
    near = difflib.get_close_matches(wrong, [*known, *settings], n=1)
    hint = f"known: {', '.join(known)}"
    if near:
        meant = near[0] if near[0] in known else f"settings={{{near[0]!r}: …}}"
        hint = f"did you mean {meant}?"
    return ConfigError(f"{name} has no parameter {wrong!r}; {hint}")
