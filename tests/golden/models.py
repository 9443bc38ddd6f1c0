"""What SmolLM2-135M writes with the marks that matter most, and what their detectors say."""

from __future__ import annotations

import functools
from typing import Any

from tests.golden.api import detecting, worlds, writing
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


def mark_section(mark: str, world: worlds.World) -> dict[str, Any]:
    """Texts, detections with token scores, the engine's texts, and a stored detector."""
    host, bound = worlds.real_host(), worlds.bind_real(mark)
    written = writing.write(host, bound, PROMPTS, seeds=SEEDS, tokens=TOKENS, no_repeat_ngram=4)
    texts = [one["text"] for one in written]
    found = detecting.detect(bound, [*texts, unmarked(0), GERMAN])
    folder = world.folder / f"real detector {len(list(world.folder.glob('real detector *')))}"
    detecting.export(bound, folder)
    again = detecting.detect(detecting.load(folder), [texts[0], GERMAN], prompts=[PROMPTS[0], None])
    quick = [test for test in detecting.own_tests(bound)[1:] if not detecting.is_simulation(test)]
    return {
        "written": written,
        "detected": [detecting.all_of(one) for one in found],
        "other tests": [detecting.detect_by(bound, texts[0], test) for test in quick],
        "written by an engine's rows": writing.write_as_an_engine(
            host, bound, PROMPTS[:2], seeds=SEEDS[:2], tokens=12, temperature=0.8, top_k=50, top_p=0.95
        ),
        "stored": detecting.stored_facts(folder),
        "detected by the stored detector": [detecting.all_of(one) for one in again],
    }


SECTIONS = {f"real models: {mark}": functools.partial(mark_section, mark) for mark in worlds.REAL}
