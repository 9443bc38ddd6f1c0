"""Two JSON values side by side: what differs, with a tolerance for numbers."""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Iterator
from typing import Any

DIGITS = 10
DIGEST = "sha256"
# Scores are of order 1 and come from float32: one near 0 has few digits of its own, so this is absolute, too.
# Those of a real encoder have differed by 2.3e-6 from the record on its own kind of processor.
TOLERANCE = 5e-6
RECORDED_ON = "aarch64"
ELSEWHERE = 2e-4
"""On other processors the weights of the models that tests make differ in their last bits, and with them
every number a little, digests, and the draws of Monte-Carlo tests."""
DRAWS = 1.3  # ln p of two runs of a sequential Monte-Carlo test with 20 exceedances: 4 standard errors


def tolerance_here() -> float:
    """How far numbers may lie from the record on this machine."""
    return TOLERANCE if platform.machine() == RECORDED_ON else ELSEWHERE


def rounded(value: Any) -> Any:
    """The value with numbers of ten significant digits, and what JSON cannot say in words."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return value


def differences(
    was: Any, now: Any, *, exact: bool = False, tolerance: float = TOLERANCE, at: str = ""
) -> Iterator[str]:
    """One line for every place where two values differ."""
    if isinstance(was, dict) and isinstance(now, dict):
        for name in [*was, *(name for name in now if name not in was)]:
            if name == DIGEST and not exact:
                continue  # of bytes, which may differ where the numbers agree
            place = f"{at} / {name}" if at else name
            if name not in now:
                yield f"{place}: gone"
            elif name not in was:
                yield f"{place}: not in the record"
            else:
                yield from differences(was[name], now[name], exact=exact, tolerance=tolerance, at=place)
    elif isinstance(was, list) and isinstance(now, list):
        if len(was) != len(now):
            yield f"{at}: {len(was)} values in the record, {len(now)} now"
        for i, (old, new) in enumerate(zip(was, now, strict=False)):
            yield from differences(old, new, exact=exact, tolerance=tolerance, at=f"{at}[{i}]")
    elif tolerance > TOLERANCE and not exact and _depends_on_bits(was, now, at):
        return
    elif not _same(was, now, exact=exact, probability=_is_probability(at), tolerance=tolerance):
        yield f"{at}: was {_short(was)}, is {_short(now)}"


def _depends_on_bits(was: Any, now: Any, at: str) -> bool:
    """Whether two values that differ may do so because numbers differ in their last bits."""
    if isinstance(was, str) and isinstance(now, str):
        # "bag" is a test's encoder, which stands among sorted digests
        digest = r"(.*@)?[0-9a-f]{12,16}|bag(:\d+)?"
        return bool(re.fullmatch(digest, was) and re.fullmatch(digest, now))
    if not (at.startswith("other tests") and _is_probability(at) and _is_number(was) and _is_number(now)):
        return False
    return min(was, now) > 0.0 and abs(math.log(was / now)) < DRAWS


def _same(was: Any, now: Any, *, exact: bool, probability: bool, tolerance: float) -> bool:
    if exact or not (_is_number(was) and _is_number(now)) or (isinstance(was, int) and isinstance(now, int)):
        return bool(was == now) and isinstance(was, bool) == isinstance(now, bool)
    if probability and 0.0 < was < 1.0 and 0.0 < now < 1.0:
        # d ln p = -z dz: a z that is right to a share makes ln p right to about twice that share
        return abs(math.log(was) - math.log(now)) <= tolerance * max(1.0, 4.0 * abs(math.log(was)))
    return math.isclose(was, now, rel_tol=tolerance, abs_tol=tolerance)


def _is_probability(at: str) -> bool:
    last = at.rpartition(" / ")[2].partition("[")[0]
    return last == "p" or last.startswith("p ")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:100]}… ({len(text)} characters)"


def dumped(value: Any, indent: int = 0) -> str:
    """JSON with one line for every list of plain values."""
    pad = " " * (indent + 1)
    if isinstance(value, dict) and value:
        rows = (
            f"{pad}{json.dumps(k, ensure_ascii=False)}: {dumped(v, indent + 1)}" for k, v in value.items()
        )
        return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"
    if isinstance(value, list) and any(isinstance(each, (dict, list)) for each in value):
        return (
            "[\n" + ",\n".join(pad + dumped(each, indent + 1) for each in value) + "\n" + " " * indent + "]"
        )
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
