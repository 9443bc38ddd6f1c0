"""Stored detectors, engines' processors, and the reports of commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tests.golden.api import commands, detecting, numbers, worlds, writing
from tests.golden.marks import PROMPTS, SEEDS, unmarked

DETECTORS = Path(__file__).parent / "detectors"
"""Detectors that were exported when the record was made; they must stay readable."""

KEPT = {
    "lexicon": "lexicon (the default)",
    "tokens-window": "tokens bias, window white contexts",
    "kgw": "kgw",
}
_EXPORTED = (
    *KEPT.values(),
    "tokens bias, composed raw contexts",
    "tokens bias, window raw contexts (the paper)",
    "tokens bias, context meaning only",
    "tokens bias, no meaning",
    "atw",
    "dipmark",
    "exp",
    "ksemstamp",
    "ewd",
    "morphmark",
    "pasa",
    "semstamp",
    "simkey",
    "sir",
    "sweet",
    "synthid",
    "ts",
    "unbiased",
    "unigram",
    "waterpool",
    "xsir",
)
_ENGINES = (
    "lexicon (the default)",
    "tokens bias, composed white contexts",
    "tokens bias, window raw contexts (the paper)",
    "kgw",
    "exp",
    "synthid",
)


def _texts(world: worlds.World, mark: str) -> list[str]:
    """One text with the mark and one without."""
    (marked,) = writing.write(world.host(mark), world.bind(mark), PROMPTS[:1], seeds=SEEDS[:1], tokens=50)
    return [marked["text"], unmarked(0)]


def _judged(bound: Any, texts: list[str]) -> list[dict[str, Any]]:
    found = detecting.detect(bound, texts, prompts=[PROMPTS[0], None])
    return [detecting.all_of(one) for one in found]


def exported(world: worlds.World) -> dict[str, Any]:
    """Detectors written to folders now: what lies in them, and what they say when read again."""
    found = {}
    for number, mark in enumerate(_EXPORTED):
        bound, folder = world.bind(mark), world.folder / f"detector {number}"
        detecting.export(bound, folder)
        found[mark] = detecting.stored_facts(folder)
        if not detecting.needs_its_host(bound):
            found[mark]["detected"] = _judged(detecting.load(folder), _texts(world, mark))
    return found


def kept(world: worlds.World) -> dict[str, Any]:
    """The detectors in the repository, read by the code of now."""
    texts = {name: _texts(world, mark) for name, mark in KEPT.items()}
    return {name: _judged(detecting.load(DETECTORS / name), texts[name]) for name in KEPT}


def keep_detectors(world: worlds.World) -> None:
    """Export the detectors that the repository keeps; those that are there stay."""
    DETECTORS.mkdir(exist_ok=True)
    for name, mark in KEPT.items():
        if not (DETECTORS / name).exists():
            detecting.export(world.bind(mark), DETECTORS / name)


def engines(world: worlds.World) -> dict[str, Any]:
    """Texts from the processors for llama.cpp and vLLM, on stand-ins for the two."""
    found = {}
    for mark in _ENGINES:
        host, bound = world.host(mark), world.bind(mark)
        found[mark] = {
            "llama.cpp": [
                writing.write_in_llama_cpp(host, bound, prompt, seed=seed, tokens=16)
                for prompt, seed in zip(PROMPTS[:2], SEEDS, strict=False)
            ],
            "vLLM": writing.write_in_vllm(world, mark, PROMPTS, seeds=SEEDS, tokens=16),
        }
    return found


def evaluate_command(world: worlds.World) -> dict[str, Any]:
    """A report on files of scores: marked, attacked, unmarked and human texts under three runs."""
    folder = world.folder / "evaluate"
    folder.mkdir()
    files = {}
    for name, mean, seed in (("marked", 3.0, 0), ("moved", 1.5, 1), ("unmarked", 0.0, 2), ("human", 0.1, 3)):
        z = np.random.default_rng(seed).normal(mean, 1.0, size=60)
        files[name] = folder / f"{name}.jsonl"
        rows = ({"id": i, "z": v, "tokens_scored": 50 + i, "run": i % 3} for i, v in enumerate(z.tolist()))
        rows = ({**row, "p_value": float(np.exp(-max(row["z"], 0.0)))} for row in rows)
        files[name].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    out = folder / "report"
    said = commands.command(
        *("evaluate", "--positives", files["marked"], "--positives", f"moved={files['moved']}"),
        *("--negatives", files["unmarked"], "--human", files["human"], "--seeds", "run"),
        *("--out", out, "--json", "-q"),
    )
    return {
        "said": numbers.leaves(json.loads(said)),
        "results": commands.csv_numbers(out / "results.csv"),
        "scores": commands.score_columns(out / "scores.jsonl"),
    }


def reproduce_command(world: worlds.World) -> dict[str, Any]:
    """The main table from prompts to report, on a tiny host: its texts' scores and its tables."""
    out = world.folder / "reproduced"
    commands.reproduce(
        world.folder, out, ["the paper's", "the default", "kgw", "waterpool"], texts=4, tokens=40
    )
    return {
        "scores": commands.score_columns(out / "scores.jsonl"),
        "evaluation": numbers.leaves(json.loads((out / "evaluation.json").read_text(encoding="utf-8"))),
        "results": commands.csv_numbers(out / "results.csv"),
    }


SECTIONS = {
    "detectors exported now": exported,
    "detectors kept in the repository": kept,
    "engines": engines,
    "evaluate": evaluate_command,
    "reproduce": reproduce_command,
}
