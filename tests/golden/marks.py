"""What every mark writes and says on the tiny host, through each of the ways that a text can be written."""

from __future__ import annotations

import functools
import random
from typing import Any

from tests.golden.api import detecting, worlds, writing

from dewmark.detect import score_texts

PROMPTS = [" the old bridge over the river was not there when they came", " water", " people of the town"]
SEEDS = [11, 12, 13]
TOKENS = 60
SHORT = 16
WARPING = {"temperature": 0.8, "top_k": 120, "top_p": 0.95}
_WORDS = """
the of and to in is was for on that with as by it at from his her they this are be an which were not have had
but or one all out who more when there old new river bridge over under house water light day night time people
city town road tree hill sea ship wind rain sun story book word hand eye heart
"""


def unmarked(number: int, words: int = 70) -> str:
    """A fixed text that nobody marked; sentences end after every seventh word."""
    chosen = random.Random(1000 + number).choices(_WORDS.split(), k=words)
    return "".join(f" {word}{'.' if i % 7 == 6 else ''}" for i, word in enumerate(chosen))


def mark_section(name: str, world: worlds.World) -> dict[str, Any]:
    """Texts, detections with token scores, other tests, many keys, evidence and the engine's texts."""
    host, bound = world.host(name), world.bind(name)
    written = writing.write(host, bound, PROMPTS, seeds=SEEDS, tokens=TOKENS)
    warped = writing.write(host, bound, PROMPTS[:2], seeds=SEEDS[1:], tokens=SHORT, **WARPING)
    texts = [one["text"] for one in written]
    plain = unmarked(0)
    found = score_texts(bound, [*texts, plain])
    after = score_texts(bound, [texts[0], plain], prompts=[PROMPTS[0], PROMPTS[2]])
    section: dict[str, Any] = {
        "written": written,
        "written with temperature and filters": warped,
        "detected": [detecting.all_of(one) for one in found],
        "detected after prompts": [detecting.all_of(one) for one in after],
        "other tests": [
            [
                detecting.numbers_of(score_texts(bound, [text], test=test)[0])
                for text in (plain, texts[0])[: 1 if test == "monte-carlo" else 2]  # it takes its time
            ]
            for test in list(bound.tests)[1:]
        ],
        "many keys": detecting.many_keys(world, name, [texts[0], plain], keys=[3, 0, 4]),
        "evidence": detecting.evidence_of(bound, [texts[0], plain]),
    }
    if not writing.in_sentences(bound):
        section["marked logits"] = writing.marked_logits(host, bound, PROMPTS, seeds=SEEDS)
        rows = writing.write_as_an_engine(host, bound, PROMPTS, seeds=SEEDS, tokens=SHORT)
        section["written by an engine's rows"] = _or_same(rows, written)
        rows = writing.write_as_an_engine(host, bound, PROMPTS[:2], seeds=SEEDS[1:], tokens=SHORT, **WARPING)
        section["written by an engine's rows with temperature and filters"] = _or_same(rows, warped)
    return section


def _or_same(rows: list[list[int]], session: list[dict[str, Any]]) -> list[Any]:
    """The ids of texts, or a word where they are those that the session wrote."""
    both = zip(rows, session, strict=True)
    return ["as the session" if ids == wrote["ids"][: len(ids)] else ids for ids, wrote in both]


DEW_SECTIONS = {f"dew: {name}": functools.partial(mark_section, name) for name in worlds.DEW}
BASELINE_SECTIONS = {f"baseline: {name}": functools.partial(mark_section, name) for name in worlds.BASELINES}
