"""Strength against variety in two settings, for a grid of configurations (docs/tune.md).

    python benchmarks/pareto.py --out pareto/ --grid alpha=0.5,0.8 --grid k=3,5
    python benchmarks/pareto.py --out pareto/ --config word: --config exp: scheme=exp

The host answers the package's requests in its chat template at temperature 0.7 and top-p 0.9 ("chat"), and
continues its openings at temperature 1 ("openings"). Each configuration marks the same prompts with the same
seeds under several keys. Every cell is one JSON file and one JSONL file of texts, so a stopped run resumes:
mean z and the shares with p < 0.01 and p < 1e-4 of marked texts and, under the same keys, of the unmarked
ones, all before and after 50% of the words were deleted; distinct content words, unlisted words and
repetition, paired with the unmarked text of the same prompt and seed; with ``--divergence-texts`` also the
divergence from the host's own distribution per step.

``front`` marks configurations that no other beats in strength and variety of both settings at once.
``--grid`` gives values for a product, ``--config`` single configurations; ``scheme=NAME`` names another
scheme than dew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from script_inputs import named_key, parse_with_configs, script_parser, word_list

import dewmark
from dewmark.config import config_hash
from dewmark.decoding import Decoding
from dewmark.detector import detect_texts
from dewmark.hosts.base import Host
from dewmark.lab.evaluation.divergence import divergence
from dewmark.lab.evaluation.wording import TextPair, Words, paired_wording, wording
from dewmark.lab.prompts import openings, requests
from dewmark.lab.tuning import delete_words, pareto_front, parse_grid
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme
from dewmark.storage import append_jsonl, atomic_write, read_jsonl

LEVELS = (1e-2, 1e-4)
DELETED = 0.5


@dataclass(frozen=True)
class Setting:
    """One way to decode, with its prompts."""

    name: str
    prompts: Sequence[str]
    decoding: Decoding


def main() -> None:
    """Run the benchmark."""
    args = _arguments()
    out, listed = Path(args.out), word_list(args.words)
    out.mkdir(parents=True, exist_ok=True)
    host = dewmark.load_host(args.host, device=args.device, dtype=args.dtype)
    settings = [each for each in _settings(host, args) if each.name in args.settings]
    cells: dict[str, dict[str, dict[str, Any]]] = {}
    for (name, configuration), setting in itertools.product(_configurations(args), settings):
        cell = _cell(name, configuration, setting, host, listed, out, args)
        cells.setdefault(name, {})[setting.name] = cell
    _table(cells, [setting.name for setting in settings], out)


def _settings(host: Host, args: argparse.Namespace) -> Iterator[Setting]:
    length = {"max_new_tokens": args.tokens, "min_new_tokens": args.tokens}
    asked = [row["text"] for row in requests()[: args.texts]]
    answers = [host.chat.render([{"role": "user", "content": text}]) for text in asked]
    yield Setting("chat", answers, Decoding(temperature=0.7, top_p=0.9, **length))
    begun = [row["text"] for row in openings()[: args.texts]]
    yield Setting("openings", begun, Decoding(no_repeat_ngram=4, **length))


def _configurations(args: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """Those of --config, then the product of --grid."""
    found = list(args.config) if args.named else []
    grid = parse_grid(args.grid)
    for values in itertools.product(*grid.values()) if grid else ():
        chosen = dict(zip(grid, values, strict=True))
        found.append((" ".join(f"{name}={value}" for name, value in chosen.items()), chosen))
    return found or [("dew", {})]


def _cell(
    name: str,
    configuration: dict[str, Any],
    setting: Setting,
    host: Host,
    listed: Words,
    out: Path,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """The figures of one configuration in one setting, from its file or measured now."""
    plain = _texts(out, setting, host, None, -1, args)
    rest = dict(configuration)
    scheme = rest.pop("scheme", "dew")
    whole = SCHEMES[scheme]().with_settings(rest).to_dict()
    asked = [scheme, whole, args.keys, args.words, args.divergence_texts, _identity(setting, host)]
    path = out / f"{setting.name}-{config_hash(*asked)}.json"
    if path.exists():
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return stored
    started = time.perf_counter()
    found: dict[str, list[tuple[float, float]]] = {}
    pairs: list[TextPair] = []
    marked: list[str] = []
    schemes: list[BoundScheme] = []
    for number in range(args.keys):
        bound = dewmark.load_scheme(scheme, key=named_key(f"pareto {number}"), settings=rest, host=host.info)
        schemes.append(bound)
        texts = _texts(out, setting, host, bound, number, args)
        if (move := getattr(bound, "on", None)) is not None:
            bound = move(str(host.device))
        marked += texts
        pairs += [TextPair(str(i), *both) for i, both in enumerate(zip(texts, plain, strict=True))]
        for kind, mine in (("marked", texts), ("unmarked", plain)):
            cut = [delete_words(text, DELETED, seed=i) for i, text in enumerate(mine)]
            found.setdefault(kind, []).extend(_scores(bound, mine, args.batch_size))
            found.setdefault(f"{kind}, deleted", []).extend(_scores(bound, cut, args.batch_size))
    cell = {
        "configuration": name,
        "scheme": scheme,
        "settings": rest,
        "setting": setting.name,
        "texts": len(plain),
        "keys": args.keys,
        **{kind: _summary(scores) for kind, scores in found.items()},
        "paired": paired_wording(pairs, listed=listed).to_dict(),
        "wording": {"marked": _means(marked, listed), "unmarked": _means(plain, listed)},
        **_divergence(schemes, setting, host, plain, args),
        "seconds": round(time.perf_counter() - started, 1),
    }
    with atomic_write(path) as stream:
        stream.write((json.dumps(cell, indent=1) + "\n").encode())
    print(json.dumps(cell), flush=True)
    return cell


def _divergence(
    schemes: Sequence[BoundScheme],
    setting: Setting,
    host: Host,
    plain: Sequence[str],
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Nats per step from the host's distribution, at the places of unmarked texts."""
    number = args.divergence_texts
    if number < 2 or len(schemes) < 2 or schemes[0].needs.drafts:
        return {}
    found = divergence(
        host, schemes, setting.prompts[:number], plain[:number], decoding=setting.decoding, steps=48
    )
    return {"divergence": found.to_dict()}


