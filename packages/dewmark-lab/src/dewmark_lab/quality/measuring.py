"""Write marked and unmarked answers to the same prompts and compare them, measure by measure.

Round j has a key, and unmarked texts of its own with the seeds of its marked ones: so the unmarked texts'
own spread is in every interval, and one key is compared with one set of texts of the same size. Texts and
their likelihoods are kept as outputs of an experiment (`experiments.outputs`): a run that was stopped goes
on, and schemes share their host's unmarked texts. Boundary: a loaded host and bound schemes in, a `Quality`
out.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dewmark.arrays import F64
from dewmark.batch.inputs import as_request
from dewmark.config import config_hash
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.hosts.base import Host, generation_hash
from dewmark.registry import unknown_name
from dewmark.scheme import BoundScheme
from dewmark.version import __version__
from dewmark.workspace import Progress, silent
from dewmark_audit.texts import Row
from dewmark_lab.evaluation.preference import Pair, weigh_pairs
from dewmark_lab.evaluation.quality import content_words
from dewmark_lab.experiments.outputs import Output
from dewmark_lab.quality.equivalence import Equivalence, MarginOutcome, equivalence
from dewmark_lab.quality.tasks import TaskItem, refuses
from dewmark_lab.quality.texts import TOP, identical_pairs, self_bleu, text_measures

VARIETY = "variety"  # the suite with several answers to each prompt
PROSE = "prose"
_ROUND = 1_000_000  # seeds of a round
_SUITE = 10_000
_PAIRS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Measure:
    """What is compared, its margin, and what one event changes in one text (0: every text has a value)."""

    label: str
    margin: float
    event: float = 0.0
    per_word: bool = False


MEASURES: Mapping[str, Measure] = {
    "nats": Measure("nats a token, under the host at T 1", 0.05),
    "tokens": Measure("tokens, as a share of the limit", 0.05),
    "at_limit": Measure("texts that reach the limit", 0.05, 1.0),
    "words_per_token": Measure("words per token", 0.02),
    "unlisted": Measure("words outside the lexicon", 0.01, 1.0, per_word=True),
    "doubled": Measure("doubled neighbours per 100 words", 0.25, 100.0, per_word=True),
    "distinct": Measure("distinct words of 50", 0.02),
    "repeated": Measure("repeated 4-grams", 0.01, 1.0, per_word=True),
    "loops": Measure("texts with a loop", 0.01, 1.0),
    "top_share": Measure(f"share of the {TOP} commonest content words", 0.02),
    "refusals": Measure("refusals", 0.01, 1.0),
    "self_bleu": Measure("Self-BLEU of answers to one prompt", 3.0),
    "identical": Measure("identical pairs of answers", 0.01, 1.0),
    "odds": Measure("judge's log-odds for the marked text", 0.1),
}
_TASK_MARGIN = 0.01


@dataclass(frozen=True, slots=True)
class Suite:
    """Prompts, and how many answers each gets under a key."""

    name: str
    items: Sequence[TaskItem]
    answers: int = 1

    @property
    def texts(self) -> int:
        """The number of its texts under one key."""
        return len(self.items) * self.answers


def margins_of(given: Mapping[str, str], suites: Sequence[Suite]) -> dict[str, Measure]:
    """The measures, with those of the tasks, and the margins that were given."""
    tasks = {
        each.name: Measure("right answers", _TASK_MARGIN, 1.0)
        for each in suites
        if each.name not in (PROSE, VARIETY)
    }
    known = {**MEASURES, **tasks}
    for name, margin in given.items():
        if name not in known:
            raise unknown_name("measure", name, known)
        try:
            value = float(margin)
        except ValueError:
            value = 0.0
        if not 0.0 < value < math.inf:
            raise ConfigError(f"--margin {name} must be a positive number, got {margin!r}")
        known[name] = dataclasses.replace(known[name], margin=value)
    return known


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """One measure: the means of marked and unmarked texts, by key and overall, and their difference."""

    label: str
    marked: float
    unmarked: float
    unmarked_by_round: tuple[float, ...]
    compared: Equivalence


@dataclass(frozen=True, slots=True)
class Quality:
    """All measures by name, and the fingerprints of the keys; ``texts`` were written."""

    keys: tuple[str, ...]
    texts: int
    measures: Mapping[str, MeasureResult]

    @property
    def outcome(self) -> MarginOutcome:
        """Exceeded if any measure is, else inconclusive if any is."""
        found = {each.compared.outcome for each in self.measures.values()}
        worst_first = (MarginOutcome.EXCEEDED, MarginOutcome.INCONCLUSIVE)
        return next((each for each in worst_first if each in found), MarginOutcome.WITHIN)

    def named(self, outcome: MarginOutcome) -> list[str]:
        """The names of the measures with an outcome."""
        return [name for name, each in self.measures.items() if each.compared.outcome is outcome]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "outcome": self.outcome.value,
            "key_fingerprints": list(self.keys),
            "texts": self.texts,
            "measures": {name: dataclasses.asdict(each) for name, each in self.measures.items()},
        }


@dataclass(frozen=True)
class QualityRun:
    """A host, a scheme under several keys, and where their texts are kept."""

    host: Host
    schemes: Sequence[BoundScheme]
    decoding: Decoding
    work: Path
    chat: bool = True
    seed: int = 0
    batch_size: int = 8
    progress: Progress = silent

    def measure(
        self,
        suites: Sequence[Suite],
        measures: Mapping[str, Measure],
        *,
        judge: Callable[[], Host] | None = None,
    ) -> Quality:
        """Write the texts that are missing and compare them; ``judge`` opens a host that weighs pairs."""
        total = 2 * len(self.schemes) * sum(suite.texts for suite in suites)
        done = 0
        values: dict[str, list[F64]] = {}  # of marked and unmarked texts, each (keys, prompts)
        for suite in suites:
            for marked in (True, False):
                rounds = []
                for j, scheme in enumerate(self.schemes):
                    rounds.append(self._written(suite, j, scheme if marked else None, done, total))
                    done += suite.texts
                for name, table in self._values(suite, rounds).items():
                    values.setdefault(name, []).append(table)
            if suite.name == PROSE and judge is not None:
                odds = self._weigh(suite, judge())
                values["odds"] = [odds, np.zeros_like(odds)]
        words = max(float(values["words"][1].mean()), 1.0) if "words" in values else 1.0
        found = {
            name: _compare(measure, *values[name], words=words)
            for name, measure in measures.items()
            if name in values and (~np.isnan(np.add(*values[name])).any(axis=0)).sum() > 1
        }
        return Quality(tuple(each.fingerprint for each in self.schemes), total, found)

    def _values(self, suite: Suite, rounds: Sequence[Sequence[Row]]) -> dict[str, F64]:
        """The measures of a suite's texts under every key (keys, prompts)."""
        if suite.name == PROSE:
            measured = [[self._of_text(row) for row in rows] for rows in rounds]
            found = {
                name: _table([[each[name] for each in row] for row in measured]) for name in measured[0][0]
            }
            return {**found, "top_share": top_shares(rounds)}
        groups = [_groups(suite, rows) for rows in rounds]
        if suite.name == VARIETY:
            return {
                name: _table([[measure(group) for group in each] for each in groups])
                for name, measure in (("self_bleu", self_bleu), ("identical", identical_pairs))
            }
        rows = (zip(suite.items, each, strict=True) for each in groups)
        solved = [[item.solved(text) for item, (text,) in row] for row in rows]
        return {suite.name: _table(solved)}

    def _of_text(self, row: Row) -> dict[str, float | None]:
        tokens, limit = row["tokens"], self.decoding.max_new_tokens
        measured = text_measures(row["text"], tokens=tokens)
        return {
            "nats": row["nats"],
            "tokens": tokens / limit,
            "at_limit": float(tokens >= limit),
            "refusals": float(refuses(row["text"])),
            "words": tokens * (measured["words_per_token"] or 0.0),
            **measured,
        }

    def _texts(self, suite: Suite, number: int, scheme: BoundScheme | None) -> Output:
        prompts = [[item.id, item.prompt] for item in suite.items]
        return Output(
            self.work,
            "quality",
            {
                "texts": generation_hash(self.decoding, scheme, self.host.info),
                "scheme": None if scheme is None else scheme.scheme.name,
                "prompts": config_hash(suite.name, prompts, self.chat),
                "answers": suite.answers,
                "seed": self.seed + _ROUND * number,
            },
        )

    def _written(
        self, suite: Suite, number: int, scheme: BoundScheme | None, before: int, total: int
    ) -> list[Row]:
        """The texts of a round, of which it writes what is missing."""
        first = self.seed + _ROUND * number + (_SUITE if suite.name == VARIETY else 0)

        def write(batch: range) -> list[Row]:
            asked = [suite.items[i // suite.answers] for i in batch]
            prompts = [
                self.host.chat.render(as_request(item.prompt)) if self.chat else item.prompt for item in asked
            ]
            made = self.host.generate(
                prompts,
                scheme=scheme,
                seeds=[first + i for i in batch],
                decoding=self.decoding,
                batch_size=self.batch_size,
            )
            likely = self.host.log_likelihood(prompts, [each.text for each in made])
            return [
                {
                    "id": item.id,
                    "seed": each.seed,
                    "tokens": each.tokens,
                    "text": each.text,
                    "nats": -nats / count if count else None,
                }
                for item, each, (nats, count) in zip(asked, made, likely, strict=True)
            ]

        output = self._texts(suite, number, scheme)
        output.fill(
            suite.texts,
            write,
            size=self.batch_size,
            on_rows=lambda rows: self.progress("writing texts", before + rows, total),
        )
        return output.read(suite.texts)

    def _weigh(self, suite: Suite, judge: Host) -> F64:
        """The judge's log-odds (keys, prompts) for the marked text, in both orders."""
        found, name = [], judge.info.identity
        for j, scheme in enumerate(self.schemes):
            sides = [self._texts(suite, j, each) for each in (scheme, None)]
            rows = [each.read(suite.texts) for each in sides]
            pairs = [
                Pair(item.id, j, item.prompt, mine["text"], other["text"])
                for item, mine, other in zip(suite.items, *rows, strict=True)
            ]
            inputs = {"judge": name, "texts": [each.hash for each in sides]}
            output = Output(self.work, "quality-judge", inputs)
            output.fill(
                len(pairs),
                partial(_judged, judge, pairs, scheme.scheme.name),
                size=_PAIRS_AT_ONCE,
                on_rows=partial(self._judging, len(pairs) * j, len(pairs) * len(self.schemes)),
            )
            found.append([row["odds"] for row in output.read(len(pairs))])
        return np.array(found)

    def _judging(self, before: int, total: int, rows: int) -> None:
        self.progress("judging pairs", before + rows, total)


def _judged(judge: Host, pairs: Sequence[Pair], scheme: str, batch: range) -> list[Row]:
    return weigh_pairs(judge, [pairs[i] for i in batch], scheme=scheme)


def _compare(measure: Measure, marked: F64, unmarked: F64, *, words: float) -> MeasureResult:
    grain = measure.event / (words if measure.per_word else 1.0)
    return MeasureResult(
        measure.label,
        float(np.nanmean(marked)),
        float(np.nanmean(unmarked)),
        tuple(np.nanmean(unmarked, axis=1).tolist()),
        equivalence(marked - unmarked, margin=measure.margin, grain=grain),
    )


def _table(values: Sequence[Sequence[float | None]]) -> F64:
    return np.array(values, dtype=np.float64)  # None becomes NaN


def _groups(suite: Suite, rows: Sequence[Row]) -> list[list[str]]:
    """The answers to each prompt."""
    texts = [row["text"] for row in rows]
    return [texts[i : i + suite.answers] for i in range(0, len(texts), suite.answers)]


def top_shares(rounds: Sequence[Sequence[Row]]) -> F64:
    """Pseudo-values (keys, prompts) whose mean over prompts is a key's share of the commonest words.

    Text p's is the share plus P − 1 times what it loses without the text (the jackknife), centred.
    """
    found = []
    for rows in rounds:
        texts = [Counter(content_words(row["text"])) for row in rows]
        place = {form: i for i, form in enumerate(dict.fromkeys(form for text in texts for form in text))}
        counts = np.zeros((len(texts), max(len(place), TOP)))
        for row, text in zip(counts, texts, strict=True):
            for form, count in text.items():
                row[place[form]] = count
        without = counts.sum(axis=0) - counts
        share, *others = (_top(each) for each in (counts.sum(axis=0), *without))
        found.append([share + (len(texts) - 1) * (statistics.fmean(others) - each) for each in others])
    return np.array(found)


def _top(counts: F64) -> float:
    return float(np.sort(counts)[-TOP:].sum() / max(counts.sum(), 1.0))


_HEADS = ("measure", "marked", "unmarked", "difference (95%)", "margin", "outcome", "worst key")


def table(found: Quality) -> str:
    """All measures as a Markdown table with aligned columns."""
    rows: list[tuple[str, ...]] = [_HEADS]
    for name, each in found.measures.items():
        compared = each.compared
        difference, worst = compared.difference, compared.worst_difference
        rows.append(
            (
                f"`{name}`: {each.label}",
                f"{each.marked:.3f}",
                f"{each.unmarked:.3f}",
                f"{difference.value:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})",
                f"±{compared.margin:g}",
                compared.outcome.value,
                f"{compared.worst + 1}: {worst.value:+.3f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, tuple("-" * width for width in widths))
    return "".join(f"| {' | '.join(map(str.ljust, row, widths))} |\n" for row in rows)


def sentences(found: Quality) -> list[str]:
    """What was found, in words."""
    said = []
    if names := found.named(MarginOutcome.EXCEEDED):
        said.append(f"Outside the margin: {', '.join(names)}.")
    if names := found.named(MarginOutcome.INCONCLUSIVE):
        said.append(f"Inconclusive, the interval reaches across the margin: {', '.join(names)}.")
        said.append("More prompts narrow the intervals and, where keys differ, more keys.")
    return said or ["Every measure is within its margin."]


def quality_page(found: Quality, summary: Mapping[str, Any]) -> str:
    """The page in Markdown; ``summary`` holds scheme, host and how texts were written."""
    keys = ", ".join(f"{i}: `{each}`" for i, each in enumerate(found.keys, start=1))
    settings = {name: value for name, value in summary.items() if name not in found.to_dict()}
    return "\n".join(
        [
            f"# Quality: {summary['scheme']} on {summary['host']}\n",
            f"Written by dewmark {__version__} from {found.texts:,} texts, half of them marked.\n",
            *(f"{each}\n" for each in sentences(found)),
            table(found),
            f"Intervals are over prompts and keys. Keys: {keys}.\n",
            f"```json\n{json.dumps(settings, indent=1, ensure_ascii=False)}\n```\n",
        ]
    )
