"""Rings, payloads, attribution and streams, measured (docs/rings.md).

    python benchmarks/attribution.py write --out DIR --device cuda
    python benchmarks/attribution.py attack --out DIR --device cuda
    python benchmarks/attribution.py score --out DIR [--reader smollm2-135m --device cuda]
    python benchmarks/attribution.py table [CHAT/texts.jsonl …] --out DIR
    python benchmarks/attribution.py piggyback --out DIR
    python benchmarks/attribution.py speed --out DIR
    python benchmarks/attribution.py streams [TEXTS.jsonl] --out DIR

``write`` lets a host continue the package's openings at temperature 1 and answer its requests at 0.7, top-p
0.9: with payloads of a plain key, and as random members of a ring. The payloads are below 16, so that the
same texts are read with 4, 8 and 16 bits; which message it is makes no difference, as all messages relate to
the others alike. ``attack`` translates the texts to Portuguese and back. ``score`` gives per kind, condition
and attack the shares found, attributable, read exactly and misread; for payloads also what the same z would
be in rings of other sizes; with a reader, which knows the prompts, the same as it reads. ``table`` writes
DIR/genuine.json, which docs/security.md shows, from what ``score`` left with and without a reader; files of
`benchmarks/chat.py` add texts of plain keys. ``piggyback`` puts words of an attacker into genuine texts.
``speed`` times rings and many keys. ``streams`` follows unmarked texts, by default those of the package,
under 24 keys: at most 1% ever reach e = 100.

Rows are appended as they come; a run that is started again does what is missing, and no new batch begins
after --seconds.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from chat import key as chat_key
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr
from script_inputs import (
    LEVEL,
    RINGS,
    Judged,
    judge,
    named_key,
    read_rows,
    script_parser,
    share_in_ring,
)

import dewmark
from dewmark.arrays import F32
from dewmark.attacks.stealing.piggyback import piggyback, replaced, spliced
from dewmark.attacks.stealing.regression import as_dew
from dewmark.attacks.translation.machine_translation import NeuralEngine
from dewmark.batch.negatives import Negatives
from dewmark.config import parse_settings
from dewmark.core.keys import Key
from dewmark.core.projections import draw_float32_matrix
from dewmark.decoding import Decoding
from dewmark.detector import detect_texts
from dewmark.dew.reading import Reader
from dewmark.dew.ring import EpochMatrices, KeyMatrices, random_member
from dewmark.dew.sequential import STRENGTHS, SequentialDetector
from dewmark.hosts.base import Host
from dewmark.hosts.expectations import open_reader
from dewmark.lab.prompts import openings, requests
from dewmark.passages import locate
from dewmark.scheme import BoundScheme
from dewmark.storage import append_jsonl
from dewmark.types import ForgeryTest
from dewmark.watermark import identify, load_scheme

Row = dict[str, Any]
BITS = (4, 8, 16)
READ = ("read", "misread")
LEVELS = (1e-2, 1e-4)
MEMBERS = {"openings": 65_536, "chat": 16_384}  # what docs/security.md recommends for such texts
PAYLOADS = 2  # per key and condition


def bound_of(args: argparse.Namespace, row: Row, host: Host | None = None) -> BoundScheme:
    """The scheme under the key of a row; to write, with a host."""
    key = named_key(f"attribution-{row['key']}", members=row["members"])
    return load_scheme("dew", key=key, host=host, settings=parse_settings(args.set))


class Clock:
    """What was done when, and whether more may begin."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._began = seconds, time.perf_counter()

    def say(self, what: str) -> None:
        """Print a line."""
        print(f"[{time.perf_counter() - self._began:6.1f}] {what}", flush=True)

    def check(self) -> None:
        """Raise TimeoutError if no new batch may begin."""
        if time.perf_counter() - self._began > self._seconds:
            raise TimeoutError


