"""What SmolLM2-135M writes with the marks that matter most, and what their detectors say."""

from __future__ import annotations

import functools
from typing import Any

from tests.golden import api
from tests.golden.marks import unmarked

PROMPTS = [
    "The old bridge over the river",
    "My grandmother kept a small shop at the end of the harbour, and every summer",
    "Dear editor, I have read your paper for thirty years, and",
]
GERMAN = (
    "Die alte Brücke über den Fluß wurde vor langer Zeit gebaut, und niemand in der Stadt weiß heute noch, "
    "wer sie bezahlt hat. An warmen Abenden sitzen die Leute am Wasser und erzählen sich Geschichten von "
    "Schiffen, die nie zurückgekommen sind."
)
SEEDS = [1, 2, 3]
TOKENS = 60


def mark_section(mark: str, world: api.World) -> dict[str, Any]:
    """Texts, detections with token scores, the engine's texts, and a stored detector."""
    host, bound = api.real_host(), api.bind_real(mark)
    written = api.write(host, bound, PROMPTS, seeds=SEEDS, tokens=TOKENS, no_repeat_ngram=4)
    texts = [one["text"] for one in written]
    found = api.detect(bound, [*texts, unmarked(0), GERMAN])
    folder = world.folder / f"real detector {len(list(world.folder.glob('real detector *')))}"
    api.export(bound, folder)
    again = api.detect(api.load(folder), [texts[0], GERMAN], prompts=[PROMPTS[0], None])
    quick = [test for test in api.own_tests(bound)[1:] if not api.is_simulation(test)]
    return {
        "written": written,
        "detected": [{**api.numbers_of(one), **api.tokens_of(one)} for one in found],
        "other tests": [api.detect_by(bound, texts[0], test) for test in quick],
        "written by an engine's rows": api.write_as_an_engine(
            host, bound, PROMPTS[:2], seeds=SEEDS[:2], tokens=12, temperature=0.8, top_k=50, top_p=0.95
        ),
        "stored": api.stored_facts(folder),
        "detected by the stored detector": [{**api.numbers_of(one), **api.tokens_of(one)} for one in again],
    }


SECTIONS = {f"real models: {mark}": functools.partial(mark_section, mark) for mark in api.REAL}
