"""Verdicts on texts under one or several tenants' keys, as plain JSON values.

Every verdict rests on the same examination (`dewmark.passages.judge`): the whole text and its passages, under
every key, at one level for all of it. So ``/v1/detect`` and ``/v1/locate`` cannot contradict each other.

Callers with the scope ``detect-public`` see the verdict and, for a marked text, whose mark it is; no number
that depends on a key. Rounded numbers would not do: they can be averaged over many small edits.

Boundary: validated texts in, JSON out; no HTTP.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dewmark.errors import InputError
from dewmark.passages import Located, judge
from dewmark.reports.detection_display import located_sentence, one_in, sentence, technique
from dewmark.scheme import MIN_EFFECTIVE_LENGTH, check_text
from dewmark.text.languages import UNDETERMINED, guess_language, language_name
from dewmark.types import Detection, Verdict
from dewmark_desk.tenants import Tenant

_WITHHELD = (
    "p_value",
    "p_value_of_key",
    "z",
    "score",
    "effective_length",
    "tokens_scored",
    "keys",
    "looks",
    "key_fingerprint",
    "tokens",
    "tried",
    "member",
    "payload",
    "payload_confidence",
    "epoch",
    "attribution",
)  # from public answers


@dataclass(frozen=True, slots=True)
class Query:
    """A text and how to judge it; ``public`` asks for the verdict only.

    ``attempts`` counts the versions of the text that are looked at: the verdict pays for all of them.
    """

    text: str = dataclasses.field(repr=False)
    prompt: str | None = dataclasses.field(default=None, repr=False)
    fpr: float = 0.01
    tokens: bool = False
    public: bool = False
    attempts: int = 1

    def check(self, what: str) -> None:
        """Raise `InputError` unless text and prompt are valid; ``what`` names the text in the message."""
        check_text(self.text, what)
        if self.prompt and self.prompt.strip():
            check_text(self.prompt, f"the prompt of {what}")


def truncate_bytes(text: str, limit: int) -> str:
    """The longest prefix of a text that fits into ``limit`` bytes."""
    if len(text) * 4 <= limit:
        return text
    data = text.encode()
    return text if len(data) <= limit else data[:limit].decode(errors="ignore")


@dataclass(frozen=True, slots=True)
class Examination:
    """How texts are examined: under these tenants' keys, of the ``keys`` that the caller could ask for.

    The first ``scored_bytes`` of a text are scored, and passages are searched in its first
    ``searched_bytes``. A caller may pick a tenant after seeing another answer, so all its keys count.
    ``read`` lets the tenants' readers read the texts, if they have any.
    """

    tenants: Sequence[Tenant]
    keys: int
    scored_bytes: int
    searched_bytes: int
    test: str | None = None
    read: bool = True

    @property
    def has_reader(self) -> bool:
        """Whether a language model reads the texts, which takes a hundred times as long."""
        return self.read and any(tenant.bound.reader_name is not None for tenant in self.tenants)


def detect(queries: Sequence[Query], how: Examination) -> list[dict[str, Any]]:
    """One answer per text; one batch per tenant."""
    return [answer for answer, _ in _examine(queries, how)]


def detect_versions(
    queries: Sequence[Query], english: Sequence[str | None], how: Examination
) -> list[dict[str, Any]]:
    """One answer per text, from the text itself and its English translation, if it has one.

    Whether a text is translated depends on its language and never on a key, and the better of two versions
    pays for both. Passages of a translation are not places in the text, so it has none.
    """
    twice = {i: text for i, text in enumerate(english) if text is not None and text.strip()}
    answers = detect(
        [
            *(dataclasses.replace(each, attempts=1 + (i in twice)) for i, each in enumerate(queries)),
            *(
                dataclasses.replace(queries[i], text=text, prompt=None, attempts=2)
                for i, text in twice.items()
            ),
        ],
        how,
    )
    found = [{**answer, "translated_back": False} for answer in answers[: len(queries)]]
    for i, back in zip(twice, answers[len(queries) :], strict=True):
        if _rank(back) < _rank(found[i]):
            sizes = {name: found[i][name] for name in ("characters", "scored_characters", "truncated")}
            found[i] = {**back, **sizes, "coverage": None, "tokens": None, "translated_back": True}
    return found


def _rank(answer: dict[str, Any]) -> tuple[bool, float]:
    """Answers with a verdict first, by their p-values."""
    p_value = answer["p_value"]
    return not Verdict(answer["verdict"]).conclusive, 1.0 if p_value is None else p_value


def find_passages(query: Query, how: Examination) -> dict[str, Any]:
    """The answer of `detect` and the marked passages of a text."""
    ((answer, found),) = _examine([query], how)
    coverage = answer["coverage"] or {"passages": [], "share": 0.0}
    return {
        "tenant": how.tenants[found.index].id,
        "passages": coverage["passages"],
        "share": coverage["share"],
        "fpr": query.fpr,
        "sentence": located_sentence(found),
        "detection": answer,
    }


def _examine(queries: Sequence[Query], how: Examination) -> list[tuple[dict[str, Any], Located]]:
    texts = [truncate_bytes(query.text, how.scored_bytes) for query in queries]
    for text in texts:
        if not text.strip():
            limit = how.scored_bytes
            raise InputError(f"the first {limit} bytes of the text are blank: remove the leading white space")
    bounds = [tenant.bound if how.read else tenant.bound.reading_with(None) for tenant in how.tenants]
    prompts = [query.prompt for query in queries]
    columns = [bound.detect_batch(texts, prompts=prompts, test=how.test) for bound in bounds]
    examined = []
    for query, text, row in zip(queries, texts, zip(*columns, strict=True), strict=True):
        searched = truncate_bytes(text, how.searched_bytes)
        if not searched.strip():
            searched = text
        found = judge(
            searched,
            bounds,
            row,
            prompt=query.prompt,
            fpr=query.fpr,
            attempts=query.attempts,
            keys=how.keys,
        )
        examined.append((_answer(query, text, how.tenants, row, found), found))
    return examined


def _answer(
    query: Query, text: str, tenants: Sequence[Tenant], detections: Sequence[Detection], found: Located
) -> dict[str, Any]:
    tenant = tenants[found.index]
    answer = _public(found) if query.public else _full(found, tenants, tokens=query.tokens)
    del answer["language_known"]  # part of "language"
    known = not query.public or found.is_marked  # do not reveal whose key came close
    return {
        **answer,
        "tenant": tenant.id if known else None,
        "language": _language(text, found.detection),
        "leaves_no_room": _leaves_no_room(found.detection.judged(found.verdict, found.p_value)),
        "power": _power(found, tenant) if known or len(tenants) == 1 else None,
        "level_of_whole": None if query.public else _level_of_whole(found),
        "characters": len(query.text),
        "scored_characters": len(text),
        "truncated": len(text) < len(query.text),
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
    }


def _verdict_of(found: Located, detection: Detection, p_value: float) -> Verdict:
    """The verdict for one tenant's key, corrected like the verdict on the text."""
    if p_value <= found.fpr:
        return Verdict.MARKED
    return Verdict.NOT_MARKED if detection.verdict.conclusive else detection.verdict


