"""Net Preference Score: whether a judge likes marked completions as much as unmarked ones.

A chat model reads a prompt and two completions, with the exact prompts of the DEW paper (appendix E), and
answers 1, 2 or TIE. Each pair is shown in both orders: a side wins only if it is preferred in both,
everything else is a tie, so a judge that always prefers the first text produces only ties. With W wins and L
losses of the marked side in N pairs

    NPS = (W − L) / N,

which is positive if the marked texts are preferred. An unreadable answer makes its pair a tie and is counted:
otherwise a judge that cannot answer would look like one that sees no difference. So would a judge that names
the same place in both orders: those ties are counted as ``by_place``.

A small judge may name the same place for every pair. `weigh_pairs` asks it the same questions and reads, in
place of its answer, how much likelier it finds 1 than 2. Its leaning towards a place is the same in both
orders and cancels in the sum of the two log-odds; the sign of what is left decides the pair. Such a judge
never declares a tie, so show it pairs with a known answer too before its verdicts are believed.

Boundary: texts and a `ChatModel` in, rows out, whose mean ``outcome`` is NPS. `ChatSettings.open` returns a
judge that keeps its answers on disk, so that a killed run can resume.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dewmark.errors import InputError
from dewmark.hosts.base import Conversation, Host
from dewmark.workspace import Progress, silent
from dewmark_lab.chat.settings import CachedChat, ChatModel, ChatSettings, CostEstimate, counted

JUDGE_PROMPT = (
    "You are an expert evaluator focused on assessing text quality. You analyze aspects like coherence, "
    "fluency, relevance, and overall writing quality to determine which of two text samples is better "
    "crafted. Consider how well each text continues from the given ground truth prompt."
)
JUDGE_QUERY = """Prompt: {prompt}
=== Start of Sample 1 ===
{completion1}
=== End of Sample 1 ===
=== Start of Sample 2 ===
{completion2}
=== End of Sample 2 ===
Please evaluate the answers based on the system prompt and return a single number.
Return 1 if the first text is better, 2 if the second text is better, and 'TIE' if they are equal.
Only return the number without any additional text."""

_ANSWER_TOKENS = 8  # enough for "TIE" in quotes
_ANSWER = re.compile(r"\W*(1|2|tie)\W*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Pair:
    """A marked and an unmarked completion of one prompt under a seed of the run."""

    id: str
    seed: int
    prompt: str
    marked: str
    unmarked: str


def pair_rows(
    marked: Sequence[Mapping[str, Any]], unmarked: Sequence[Mapping[str, Any]], *, seed: int
) -> list[Pair]:
    """Pair text rows (``id``, ``prompt``, ``text``) by id, in the order of ``marked``."""
    others = {str(row["id"]): row for row in unmarked}
    pairs = []
    for row in marked:
        name = str(row["id"])
        other = others.get(name)
        if other is None:
            raise InputError(f"text {name} has no unmarked counterpart: generate one for each id")
        if other["prompt"] != row["prompt"]:
            raise InputError(f"the two texts {name} have different prompts: pair completions of one prompt")
        pairs.append(Pair(name, seed, row["prompt"], row["text"], other["text"]))
    return pairs


def judge_conversations(pair: Pair) -> tuple[Conversation, Conversation]:
    """The two questions about a pair: with the marked text first, and with the unmarked one first."""
    marked, unmarked = pair.marked, pair.unmarked
    return _question(pair.prompt, marked, unmarked), _question(pair.prompt, unmarked, marked)


def judge_estimate(
    settings: ChatSettings, pairs: Sequence[Pair], *, kept: CachedChat | None = None
) -> CostEstimate:
    """The cost of judging these pairs, without the answers that ``kept`` already has."""
    questions = [question for pair in pairs for question in judge_conversations(pair)]
    if kept is not None:
        seeds = [pair.seed for pair in pairs for _ in range(2)]
        missing = kept.missing(questions, seeds=seeds, max_new_tokens=_ANSWER_TOKENS)
        questions = [questions[index] for index in missing]
    return settings.estimate(questions, answers=["TIE"] * len(questions))


def judge_pairs(
    judge: ChatModel, pairs: Sequence[Pair], *, scheme: str, progress: Progress = silent
) -> list[dict[str, Any]]:
    """Ask both questions about every pair; returns a row for each.

    Rows have ``scheme``, ``seed``, ``id``, ``outcome`` (1 if the marked text won, −1 if it lost, 0 for a
    tie), ``unreadable`` (the number of unreadable answers) and ``by_place`` (the same place won twice).
    """
    questions = [question for pair in pairs for question in judge_conversations(pair)]
    answers = judge.complete(
        questions,
        seeds=[pair.seed for pair in pairs for _ in range(2)],
        max_new_tokens=_ANSWER_TOKENS,
        on_answer=counted(progress, f"judging {scheme}", len(questions)),
    )
    verdicts = [verdict(answer) for answer in answers]
    return [
        {
            "scheme": scheme,
            "seed": pair.seed,
            "id": pair.id,
            "outcome": int((first, second) == (1, 2)) - int((first, second) == (2, 1)),
            "unreadable": (first, second).count(None),
            "by_place": first == second and first in (1, 2),
        }
        for pair, first, second in zip(pairs, verdicts[0::2], verdicts[1::2], strict=True)
    ]


def weigh_pairs(judge: Host, pairs: Sequence[Pair], *, scheme: str) -> list[dict[str, Any]]:
    """Decide every pair by the judge's log-odds of 1 against 2 in both orders; returns a row for each.

    Rows are those of `judge_pairs`, with ``odds``, the mean log-odds (nats) for the marked text, and
    ``by_place`` where a judge that answers would have named the same place twice.
    """
    asked = [judge.chat.render(question) for pair in pairs for question in judge_conversations(pair)]
    answers = [answer for _ in asked for answer in ("1", "2")]
    found = judge.log_likelihood([each for each in asked for _ in range(2)], answers)
    sums = np.array([total for total, _ in found]).reshape(len(pairs), 2, 2)  # pairs, orders, answers
    leaning = sums[..., 0] - sums[..., 1]  # (pairs, 2): for the first place, with the marked text first
    odds = (leaning[:, 0] - leaning[:, 1]) / 2.0
    return [
        {
            "scheme": scheme,
            "seed": pair.seed,
            "id": pair.id,
            "outcome": int(np.sign(each)),
            "odds": float(each),
            "unreadable": 0,
            "by_place": bool(first * second > 0.0),
        }
        for pair, each, (first, second) in zip(pairs, odds, leaning, strict=True)
    ]


def verdict(answer: str) -> int | None:
    """1 or 2 for the preferred sample, 0 for a tie, None if unreadable; only the first line counts."""
    match = _ANSWER.fullmatch(answer.strip().partition("\n")[0])
    return None if match is None else {"1": 1, "2": 2}.get(match[1], 0)


def _question(prompt: str, first: str, second: str) -> Conversation:
    query = JUDGE_QUERY.format(prompt=prompt, completion1=first, completion2=second)
    return [{"role": "system", "content": JUDGE_PROMPT}, {"role": "user", "content": query}]
