"""Forging DEW from 1 to 2,000 seen texts on a real host, beside the law (docs/security.md).

    python benchmarks/stealing.py --out stealing.json --device cuda

For every setting (openings at T 1; chat at T 0.7, top-p 0.9) and key, the host writes marked texts under one
plain key and unmarked ones. A forger who knows everything but the key learns W from the first n texts and
writes with it; the victim's detector judges. n texts of one key are what a forger has who is *told* which of
R·n texts of a ring share a member, so one curve bounds the attackers of rings of every size whose members are
unrelated to each other: ``attributable`` is judged as for one key, ``attributable_in_ring`` with the
corrections for --ring members.

Before the curve, strength and tail share are searched with a few texts, judged by the victim's detector, in
the attacker's favour. One point per setting subtracts what the host expected at each place. Genuine and
unmarked texts stand beside the forged ones. Results are written after every point, and a run that is started
again does what is missing; no new part begins after --seconds.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr
from script_inputs import named_key, script_parser

import dewmark
from dewmark.attacks.stealing import law
from dewmark.attacks.stealing.forging import forge
from dewmark.attacks.stealing.regression import (
    Baseline,
    Moments,
    as_dew,
    cosine,
    estimate,
    head_mask,
    moments_of,
    pairs_of,
    residual_moments,
    spend_on_tail,
)
from dewmark.decoding import Decoding
from dewmark.dew.attribution import ALIKE, head_of
from dewmark.dew.scheme import BoundDEW
from dewmark.hosts.base import Host
from dewmark.lab.prompts import openings, requests
from dewmark.stats.multiple_testing import sidak_min

LEVEL = 0.01
SIZES = (1, 2, 4, 8, 16, 64, 256, 2000)
STRENGTHS, TAILS = (4.0, 8.0, 16.0), (None, 0.5, 0.75)
SEARCHED_AT = 16  # texts from which the search learns


@dataclass(frozen=True)
class Setting:
    """Prompts to collect texts with, others to forge on, and how the host decodes."""

    name: str
    prompts: list[str]
    fresh: list[str]
    decoding: Decoding


def settings_of(host: Host, tokens: int, forged: int) -> Iterator[Setting]:
    """Openings at temperature 1, and chat as it is served."""
    starts = [row["text"] for row in openings()]
    yield Setting("openings", starts[:-forged], starts[-forged:], Decoding(max_new_tokens=tokens))
    asked = [host.chat.render([{"role": "user", "content": row["text"]}]) for row in requests()]
    served = Decoding(max_new_tokens=tokens, temperature=0.7, top_p=0.9)
    yield Setting("chat", asked[:-forged], asked[-forged:], served)


def write(
    host: Host, scheme: BoundDEW | None, setting: Setting, number: int, *, seed: int, batch: int
) -> list[str]:
    """Texts for prompts in turn, as many as asked for; blank ones become a full stop."""
    prompts = list(islice(cycle(setting.prompts), number))
    made = host.generate(
        prompts,
        scheme=scheme,
        seeds=range(seed, seed + number),
        batch_size=batch,
        decoding=setting.decoding,
    )
    return [each.text if each.text.strip() else "." for each in made]


def judge(victim: BoundDEW, texts: Sequence[str], *, ring: int) -> dict[str, Any]:
    """Shares of texts that are marked and attributable, as one key and as a member of a ring."""
    found = victim.detect_batch([text if text.strip() else "." for text in texts], fpr=LEVEL)
    tests = [each.attribution for each in found]
    shares: dict[str, Any] = {
        "texts": len(found),
        "z": float(np.mean([each.z for each in found])),
        "marked": float(np.mean([each.p_value < LEVEL for each in found])),
        "marked_1e-4": float(np.mean([each.p_value < 1e-4 for each in found])),
    }
    if victim.attributes:
        known = [test for test in tests if test is not None]
        in_ring = [
            test is not None
            and sidak_min(float(ndtr(-each.z)), tests=ring) <= LEVEL / 2
            and test.p_tail <= LEVEL / 2
            and test.p_alike >= ALIKE
            for each, test in zip(found, tests, strict=True)
        ]
        shares |= {
            "head": float(np.mean([test.z_head for test in known])) if known else 0.0,
            "tail": float(np.mean([test.z_tail for test in known])) if known else 0.0,
            "attributable": float(np.mean([test is not None and test.attributable for test in tests])),
            "attributable_in_ring": float(np.mean(in_ring)),
        }
    return shares


class Attack:
    """One key's victim and the forger's view of it."""

    def __init__(
        self, host: Host, setting: Setting, victim: BoundDEW, base: Baseline, ring: int, batch: int
    ) -> None:
        self.host, self.setting, self.victim, self.base = host, setting, victim, base
        self.ring, self.batch = ring, batch
        self.variances = base.own_variances
        self.head = head_of(victim.shared) if victim.attributes else head_mask(self.variances)

    def point(
        self, W: np.ndarray, *, strength: float, tail: float | None, number: int, seed: int
    ) -> dict[str, Any]:
        """Forge ``number`` texts and judge them."""
        aimed = W if tail is None else spend_on_tail(W, self.variances, self.head, share=tail)
        texts = forge(
            self.victim,
            self.host,
            aimed,
            self.setting.fresh[:number],
            strength=strength,
            decoding=self.setting.decoding,
            seed=seed,
            batch_size=self.batch,
        )
        return {"strength": strength, "tail_share": tail, **judge(self.victim, texts, ring=self.ring)}

    def search(self, W: np.ndarray, number: int) -> dict[str, Any]:
        """The best plain and the best tail-aware attack on a few texts."""
        tried = [
            self.point(W, strength=strength, tail=tail, number=number, seed=1000)
            for strength in STRENGTHS
            for tail in TAILS
        ]
        plain = max((t for t in tried if t["tail_share"] is None), key=lambda t: t["z"])
        aware = max(
            tried, key=lambda t: (t.get("attributable", 0.0), min(t.get("head", 0.0), t.get("tail", 0.0)))
        )
        return {"tried": tried, "plain": plain, "aware": aware}


def predicted(attack: Attack, texts: int, *, z: float, length: float) -> dict[str, float]:
    """The law's cosines with W in head and tail, from the public variances."""
    share = attack.variances / attack.variances.sum()
    blocks = {"head": attack.head, "tail": ~attack.head}
    return {
        name: law.cosine_after(share[block], texts * length, tilt=z / math.sqrt(length))
        for name, block in blocks.items()
    }


