"""Forging DEW from a few texts of one key, or 2,000 of a ring, on a real host (docs/security.md).

    python benchmarks/stealing.py write --out DIR --keys 0 --device cuda
    python benchmarks/stealing.py forge --out DIR --keys 0 --device cuda
    python benchmarks/stealing.py ring --out DIR --device cuda
    python benchmarks/stealing.py score --out DIR [--reader smollm2-135m --device cuda]

Two settings: openings at T 1; chat at T 0.7, top-p 0.9. ``write`` lets the host write texts under one plain
key per ``--keys``, and unmarked ones. ``forge`` is an attacker who knows everything but the key: he learns W
from n texts and writes with it. n texts of one key are what a forger has who is *told* which texts of a ring
share a member, so one curve bounds the attackers of rings of every size. He learns with and without the
host's expectations, and tries strengths and shares of the strength on the tail: first a few texts each,
judged by the victim's detector, then --forged texts in the best way, all in his favour. ``ring`` collects
texts of a ring, a random member each, and forges from them together, by linking texts that
agree, and being told which share a member. ``score`` needs no host, unless one reads: it writes
DIR/scores.json (or scores-read.json), with the shares that are marked and attributable, as one key and in
rings of several sizes, of all keys and of each; and, without a reader, of the best of all ways in its first
texts. docs/results/stealing/forged.json is this file.

Keys may run in parallel processes with one DIR. Rows are appended as they come, a run that is started again
does what is missing, and no new batch begins after --seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from script_inputs import LEVEL, RINGS, Judged, judge, named_key, passes, read_rows, script_parser, shares

import dewmark
from dewmark.config import parse_settings
from dewmark.decoding import Decoding
from dewmark.detector import detect_texts
from dewmark.dew.attribution import head_of
from dewmark.dew.ring import random_member
from dewmark.dew.scheme import BoundDEW
from dewmark.hosts.base import Host
from dewmark.hosts.expectations import open_reader
from dewmark.prompts import openings, requests
from dewmark.storage import append_jsonl
from dewmark_lab.attacks.stealing import sample_size
from dewmark_lab.attacks.stealing.forging import forge_each
from dewmark_lab.attacks.stealing.regression import (
    Baseline,
    Moments,
    as_dew,
    estimate,
    pairs_of,
    pairs_per_text,
    residuals_per_text,
    spend_on_tail,
    sum_moments,
)

F32 = NDArray[np.float32]
Row = dict[str, Any]
MEMBERS = {"openings": 65_536, "chat": 16_384}  # what docs/security.md recommends for such texts
SIZES = {"openings": (1, 2, 3, 4, 8, 16, 64), "chat": (1, 4, 8, 16, 32, 64, 256)}
STRENGTHS, TAILS, EXPECTATIONS = (5.0, 12.0), (None, 0.5, 0.8), ("host", "base")
READ_BY_HOST = 256  # the most texts whose expectations an attacker computes
GROUPS = 24  # the most groups of seen texts that are learned from, each for some of the forged texts
LINKED = (96, 128)  # leading coordinates in which texts are linked


@dataclass(frozen=True)
class Setting:
    """Prompts to collect texts with, others to forge on, and how the host decodes."""

    name: str
    prompts: list[str]
    fresh: list[str]
    decoding: Decoding


@dataclass(frozen=True)
class Forgery:
    """One text to forge: what it is learned from, in which way."""

    of: Row
    W: F32
    prompt: str

    @property
    def name(self) -> str:
        """Identifies it in a file."""
        return json.dumps(self.of)


class Run:
    """The parts that need a host; rows are appended to files as they come."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.began = time.perf_counter()
        self.host: Host = dewmark.load_host(args.host, device=args.device)

    def settings(self) -> Iterator[Setting]:
        """Openings at temperature 1, and chat as it is served; the last prompts are kept for forgers."""
        starts = [row["text"] for row in openings()]
        asked = [self.host.chat.render([{"role": "user", "content": row["text"]}]) for row in requests()]
        served = Decoding(max_new_tokens=self.args.tokens, temperature=0.7, top_p=0.9)
        plain = Decoding(max_new_tokens=self.args.tokens)
        for name, prompts, decoding in (("openings", starts, plain), ("chat", asked, served)):
            if name in self.args.settings:
                kept = min(self.args.forged, len(prompts) // 3)
                yield Setting(name, prompts[:-kept], prompts[-kept:], decoding)

    def append(self, name: str, rows: Sequence[Row]) -> None:
        """Keep rows."""
        append_jsonl(self.args.out / f"{name}.jsonl", rows)
        print(f"[{time.perf_counter() - self.began:6.1f}] {name}: {len(rows)} more", flush=True)

    def check_time(self) -> None:
        """Raise TimeoutError if no new batch may begin."""
        if time.perf_counter() - self.began > self.args.seconds:
            raise TimeoutError

    def texts(
        self, scheme: BoundDEW | None, setting: Setting, name: str, number: int, seed: int
    ) -> list[Row]:
        """Texts for prompts in turn, as many as asked for; those that are there are kept."""
        rows = read_rows(self.args.out / f"{name}.jsonl")
        prompts = list(islice(cycle(setting.prompts), number))
        for start in range(len(rows), number, self.args.batch):
            self.check_time()
            some = prompts[start : start + self.args.batch]
            seeds = range(seed + start, seed + start + len(some))
            made = self.host.generate(
                some, scheme=scheme, seeds=seeds, batch_size=len(some), decoding=setting.decoding
            )
            new = [
                {"prompt": prompt, "seed": its_seed, "text": each.text.strip() or "."}
                for prompt, its_seed, each in zip(some, seeds, made, strict=True)
            ]
            self.append(name, new)
            rows += new
        return rows[:number]

    def unmarked(self, setting: Setting) -> list[Row]:
        """The attacker's own texts without a mark."""
        number = self.args.keys[0]
        seed = 500_000 + 10_000 * number
        name = f"{setting.name}-unmarked-{'ring-' * (self.args.part == 'ring')}{number}"
        return self.texts(None, setting, name, self.args.unmarked, seed)

    def seen(self, setting: Setting, number: int) -> list[Row]:
        """The victim's texts under one plain key."""
        victim = victim_of(self.args, number, self.host)
        most = min(self.args.seen, 256)
        return self.texts(victim, setting, f"{setting.name}-{number}", most, 1_000_000 * (number + 1))

    def write(self) -> None:
        """Marked texts of one key, and unmarked ones."""
        for setting in self.settings():
            self.unmarked(setting)
            for number in self.args.keys:
                self.seen(setting, number)

    def forge(self) -> None:
        """The curve of every setting and key."""
        for setting in self.settings():
            for number in self.args.keys:
                self.forge_one(setting, number)

    def forge_one(self, setting: Setting, number: int) -> None:
        """First a few texts in every way, then many in the best one, for every number of seen texts."""
        rows, unmarked = self.seen(setting, number), self.unmarked(setting)
        victim = victim_of(self.args, number, self.host)
        attacker = Attacker(victim, [row["text"] for row in unmarked], members=MEMBERS[setting.name])
        moments = {"base": attacker.moments(rows), "host": attacker.residuals(self.host, rows[:READ_BY_HOST])}
        file = f"forged-{setting.name}-{number}"
        about = {"setting": setting.name, "key": number}
        tries: list[Forgery] = []
        learned: dict[tuple[int, str], list[F32]] = {}
        for size in self.args.sizes or SIZES[setting.name]:
            for expectation, each in moments.items():
                groups = min(len(each) // size, GROUPS)
                for group in range(groups):
                    W = attacker.estimate(each[group * size : (group + 1) * size], expectation)
                    learned.setdefault((size, expectation), []).append(W)
                for tail in TAILS if groups else ():
                    for strength in STRENGTHS:
                        of = about | {"seen": size, "from": expectation, "tail": tail, "strength": strength}
                        own = [attacker.aimed(W, tail) for W in learned[size, expectation]]
                        tries += [
                            Forgery(of | {"pilot": True, "i": i}, own[i % len(own)], prompt)
                            for i, prompt in enumerate(setting.fresh[: self.args.pilot])
                        ]
        self.forge_all(file, victim, tries, setting)
        final: list[Forgery] = []
        tried = read_rows(self.args.out / f"{file}.jsonl")
        for size, best in best_ways(victim, tried, ring=MEMBERS[setting.name]).items():
            own = [attacker.aimed(W, best["tail"]) for W in learned[size, best["from"]]]
            final += [
                Forgery(best | {"pilot": False, "i": i}, own[i % len(own)], prompt)
                for i, prompt in enumerate(setting.fresh[: self.args.forged])
            ]
        self.forge_all(file, victim, final, setting)

    def forge_all(self, file: str, victim: BoundDEW, wanted: Sequence[Forgery], setting: Setting) -> None:
        """Forge what is missing, many attackers in one batch."""
        done = {json.dumps(row["of"]) for row in read_rows(self.args.out / f"{file}.jsonl")}
        for strength in STRENGTHS:
            missing = [w for w in wanted if w.of["strength"] == strength and w.name not in done]
            for start in range(0, len(missing), self.args.batch):
                self.check_time()
                some = missing[start : start + self.args.batch]
                texts = forge_each(
                    victim,
                    self.host,
                    [each.W for each in some],
                    [each.prompt for each in some],
                    strength=strength,
                    decoding=setting.decoding,
                    seed=start + 100_000 * int(strength) + (50_000 if not some[0].of["pilot"] else 0),
                    batch_size=len(some),
                )
                rows = [
                    {"of": each.of, "prompt": each.prompt, "text": text.strip() or "."}
                    for each, text in zip(some, texts, strict=True)
                ]
                self.append(file, rows)

    def ring(self) -> None:
        """Texts of a ring, a random member each; forged from all, from linked ones, from told ones."""
        for setting in self.settings():
            members, number = MEMBERS[setting.name], self.args.keys[0]
            victim = victim_of(self.args, number, self.host, members=members)
            most = self.args.seen
            rows = self.texts(
                victim, setting, f"ring-{setting.name}-{number}", most, 1_000_000 * (number + 1)
            )
            attacker = Attacker(victim, [row["text"] for row in self.unmarked(setting)], members=members)
            groups: dict[int, list[Row]] = defaultdict(list)
            for row in rows:
                groups[random_member(row["seed"], members)].append(row)
            told = sorted((group for group in groups.values() if len(group) > 1), key=len, reverse=True)
            pairs = attacker.linked(rows)
            right = sum(
                random_member(one["seed"], members) == random_member(other["seed"], members)
                for one, other in pairs
            )
            print(
                f"{right} of {len(pairs)} linked pairs share a member; {len(told)} groups are told",
                flush=True,
            )
            ways = {
                "pooled": [(rows, "base")],
                "linked": [(pair, "host") for pair in pairs],
                "told": [(group, "host") for group in told[:GROUPS]],
            }
            wanted = []
            for way, sources in ways.items():
                learned = [self.learn(attacker, *source) for source in sources]
                for tail in TAILS if learned else ():
                    for strength in STRENGTHS:
                        for i, prompt in enumerate(setting.fresh[: self.args.forged // 2]):
                            size = len(sources[i % len(learned)][0])
                            of = {"setting": setting.name, "members": members, "way": way, "seen": len(rows)}
                            of |= {"group": size, "tail": tail, "strength": strength, "pilot": False, "i": i}
                            wanted.append(
                                Forgery(of, attacker.aimed(learned[i % len(learned)], tail), prompt)
                            )
            self.forge_all(f"forged-ring-{setting.name}-{number}", victim, wanted, setting)

    def learn(self, attacker: Attacker, rows: Sequence[Row], expectation: str) -> F32:
        """W from some texts."""
        of = attacker.moments(rows) if expectation == "base" else attacker.residuals(self.host, rows)
        return attacker.estimate(of, expectation)


class Attacker:
    """What a forger computes from texts; of the victim he uses the public part only."""

    def __init__(self, victim: BoundDEW, unmarked: Sequence[str], *, members: int) -> None:
        self.reader = victim.reader
        self.base = Baseline.of(pairs_of(self.reader, unmarked))
        self.head = head_of(victim.reader, members=members)

    def moments(self, rows: Sequence[Row]) -> list[Moments]:
        """The moments of each text that has any."""
        return [Moments.of(T, C) for T, C in pairs_per_text(self.reader, [row["text"] for row in rows])]

    def residuals(self, host: Host, rows: Sequence[Row]) -> list[Moments]:
        """The same, less what the host expected after the prompt."""
        texts, prompts = ([row[name] for row in rows] for name in ("text", "prompt"))
        return [each for each in residuals_per_text(host, self.reader, texts, prompts) if each.count]

    def estimate(self, moments: Sequence[Moments], expectation: str) -> F32:
        """W (d_T, d_C) from some texts."""
        return estimate(sum_moments(moments), self.base, residual=expectation == "host")

    def aimed(self, W: F32, tail: float | None) -> F32:
        """W with this share of its strength on the tail."""
        return W if tail is None else spend_on_tail(W, self.base.own_variances, self.head, share=tail)

    def linked(self, rows: Sequence[Row]) -> list[list[Row]]:
        """The pairs of texts whose matrices agree best."""
        base = self.base.leading(*LINKED)
        known = [(row, each[0]) for row in rows if (each := self.moments([row]))]
        flat = np.stack([base.residual(each).astype(np.float32).ravel() for _, each in known])
        flat /= np.linalg.norm(flat, axis=1, keepdims=True)
        agree = np.triu(flat @ flat.T, k=1)
        best = np.argsort(-agree, axis=None)[:GROUPS]
        return [[known[i][0], known[j][0]] for i, j in zip(*np.divmod(best, len(known)), strict=True)]


def victim_of(
    args: argparse.Namespace, number: int, host: Host | None = None, *, members: int = 1
) -> BoundDEW:
    """DEW under one of the keys."""
    key = named_key(f"stealing-{number}", members=members)
    info = None if host is None else host.info
    return as_dew(dewmark.load_scheme(key, host=info, settings=parse_settings(args.set)))


def best_ways(victim: BoundDEW, rows: Sequence[Row], *, ring: int) -> dict[int, Row]:
    """For each number of seen texts, the way whose first texts were judged best."""
    tried = [row for row in rows if row["of"]["pilot"]]
    ways: dict[str, list[Judged]] = defaultdict(list)
    for row, each in zip(tried, judge(victim, [row["text"] for row in tried]), strict=True):
        way = {name: value for name, value in row["of"].items() if name not in ("pilot", "i")}
        ways[json.dumps(way)].append(each)
    best: dict[int, tuple[tuple[float, float], Row]] = {}
    for name, found in ways.items():
        way = json.loads(name)
        passed = float(np.mean([each.attributable(ring) for each in found]))
        merit = (passed, float(np.mean([each.margin(ring) for each in found])))
        if way["seen"] not in best or merit > best[way["seen"]][0]:
            best[way["seen"]] = (merit, way)
    return {size: way for size, (_, way) in best.items()}


def attributed(texts: Sequence[Judged]) -> dict[int, float]:
    """The share that is attributable in rings of each size."""
    return {ring: float(np.mean([each.attributable(ring) for each in texts])) for ring in RINGS}


def score(args: argparse.Namespace) -> None:
    """Judge everything that was written."""
    results: dict[str, Any] = {}
    reader = open_reader(args.reader, device=args.device, on_disk=False)
    file = args.out / ("scores.json" if reader is None else "scores-read.json")

    def judged(victim: BoundDEW, rows: Sequence[Row]) -> list[Judged]:
        prompts = None if reader is None else [row["prompt"] for row in rows]
        return judge(as_dew(victim.reading_with(reader)), [row["text"] for row in rows], prompts)

    for setting in args.settings:
        curve: dict[int, list[Judged]] = defaultdict(list)
        ways: dict[int, list[Row]] = defaultdict(list)
        first: dict[int, dict[str, list[Judged]]] = defaultdict(lambda: defaultdict(list))
        genuine: list[Judged] = []
        by_key: dict[int, Row] = {}
        for number in args.keys:
            victim = victim_of(args, number)
            own = judged(victim, read_rows(args.out / f"{setting}-{number}.jsonl")[:200])
            genuine += own
            rows = read_rows(args.out / f"forged-{setting}-{number}.jsonl")
            if reader is not None:
                rows = [row for row in rows if not row["of"]["pilot"]]
            mine: dict[int, list[Judged]] = defaultdict(list)
            for row, each in zip(rows, judged(victim, rows), strict=True):
                of = row["of"]
                if of["pilot"]:
                    first[of["seen"]][f"{of['from']}, tail {of['tail']}, strength {of['strength']:g}"].append(
                        each
                    )
                    continue
                mine[of["seen"]].append(each)
                if of["i"] == 0:
                    ways[of["seen"]].append(of)
            for size, each_size in mine.items():
                curve[size] += each_size
            if own:
                by_key[number] = {
                    "genuine attributable": attributed(own)[MEMBERS[setting]],
                    "forged attributable": {
                        size: attributed(mine[size])[MEMBERS[setting]] for size in sorted(mine)
                    },
                }
        if not genuine:
            continue
        points = {size: shares(curve[size]) for size in sorted(curve)}
        for size, tried in first.items():
            most = max(map(len, tried.values()))
            found = {way: attributed(texts) for way, texts in tried.items() if len(texts) == most}
            points[size]["best way in its first texts"] = {
                ring: {"texts": most, "attributable": found[best][ring], "way": best}
                for ring in RINGS
                for best in [max(found, key=lambda way: found[way][ring])]
            }
        half = {
            ring: passes({size: point["attributable"][ring] for size, point in points.items()})
            for ring in RINGS
        }
        results[setting] = {
            "genuine": shares(genuine),
            "aimed at a ring of": MEMBERS[setting],
            "forged": points,
            "ways": ways,
            "by key": by_key,
            "texts of a member for half": half,
            "seen texts for half": {
                ring: None if texts is None else sample_size.texts_for_group(max(texts, 1.0), ring=ring)
                for ring, texts in half.items()
            },
        }
        print(json.dumps({setting: results[setting]}), flush=True)
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        for number in args.keys:
            rows = read_rows(args.out / f"forged-ring-{setting}-{number}.jsonl")
            if not rows or reader is not None:
                continue
            members = rows[0]["of"]["members"]
            victim = victim_of(args, number, members=members)
            by_way: dict[str, list[bool]] = defaultdict(list)
            sizes: dict[str, list[int]] = defaultdict(list)
            for row, each in zip(
                rows, detect_texts(victim, [r["text"] for r in rows], fpr=LEVEL), strict=True
            ):
                of, test = row["of"], each.forgery
                way = f"{of['way']}, tail {of['tail']}, strength {of['strength']:g}"
                by_way[way].append(test is not None and test.attributable)
                sizes[of["way"]].append(of["group"])
            seen = read_rows(args.out / f"ring-{setting}-{number}.jsonl")
            found = detect_texts(victim, [row["text"] for row in seen[:200]], fpr=LEVEL)
            results[setting]["ring"] = {
                "members": members,
                "seen": len(seen),
                "genuine marked": float(np.mean([each.p_value < LEVEL for each in found])),
                "genuine attributable": float(
                    np.mean([e.forgery is not None and e.forgery.attributable for e in found])
                ),
                "attributable": {way: float(np.mean(shares)) for way, shares in by_way.items()},
                "texts": {way: len(shares) for way, shares in by_way.items()},
                "texts learned from": {way: max(each) for way, each in sizes.items()},
            }
            print(json.dumps({setting: results[setting]["ring"]}), flush=True)
            file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("part", choices=["write", "forge", "ring", "score"])
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the victim")
    parser.add_argument("--keys", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--settings", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--seen", type=int, default=2000, help="texts of a ring; of one key at most 256")
    parser.add_argument("--sizes", type=int, nargs="*", help="numbers of texts to learn from")
    parser.add_argument("--unmarked", type=int, default=256)
    parser.add_argument("--pilot", type=int, default=16, help="texts in each way")
    parser.add_argument("--forged", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--reader", help="score with what this model expected after the prompt")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no new batch after this")
    args = parser.parse_args()
    if args.part == "score":
        score(args)
        return
    try:
        getattr(Run(args), args.part)()
    except TimeoutError:
        print("stopped: no time left", flush=True)


if __name__ == "__main__":
    main()