def _identity(setting: Setting, host: Host) -> list[Any]:
    return [host.info.identity, list(setting.prompts), setting.decoding.to_dict()]


def _texts(
    out: Path, setting: Setting, host: Host, bound: BoundScheme | None, number: int, args: argparse.Namespace
) -> list[str]:
    """Texts of one key, or the unmarked ones, from their file or written now."""
    made_by = None if bound is None else [bound.scheme.name, bound.scheme.to_dict(), bound.fingerprint]
    name = f"{setting.name}-{config_hash(made_by, _identity(setting, host))}.jsonl"
    path = out / "texts" / name
    if path.exists():
        rows = [row["text"] for _, row in read_jsonl(path)]
        if len(rows) == len(setting.prompts):
            return rows
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    made = host.generate(
        setting.prompts,
        scheme=bound,
        seeds=range(len(setting.prompts)),
        decoding=setting.decoding,
        batch_size=args.batch_size,
    )
    about = {"setting": setting.name, "key": number, "made_by": None if made_by is None else made_by[:2]}
    append_jsonl(
        path, [{"id": i, "prompt": one.prompt, "text": one.text, **about} for i, one in enumerate(made)]
    )
    return [one.text for one in made]


def _scores(bound: BoundScheme, texts: Sequence[str], size: int) -> list[tuple[float, float]]:
    """z and p of each text."""
    texts = [text.replace("\0", " ") for text in texts]
    found = (
        each
        for start in range(0, len(texts), size)
        for each in detect_texts(bound, texts[start : start + size])
    )
    return [(0.0 if np.isnan(each.z) else each.z, each.p_value) for each in found]


def _summary(scores: Sequence[tuple[float, float]]) -> dict[str, float]:
    z, p = np.array(scores).T
    return {"z": float(z.mean()), **{f"p<{level:g}": float((p < level).mean()) for level in LEVELS}}


def _means(texts: Sequence[str], listed: Words) -> dict[str, float | None]:
    rows = [wording(text, listed=listed).to_dict() for text in texts]
    columns = {name: [row[name] for row in rows if row[name] is not None] for name in rows[0]}
    return {name: float(np.mean(values)) if values else None for name, values in columns.items()}


def _table(cells: dict[str, dict[str, dict[str, Any]]], settings: Sequence[str], out: Path) -> None:
    """Print all cells, with the front, and write them to ``pareto.json``."""
    names = list(cells)
    points = [
        [
            value
            for setting in settings
            for cell in (cells[name][setting],)
            for value in (cell["marked"]["z"], cell["paired"]["distinct_content"]["value"])
        ]
        for name in names
    ]
    front = set(pareto_front(points))
    columns = ["configuration", "front"]
    for setting in settings:
        columns += [f"{setting}: z, p < 0.01 / 1e-4", "50% deleted", "unmarked p < 0.01"]
        columns += ["distinct content", "unlisted", "repetition", "nats under one key, of the average"]
    print("|", " | ".join(columns), "|")
    print("| --- " * len(columns) + "|")
    for i, name in enumerate(names):
        row = [name, "yes" if i in front else ""]
        for setting in settings:
            cell = cells[name][setting]
            row += [_found(cell["marked"]), _found(cell["marked, deleted"])]
            row += [f"{cell['unmarked']['p<0.01']:.3f} / {cell['unmarked, deleted']['p<0.01']:.3f}"]
            row += [_interval(cell["paired"][m]) for m in ("distinct_content", "unlisted", "repetition")]
            moved = cell.get("divergence")
            row.append(f"{moved['mean']:.3f}, {_interval(moved['of_average'])}" if moved else "–")
        print("|", " | ".join(row), "|")
    result = {"front": [names[i] for i in sorted(front)], "cells": cells}
    with atomic_write(out / "pareto.json") as stream:
        stream.write((json.dumps(result, indent=1) + "\n").encode())


def _found(summary: dict[str, float]) -> str:
    return f"{summary['z']:.2f}, {summary['p<0.01']:.3f} / {summary['p<0.0001']:.3f}"


def _interval(found: dict[str, float] | None) -> str:
    return "–" if found is None else f"{found['value']:+.4f} ± {(found['high'] - found['low']) / 2:.4f}"


def _arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--settings", nargs="+", default=["chat", "openings"], choices=["chat", "openings"])
    parser.add_argument("--grid", action="append", default=[], metavar="NAME=V,V,…")
    parser.add_argument("--words", metavar="FILE", help="word list, one form per line; else the package's")
    parser.add_argument("--divergence-texts", type=int, default=0, help="measure divergence on so many texts")
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", required=True)
    args = parse_with_configs(parser)
    args.named = args.config != [("dew", {})] or not args.grid
    return args


if __name__ == "__main__":
    main()