def _power(found: Located, tenant: Tenant) -> dict[str, Any] | None:
    """For a text that is not marked: how often a marked one of its length is found, as a whole."""
    if tenant.power is None or found.verdict is not Verdict.NOT_MARKED:
        return None
    return tenant.power.found_in_100(found.detection.effective_length, level=_level_of_whole(found))


def _level_of_whole(found: Located) -> float:
    """The level at which the whole text is tested under each key; passages have the rest."""
    return found.looks.level(found.fpr) * (found.looks.WHOLE_SHARE if found.looks.passages else 1.0)


def _shown(found: Located) -> Detection:
    """The best key's result with the verdict, the p-value and the passages of the whole examination."""
    judged = found.detection.judged(found.verdict, found.p_value)
    return dataclasses.replace(judged, fpr=found.fpr, coverage=found.coverage)


def _leaves_no_room(shown: Detection) -> bool:
    """Whether more of such a text would not lead to a verdict either."""
    unread = shown.verdict is Verdict.UNSUPPORTED_LANGUAGE and shown.effective_length < MIN_EFFECTIVE_LENGTH
    return shown.leaves_no_room or unread


def _full(found: Located, tenants: Sequence[Tenant], *, tokens: bool) -> dict[str, Any]:
    shown = _shown(found)
    answer = {
        "tokens": None,
        **shown.to_dict(tokens=tokens),
        "p_value_of_key": found.detection.to_dict()["p_value"],
        **_looks(found),
        **_in_words(shown),
    }
    owners = {tenant.bound.fingerprint: tenant.id for tenant in tenants}
    for passage in (answer["coverage"] or {"passages": ()})["passages"]:
        passage["tenant"] = owners[passage["key_fingerprint"]]
    return answer


def _public(found: Located) -> dict[str, Any]:
    shown = dataclasses.replace(_shown(found), tokens=(), coverage=None)
    return {
        **shown.to_dict(),
        **dict.fromkeys(_WITHHELD),
        "one_in": "",
        "sentence": f"{found.verdict} at a false-positive rate of {shown.fpr:g}",
    }


def _looks(found: Located) -> dict[str, Any]:
    return {"keys": found.looks.keys, "looks": found.looks.to_dict()}


def _in_words(shown: Detection) -> dict[str, str]:
    return {
        "one_in": one_in(shown.p_value),
        "sentence": sentence(shown),
        "technique": technique(shown.scheme, shown.test),
    }


def _language(text: str, detection: Detection) -> dict[str, Any]:
    code = detection.language
    if code is None and detection.language_known is None:  # the scheme did not ask
        code = guess_language(text)
        code = None if code == UNDETERMINED else code
    name = None if code is None else language_name(code)
    return {"code": code, "name": name, "supported": detection.language_known}