class Parts:
    """Results by name, written as they come; a part that is there is not run again."""

    def __init__(self, out: Path, seconds: float) -> None:
        self.out = out
        self.folder = out.with_suffix(".texts")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.results: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
        self.end = time.perf_counter() + seconds

    @property
    def late(self) -> bool:
        """Whether no new part may begin."""
        return time.perf_counter() > self.end

    def run(self, name: str, part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A result that is there, or a new one; raises TimeoutError if there is no time."""
        if name not in self.results:
            if self.late:
                raise TimeoutError(name)
            began = time.perf_counter()
            self.results[name] = part() | {"seconds": round(time.perf_counter() - began, 1)}
            self.out.write_text(json.dumps(self.results, indent=1))
            print(json.dumps({name: self.results[name]}), flush=True)
        found: dict[str, Any] = self.results[name]
        return found

    def texts(self, name: str, make: Callable[[], list[str]]) -> list[str]:
        """Texts that are there, or new ones."""
        file = self.folder / f"{name}.json"
        if not file.exists():
            if self.late:
                raise TimeoutError(name)
            file.write_text(json.dumps(make(), ensure_ascii=False))
        found: list[str] = json.loads(file.read_text())
        return found


def attack_key(host: Host, setting: Setting, number: int, parts: Parts, options: argparse.Namespace) -> None:
    """The curve of one setting and key."""
    victim = as_dew(dewmark.load_scheme("dew", key=named_key(f"stealing-{number}"), host=host.info))

    def written(scheme: BoundDEW | None, seed: int) -> Callable[[], list[str]]:
        return lambda: write(host, scheme, setting, options.seen, seed=seed, batch=options.batch)

    unmarked = parts.texts(f"{setting.name}-unmarked", written(None, 500_000))
    marked = parts.texts(f"{setting.name}-{number}", written(victim, 1_000_000 * (number + 1)))
    base = Baseline.of(pairs_of(victim.reader, unmarked))
    attack = Attack(host, setting, victim, base, options.ring, options.batch)
    name = f"{setting.name}:{number}"
    genuine = parts.run(f"{name}:genuine", lambda: judge(victim, marked[-200:], ring=options.ring))
    parts.run(f"{name}:unmarked", lambda: judge(victim, unmarked[-200:], ring=options.ring))
    first = estimate(moments_of(victim.reader, marked[:SEARCHED_AT]), base)
    found = parts.run(f"{name}:search", lambda: attack.search(first, max(options.forged // 4, 1)))

    def point(W: np.ndarray, kind: str, seed: int) -> dict[str, Any]:
        aim = found[kind]
        return attack.point(
            W, strength=aim["strength"], tail=aim["tail_share"], number=options.forged, seed=seed
        )

    def both(W: np.ndarray, seen: int, length: float) -> dict[str, Any]:
        return {
            "seen": seen,
            "length": length,
            "law": predicted(attack, seen, z=genuine["z"], length=length),
            "cosine": cosine(victim, W, unmarked[:200]),
            "plain": point(W, "plain", seen),
            "aware": point(W, "aware", seen),
        }

    moments: Moments | None = None
    last = 0
    for size in (size for size in SIZES if size <= options.seen):
        more = moments_of(victim.reader, marked[last:size])
        moments, last = more if moments is None else moments + more, size
        curve = functools.partial(both, estimate(moments, base), size, moments.count / size)
        parts.run(f"{name}:{size}", curve)

    def expecting() -> dict[str, Any]:
        seen = marked[:256]
        W = estimate(residual_moments(host, victim.reader, seen), base, residual=True)
        row = {"seen": len(seen), "cosine": cosine(victim, W, unmarked[:200])}
        return row | {"aware": point(W, "aware", 9)}

    if number == 0:
        parts.run(f"{name}:host-expectation", expecting)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--seen", type=int, default=SIZES[-1])
    parser.add_argument("--forged", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--ring", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=330.0, help="begin no new part after this")
    parser.add_argument("--settings", nargs="+", default=["openings", "chat"], choices=["openings", "chat"])
    options: argparse.Namespace = parser.parse_args()
    parts = Parts(options.out, options.seconds)
    host = dewmark.load_host(options.host, device=options.device)
    chosen = [s for s in settings_of(host, options.tokens, options.forged) if s.name in options.settings]
    try:
        for number in range(options.keys):
            for setting in chosen:
                attack_key(host, setting, number, parts, options)
    except TimeoutError as missing:
        print(json.dumps({"stopped before": str(missing)}), flush=True)


if __name__ == "__main__":
    main()