def write(args: argparse.Namespace, clock: Clock) -> None:
    """Marked texts with payloads, and of members of a ring."""
    host = dewmark.load_host(args.host, device=args.device)
    asked = [host.chat.render([{"role": "user", "content": row["text"]}]) for row in requests()]
    served = Decoding(max_new_tokens=args.tokens, temperature=0.7, top_p=0.9)
    conditions = {
        "openings": ([row["text"] for row in openings()], Decoding(max_new_tokens=args.tokens)),
        "chat": (asked, served),
    }
    file = args.out / "texts.jsonl"
    done = {row["id"] for row in read_rows(file)}
    for number in args.keys:
        for condition, (prompts, decoding) in conditions.items():
            for kind in args.kinds:
                ring = MEMBERS[condition] if kind == "ring" else 1
                base = {"kind": kind, "key": number, "condition": condition, "members": ring}
                bound = bound_of(args, base, host)
                size = -(-args.texts // PAYLOADS) if kind == "payload" else args.texts
                for start in range(0, args.texts, size):
                    some = prompts[start : min(start + size, args.texts)]
                    name = f"{kind}-{number}-{condition}-{start}"
                    if f"{name}+0" in done:
                        continue
                    clock.check()
                    payload = (7 * (start // size) + 5 * number + 1) % 16 if kind == "payload" else None
                    seeds = [1_000_000 * (number + 1) + start + i for i in range(len(some))]
                    made = host.generate(
                        some,
                        scheme=bound.marking_as(payload=payload),
                        seeds=seeds,
                        decoding=decoding,
                        batch_size=len(some),
                    )
                    members = [random_member(seed, ring) for seed in seeds]
                    rows = [
                        {
                            "id": f"{name}+{i}",
                            **base,
                            "payload": payload,
                            "member": members[i] if kind == "ring" else None,
                            "prompt": some[i],
                            "text": each.text.strip() or ".",
                        }
                        for i, each in enumerate(made)
                    ]
                    append_jsonl(file, rows)
                    clock.say(f"{name}: {len(rows)} texts")


def attack(args: argparse.Namespace, clock: Clock) -> None:
    """The texts in Portuguese, and from there back in English."""
    rows, file = read_rows(args.out / "texts.jsonl"), args.out / "attacked.jsonl"
    done = {(row["id"], row["attack"]) for row in read_rows(file)}
    there, back = NeuralEngine("en", "pt", args.device), NeuralEngine("pt", "en", args.device)
    for start in range(0, len(rows), args.batch):
        some = [r for r in rows[start : start + args.batch] if (r["id"], "round-trip") not in done]
        if not some:
            continue
        clock.check()
        portuguese = there.translate([row["text"] for row in some], task="", progress=_silent)
        english = back.translate([text or "." for text in portuguese], task="", progress=_silent)
        for name, texts in (("translate", portuguese), ("round-trip", english)):
            append_jsonl(
                file,
                [
                    row | {"attack": name, "text": text.strip() or "."}
                    for row, text in zip(some, texts, strict=True)
                ],
            )
        clock.say(f"attacked {start + len(some)} of {len(rows)}")


def _silent(*_: object) -> None:
    pass


def score(args: argparse.Namespace, clock: Clock) -> None:
    """Shares found, attributable, read and misread."""
    reader = open_reader(args.reader, device=args.device, on_disk=False)
    rows = [*read_rows(args.out / "texts.jsonl"), *read_rows(args.out / "attacked.jsonl")]
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        attack_name = row.get("attack") or "none"
        if row["kind"] in args.kinds and not (reader is not None and attack_name == "translate"):
            groups[row["kind"], row["condition"], attack_name].append(row)
    name = "scores" if reader is None else "scores-read"
    file, table = args.out / f"{name}.json", []
    kept = args.out / f"{name}.jsonl"
    kept.unlink(missing_ok=True)
    for (kind, condition, attack_name), mine in groups.items():
        clock.check()
        found: dict[str, list[float]] = defaultdict(list)
        for number in sorted({row["key"] for row in mine}):
            own = [row for row in mine if row["key"] == number]
            bound = bound_of(args, own[0]).reading_with(reader)
            per_text = score_ring(bound, own, found) if kind == "ring" else score_payload(bound, own, found)
            append_jsonl(kept, [{"id": r["id"], "attack": attack_name, **p} for r, p in per_text])
        summed = {"kind": kind, "condition": condition, "attack": attack_name, "texts": len(mine)}
        summed |= {key: round(float(np.mean(values)), 4) for key, values in found.items()}
        table.append(summed)
        clock.say(json.dumps(summed))
        file.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def _prompts(bound: BoundScheme, rows: Sequence[Row]) -> list[str] | None:
    return None if bound.expectations is None else [row["prompt"] for row in rows]


def score_payload(
    bound: BoundScheme, rows: Sequence[Row], found: dict[str, list[float]]
) -> list[tuple[Row, Row]]:
    """Texts with payloads of a plain key."""
    texts, prompts = [row["text"] for row in rows], _prompts(bound, rows)
    for bits in BITS:
        for row, each in zip(
            rows, detect_texts(bound.reading_payloads(bits), texts, prompts=prompts), strict=True
        ):
            for level in LEVELS:
                found[f"found with {bits} bits, p < {level:g}"].append(each.p_value < level)
            found[f"read with {bits} bits"].append(each.payload == row["payload"])
            found[f"misread with {bits} bits"].append(each.payload not in (None, row["payload"]))
    kept = []
    for payload in sorted({row["payload"] for row in rows}):
        same = [row for row in rows if row["payload"] == payload]
        writer = as_dew(bound.writing(payload=payload))
        told = judge(writer, [row["text"] for row in same], _prompts(bound, same))
        for row, each in zip(same, told, strict=True):
            _count(each, found)
            tails = {str(members): test.to_dict() for members, test in each.tests.items()}
            kept.append((row, {"z": each.z, "tests": tails}))
    return kept


def _count(each: Judged, found: dict[str, list[float]]) -> None:
    for level in LEVELS:
        found[f"found, p < {level:g}"].append(each.p_value(1) < level)
    found["mean z"].append(each.z)
    found["mean z_tail"].append(each.test(1).z_tail)
    found["mean z of the deep tail"].append(each.test(RINGS[-1]).z_tail)
    for ring in RINGS:
        found[f"found in a ring of {ring}, p < 0.01"].append(each.p_value(ring) <= LEVELS[0])
        found[f"attributable in a ring of {ring}"].append(each.attributable(ring))


def score_ring(
    bound: BoundScheme, rows: Sequence[Row], found: dict[str, list[float]]
) -> list[tuple[Row, Row]]:
    """Texts of members of a ring."""
    told = detect_texts(bound, [row["text"] for row in rows], prompts=_prompts(bound, rows))
    for row, each in zip(rows, told, strict=True):
        found["attributable"].append(each.attribution is not None and each.attribution.attributable)
        found["member read"].append(each.member == row["member"])
        found["member misread"].append(each.member not in (None, row["member"]))
        for level in LEVELS:
            found[f"found, p < {level:g}"].append(each.p_value < level)
        found["mean z"].append(each.z)
    return [
        (row, {"z": each.z, "p": each.p_value, "test": each.attribution and each.attribution.to_dict()})
        for row, each in zip(rows, told, strict=True)
    ]


def table(args: argparse.Namespace, clock: Clock) -> None:
    """All shares of genuine texts in one file; attribution by today's rule, from the z of each text."""
    members = {row["id"]: row["members"] for row in read_rows(args.out / "texts.jsonl")}
    rows: list[Row] = []
    for name, reader in (("scores", None), ("scores-read", f"{args.host}, with the prompt")):
        if not (args.out / f"{name}.json").exists():
            continue
        scored: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
        for each in read_rows(args.out / f"{name}.jsonl"):
            kind, _, condition, _ = each["id"].split("-")
            scored[kind, condition, each["attack"]].append(each)
        for summed in json.loads((args.out / f"{name}.json").read_text(encoding="utf-8")):
            kind, condition, attack_name = summed["kind"], summed["condition"], summed["attack"]
            mine = scored[kind, condition, attack_name]
            keys = {each["id"].split("-")[1] for each in mine}
            about = {"texts": f"{condition}, {args.tokens} tokens", "attack": attack_name, "reader": reader}
            about |= {"number": len(mine), "keys": len(keys), "kind": kind}
            if kind == "payload":
                judged = [_judged(each) for each in mine]
                row = about | _shares_of(judged)
                for bits in BITS:
                    row |= {f"{word} {bits} bits": summed[f"{word} with {bits} bits"] for word in READ}
            else:
                ring = members[mine[0]["id"]]
                passed = [each["p"] <= LEVEL and attributable(each["test"], ring) for each in mine]
                row = about | {"members": ring, "z": round(float(np.mean([each["z"] for each in mine])), 2)}
                row |= {"found": {ring: summed["found, p < 0.01"]}, "attributable": {ring: _share(passed)}}
                row |= {name: summed[name] for name in ("member read", "member misread")}
            rows.append(row)
    rows += [row for file in args.files for row in plain_rows(file)]
    for row in rows:
        clock.say(json.dumps(row))
    args.out.joinpath("genuine.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def plain_rows(file: Path) -> list[Row]:
    """The shares of DEW's texts that `benchmarks/chat.py` wrote, for each setting and attack."""
    groups: dict[tuple[str, str], list[tuple[int, list[Judged]]]] = defaultdict(list)
    for row in read_rows(file):
        of = row["of"]
        if of["scheme"] == "dew" and of.get("attack") != "translate":
            bound = as_dew(load_scheme("dew", key=chat_key(f"chat-{of['key']}")))
            name = f"{of['setting']}, {of['tokens']} tokens"
            groups[name, of.get("attack", "none")].append((of["key"], judge(bound, row["texts"])))
    rows = []
    for (texts, attack_name), found in groups.items():
        judged = [each for _, mine in found for each in mine]
        about = {"texts": texts, "attack": attack_name, "reader": None, "number": len(judged)}
        rows.append(about | {"keys": len(found), "kind": "plain"} | _shares_of(judged))
    return rows


def _shares_of(judged: Sequence[Judged]) -> Row:
    found = {ring: _share([each.p_value(ring) <= LEVEL for each in judged]) for ring in RINGS}
    passed = {ring: _share([each.attributable(ring) for each in judged]) for ring in RINGS}
    mean = round(float(np.mean([each.z for each in judged])), 2)
    return {"z": mean, "found": found, "attributable": passed}


def _share(passed: Sequence[bool]) -> float:
    return round(float(np.mean(passed)), 4)


def _judged(row: Row) -> Judged:
    return Judged(row["z"], {int(n): ForgeryTest(**test) for n, test in row["tests"].items()})


def attributable(test: Row | None, ring: int) -> bool:
    """Whether head and tail of a text of a ring's member pass."""
    return test is not None and float(ndtr(-test["z_tail"])) <= LEVEL * share_in_ring(test["z_head"], ring)


def speed(args: argparse.Namespace, clock: Clock) -> None:
    """Milliseconds per text for rings, and seconds for 1,000 keys."""
    settings = parse_settings(args.set)
    texts = [text[:1200] for text in Negatives.packaged().texts if len(text) > 800][:64]
    table: dict[str, float] = {"texts": float(len(texts))}
    bounds = {
        f"ring of {n}": load_scheme("dew", key=Key(bytes(range(32)), members=n), settings=settings)
        for n in RINGS
    }
    plain = bounds["ring of 1"]
    bounds |= {f"payload of {bits} bits": plain.reading_payloads(bits) for bits in BITS}
    for name, bound in bounds.items():
        bound.detect_batch(texts[:2])
        table[f"{name}, batch, ms per text"] = 1e3 * _best(bound.detect_batch, texts) / len(texts)
        table[f"{name}, single text, ms"] = 1e3 * _best(bound.detect, texts[0])
        clock.say(name)
    keys = [named_key(f"speed-{i}") for i in range(1000)]
    for call in ("first", "second"):
        started = time.perf_counter()
        identify(texts[:1], keys, settings=settings)
        table[f"1,000 keys, {call} call, s"] = time.perf_counter() - started
    table = {name: round(value, 3) for name, value in table.items()}
    clock.say(json.dumps(table, indent=1))
    args.out.mkdir(parents=True, exist_ok=True)
    args.out.joinpath("speed.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def _best(run: Callable[[Any], object], given: object) -> float:
    times = []
    for _ in range(5):
        started = time.perf_counter()
        run(given)
        times.append(time.perf_counter() - started)
    return min(times)


class KeysWatching(SequentialDetector):
    """One stream watched under many keys, each for itself: ``most`` (keys,) is the largest log E so far."""

    def __init__(self, reader: Reader, uses: KeyMatrices) -> None:
        super().__init__(reader, uses)
        self.most = np.zeros(uses.count)

    def _score(self, unit: F32, context: F32) -> None:
        super()._score(unit, context)
        logs = STRENGTHS[:, None] * self._A - 0.5 * np.square(STRENGTHS[:, None]) * self._V
        self.most = np.maximum(self.most, logsumexp(logs, axis=0) - np.log(len(STRENGTHS)))


def streams(args: argparse.Namespace, clock: Clock) -> None:
    """The share of unmarked texts that ever cross, under many keys at once."""
    rows = [row for file in args.files for row in read_rows(file)]
    texts = [row.get("text") or row["response"] for row in rows] or Negatives.packaged().texts
    keys = [named_key(f"streams-{number}") for number in range(args.stream_keys)]
    bound = as_dew(load_scheme("dew", key=keys[0], settings=parse_settings(args.set)))
    d_T, d_C = bound.fold.product.shape
    W = np.stack([draw_float32_matrix(key, d_T=d_T, d_C=d_C) for key in keys])
    uses = KeyMatrices([EpochMatrices(None, len(keys), 0, W)])
    most: list[NDArray[np.float64]] = []
    args.out.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts, start=1):
        watched = KeysWatching(bound.reader, uses)
        watched.update(text)
        watched.finish()
        most.append(watched.most)
        if number % 250 == 0 or number == len(texts):
            largest = np.stack(most)
            table: Row = {"texts": number, "keys": len(keys)}
            for level in LEVELS:
                over = largest >= -np.log(level)
                table[f"ever at {level:g}"] = float(over.mean())
                table[f"ever at {level:g}, worst key"] = float(over.mean(axis=0).max())
            clock.say(json.dumps(table))
            args.out.joinpath("streams.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def tampered(args: argparse.Namespace, clock: Clock) -> None:
    """Words of an attacker in genuine texts of a ring: what verdict, attribution and passages say."""
    rows = [row for row in read_rows(args.out / "texts.jsonl") if row["kind"] == "ring" and row["key"] == 0]
    table = []
    for condition in MEMBERS:
        mine = [row for row in rows if row["condition"] == condition and len(row["text"].split()) > 80]
        if len(mine) < 2:
            continue
        bound = bound_of(args, mine[0])
        others = [word for row in mine for word in row["text"].split()]
        for kind, number in (("replaced", 1), ("replaced", 5), ("replaced", 20), ("inserted", 40)):
            random, found = Random(number), []
            for row, other in itertools.pairwise(mine[: args.texts // 4 + 1]):
                words = row["text"].split()
                changed, places = (
                    replaced(words, others, number, random)
                    if kind == "replaced"
                    else spliced(words, random.sample(other["text"].split(), number), random)
                )
                search = functools.partial(locate, bound=bound) if kind == "inserted" else None
                found.append(piggyback(bound.detect, search, changed, places))
            tests = [each.detection.attribution for each in found]
            covered = [each.covered for each in found if each.covered is not None]
            summed = {
                "condition": condition,
                kind: number,
                "texts": len(found),
                "marked": float(np.mean([each.detection.is_marked for each in found])),
                "attributable": float(np.mean([t is not None and t.attributable for t in tests])),
                "mean z": float(np.mean([each.detection.z for each in found])),
                "foreign words in marked passages": float(np.mean(covered)) if covered else None,
            }
            table.append(summed)
            clock.say(json.dumps(summed))
            args.out.joinpath("piggyback.json").write_text(
                json.dumps(table, indent=1) + "\n", encoding="utf-8"
            )


PARTS = {
    "write": write,
    "attack": attack,
    "score": score,
    "table": table,
    "piggyback": tampered,
    "speed": speed,
    "streams": streams,
}


def main() -> None:
    """Run one of the parts."""
    parser = script_parser(__doc__)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("files", nargs="*", type=Path, help="for streams and table: texts")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the scheme")
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--reader", help="for score: a model that reads the texts after their prompts")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--texts", type=int, default=200, help="per key, condition and kind")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--keys", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", default=["payload", "ring"], choices=["payload", "ring"])
    parser.add_argument("--batch", type=int, default=400, help="texts translated at once")
    parser.add_argument("--stream-keys", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no new batch after this")
    args = parser.parse_args()
    clock = Clock(args.seconds)
    try:
        PARTS[args.part](args, clock)
    except TimeoutError:
        clock.say("stopped: no time left")


if __name__ == "__main__":
    main()
