"""Verdicts on texts under one or several tenants' keys, as plain JSON values.

Every verdict comes from `dewmark.detect`, like those of the library and the command: the whole text
under every key, at one level for all of it, and if it is long its passages.

Callers with the scope ``detect-public`` see the verdict and, for a marked text, whose mark it is; no number
that depends on a key. Rounded numbers would not do: they can be averaged over many small edits.

Boundary: validated texts in, JSON out; no HTTP.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark.detect import Examined, detect_texts
from dewmark.manifests import layers
from dewmark.registry import SCHEMES
from dewmark.reports.detection_display import one_in, sentence
from dewmark.scheme import BoundScheme, check_text, reader_name
from dewmark.text.languages import UNDETERMINED, guess_language, language_name
from dewmark.types import Detection, Verdict
from dewmark.verdict import MIN_EFFECTIVE_LENGTH
from dewmark_desk.detection_report import names_the_key
from dewmark_desk.tenants import Tenant

# What the public is told of a text under a key; all else depends on the key.
_PUBLIC = ("verdict", "fpr", "test", "scheme", "technique", "reader", "language", "language_known")


@dataclass(frozen=True, slots=True)
class Query:
    """A text, and what to tell; ``public`` is the verdict only."""

    text: str = dataclasses.field(repr=False)
    prompt: str | None = dataclasses.field(default=None, repr=False)
    tokens: bool = False
    public: bool = False

    def check(self, what: str) -> None:
        """Raise `InputError` unless text and prompt are valid; ``what`` names the text in the message."""
        check_text(self.text, what)
        if self.prompt and self.prompt.strip():
            check_text(self.prompt, f"the prompt of {what}")


@dataclass(frozen=True, slots=True)
class Examination:
    """How texts are examined: under these tenants' keys, of the ``keys`` that the caller could ask for.

    A caller may pick a tenant after seeing another answer, so all its keys count. ``read`` lets the tenants'
    readers read the texts, if they have any.
    """

    tenants: Sequence[Tenant]
    keys: int
    fpr: float = 0.01
    test: str | None = None
    read: bool = True
    roots: Path | None = None
    """Certificates under which signers of manifests are trusted."""

    @property
    def has_reader(self) -> bool:
        """Whether a language model reads the texts, which takes a hundred times as long."""
        return self.read and any(reader_name(tenant.bound) not in (None, "none") for tenant in self.tenants)

    @property
    def runs_a_model(self) -> bool:
        """Whether a language model sees the prompt: a reader, or the host of a scheme that needs it."""
        return self.has_reader or not all(tenant.bound.scheme.host_free for tenant in self.tenants)

    def bound(self, number: int) -> BoundScheme:
        """The detector of a tenant."""
        found = self.tenants[number].bound
        return found if self.read else found.reading_with(None)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said of a text, and the tenant whose key fits best."""

    said: dict[str, Any]
    best: Tenant


def detect(queries: Sequence[Query], how: Examination) -> list[Answer]:
    """One answer per text."""
    examined = detect_texts(
        [query.text for query in queries],
        [how.bound(number) for number in range(len(how.tenants))],
        prompts=[query.prompt for query in queries],
        fpr=how.fpr,
        test=how.test,
        asked=how.keys,
        explain=not all(query.public for query in queries),
    )
    answers = []
    for query, found in zip(queries, examined, strict=True):
        answer = _answer(query, how.tenants, found)
        tested = [tenant.bound.fingerprint for tenant in how.tenants]
        answer["manifest"] = layers(query.text, found.judged, tested, roots=how.roots)
        answers.append(Answer(answer, how.tenants[found.index]))
    return answers


def _answer(query: Query, tenants: Sequence[Tenant], found: Examined) -> dict[str, Any]:
    tenant, detections = tenants[found.index], found.detections
    answer = _public(found, tenants) if query.public else _full(found, tenants, tokens=query.tokens)
    del answer["language_known"]  # part of "language"
    known = not query.public or names_the_key(found.verdict, found.looks.keys)
    return {
        **answer,
        "tenant": tenant.id if known else None,
        "language": _language(query.text, detections[found.index]),
        "leaves_no_room": _leaves_no_room(found.judged),
        "power": _power(found, tenant) if known else None,
        "level_of_whole": None if query.public else found.level_of_whole,
        "characters": len(query.text),
        "rounded": query.public,
        "per_tenant": None
        if query.public or len(tenants) == 1
        else [
            {
                "tenant": each.id,
                "p_value": p_value,
                "z": detection.to_dict()["z"],
                "verdict": _verdict_of(found, detection, p_value),
            }
            for each, detection, p_value in zip(tenants, detections, found.p_values, strict=True)
        ],
        "not_tested": None
        if query.public
        else [
            {"tenant": each.id, "scheme": detection.scheme, "reason": detection.verdict}
            for each, detection in zip(tenants, detections, strict=True)
            if not detection.verdict.conclusive
        ],
    }


def _verdict_of(found: Examined, detection: Detection, p_value: float) -> Verdict:
    """The verdict for one tenant's key, corrected like the verdict on the text."""
    if p_value <= found.fpr:
        return Verdict.MARKED
    return Verdict.NOT_MARKED if detection.verdict.conclusive else detection.verdict


def _power(found: Examined, tenant: Tenant) -> dict[str, Any] | None:
    """For a text that is not marked: how often a marked one of its length is found, as a whole."""
    if tenant.power is None or found.verdict is not Verdict.NOT_MARKED:
        return None
    return tenant.power.found_in_100(found.detection.effective_length, level=found.level_of_whole)


def _leaves_no_room(shown: Detection) -> bool:
    """Whether more of such a text would not lead to a verdict either."""
    unread = shown.verdict is Verdict.UNSUPPORTED_LANGUAGE and shown.effective_length < MIN_EFFECTIVE_LENGTH
    return shown.leaves_no_room or unread


def _full(found: Examined, tenants: Sequence[Tenant], *, tokens: bool) -> dict[str, Any]:
    shown = found.judged
    answer = {
        "tokens": None,
        **shown.to_dict(tokens=tokens),
        "p_value_of_key": found.detection.to_dict()["p_value"],
        "keys": found.looks.keys,
        "one_in": one_in(shown.p_value),
        "sentence": sentence(shown),
        "technique": f"{shown.scheme} ({SCHEMES[shown.scheme].summary}), {shown.test} test",
    }
    owners = {tenant.bound.fingerprint: tenant.id for tenant in tenants}
    for passage in (answer["coverage"] or {"passages": ()})["passages"]:
        passage["tenant"] = owners[passage["key_fingerprint"]]
    return answer


def _public(found: Examined, tenants: Sequence[Tenant]) -> dict[str, Any]:
    answer = _full(found, tenants, tokens=False)
    return {
        **dict.fromkeys(answer),
        **{name: value for name, value in answer.items() if name in _PUBLIC},
        "one_in": "",
        "sentence": f"{found.verdict.words} at a false-positive rate of {found.fpr:g}",
    }


def _language(text: str, detection: Detection) -> dict[str, Any]:
    code = detection.language
    if code is None and detection.language_known is None:  # the scheme did not ask
        code = guess_language(text)
        code = None if code == UNDETERMINED else code
    name = None if code is None else language_name(code)
    return {"code": code, "name": name, "supported": detection.language_known}
