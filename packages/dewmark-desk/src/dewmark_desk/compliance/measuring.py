"""The measurements of a dossier, in stages whose rows resume after a stop.

Every stage is a JSONL file under ``rows/``. Texts are scored as a desk would see them: without their prompt.
A text's ``scores`` are those of its first tokens at each length of the plan, and of the whole. Boundary: rows
out; `findings` counts them.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark import config
from dewmark.arrays import F32
from dewmark.attack import Attack, load_attack, text_seed
from dewmark.batch.inputs import Document
from dewmark.batch.negatives import Negatives, text_directions
from dewmark.errors import MissingExtraError, ModelError
from dewmark.hosts.base import ChatFormat, Host, generation_hash
from dewmark.prompts import first_tokens, package_file
from dewmark.scheme import BoundScheme, for_languages
from dewmark.storage import ResumableRows
from dewmark.text.languages import LanguagePolicy
from dewmark.text.words import distinct, repetition
from dewmark.types import Detection
from dewmark.watermark import Watermark
from dewmark.workspace import Progress, silent
from dewmark_desk.compliance.plan import DEFAULT_ATTACKS, LARGE_ATTACKS, DossierPlan, Stage

Row = dict[str, Any]

FEWEST_OF_A_TASK = 8  # the audit predicts nothing for fewer
_NEGATIVES_PER_BATCH = 64


@dataclass(frozen=True)
class Measured:
    """The rows of every stage; ``unavailable`` says why an attack was not measured.

    ``negatives`` are all unmarked texts, also those that the host wrote.
    """

    texts: Mapping[str, Sequence[Row]]
    attacked: Mapping[str, Sequence[Row]]
    unavailable: Mapping[str, str]
    negatives: Sequence[Row]
    quality: Sequence[Row]
    directions: F32 | None
    """Of all ``negatives`` (N, D), see `dewmark.batch.negatives.text_directions`."""


def measure(
    watermark: Watermark,
    plan: DossierPlan,
    folder: Path,
    *,
    chat: ChatFormat | None,
    negatives: Negatives,
    judge: Host | None = None,
    progress: Progress = silent,
) -> Measured:
    """Write, attack and score texts, continuing after the rows that ``folder`` has.

    ``chat`` is the host's chat format, if it has one. ``negatives`` are unmarked texts with their kinds.
    ``judge`` gives perplexities; by default the host itself.
    """
    bound = watermark.scheme
    rows = folder / "rows"
    texts = {
        stage.name: _write(watermark, plan, stage, rows / f"{stage.name}.jsonl", progress)
        for stage in plan.stages(chat)
    }
    attacked: dict[str, list[Row]] = {}
    unavailable: dict[str, str] = {}
    for label in plan.attacks:
        file = rows / f"attack-{re.sub(r'[^A-Za-z0-9.=_-]', '-', label)}.jsonl"
        try:
            attacked[label] = _attack(bound, plan, _open(label), texts["openings"], file, progress)
        except (ModelError, MissingExtraError) as error:
            unavailable[label] = str(error)
    planned = {label.partition(":")[0] for label in plan.attacks}
    for label in DEFAULT_ATTACKS:
        if label.partition(":")[0] not in planned:
            unavailable[label] = "it was not asked for"
    for name in LARGE_ATTACKS:
        if name not in planned:
            unavailable[name] = "it needs a large model, and was not asked for"
    own = [
        Document(row["text"], row["id"], kind=f"this host unmarked, {task}")
        for name in texts
        if name.endswith("-unmarked")
        for row, task in zip(texts[name], _tasks(name.removesuffix("-unmarked"), texts[name]), strict=True)
    ]
    unmarked = Negatives([*own, *negatives.documents])
    scored = _score_negatives(bound, unmarked, rows / "negatives.jsonl", progress)
    shared = text_directions(bound, unmarked.texts, progress=progress)
    quality = _qualities(
        judge or watermark.host,
        watermark.host,
        plan,
        [*texts["openings"], *texts["openings-unmarked"]],
        rows / "quality.jsonl",
        progress,
    )
    return Measured(texts, attacked, unavailable, scored, quality, shared)


def _tasks(stage: str, rows: Sequence[Row]) -> list[str]:
    """The task of each text, for tasks of enough texts to be judged alone: their alarms come together."""
    counts = Counter(row["group"] for row in rows)
    enough = {name for name, count in counts.items() if FEWEST_OF_A_TASK <= count < len(rows)}
    return [f"{stage}: {row['group']}" if row["group"] in enough else stage for row in rows]


def check_attacks(plan: DossierPlan) -> None:
    """Raise an error for an attack with an unknown name or a wrong setting, before any text is written."""
    for label in plan.attacks:
        with contextlib.suppress(ModelError, MissingExtraError):  # reported in the dossier
            _open(label)


def _write(
    watermark: Watermark, plan: DossierPlan, stage: Stage, path: Path, progress: Progress
) -> list[Row]:
    bound = watermark.scheme
    scheme = bound if stage.marked else None
    identity = config.config_hash(
        generation_hash(stage.decoding, scheme, bound.host), list(plan.lengths), bound.config_hash
    )

    def expected(i: int) -> Row:
        prompt = stage.prompts[i]
        known = {"id": prompt.id, "group": prompt.group, "seed": plan.seed + i, "config_hash": identity}
        return {**known, "prompt": prompt.prompt, "text": ..., "tokens": ..., "scores": ...}

    def make(batch: range) -> list[Row]:
        made = watermark.host.generate(
            [stage.prompts[i].prompt for i in batch],
            scheme=scheme,
            seeds=[plan.seed + i for i in batch],
            decoding=stage.decoding,
            batch_size=plan.batch_size,
        )
        scored = _scores(bound, plan, [each.text for each in made])
        return [
            {**expected(i), "text": each.text, "tokens": each.tokens, "scores": scores}
            for i, each, scores in zip(batch, made, scored, strict=True)
        ]

    return _rows(path, len(stage.prompts), plan.batch_size, expected, make, f"writing {stage.name}", progress)


def _attack(
    bound: BoundScheme,
    plan: DossierPlan,
    attack: Attack,
    texts: Sequence[Row],
    path: Path,
    progress: Progress,
) -> list[Row]:
    identity = config.config_hash(attack.identity(), [row["config_hash"] for row in texts])

    def expected(i: int) -> Row:
        return {"id": texts[i]["id"], "config_hash": identity, "text": ..., "scores": ...}

    def make(batch: range) -> list[Row]:
        made = attack.apply(
            [texts[i]["text"] for i in batch], seeds=[text_seed(plan.seed, texts[i]["id"]) for i in batch]
        )
        scored = _scores(bound, plan, made, whole=True)
        return [
            {**expected(i), "text": text, "scores": scores}
            for i, text, scores in zip(batch, made, scored, strict=True)
        ]

    return _rows(path, len(texts), attack.at_once, expected, make, f"attack {attack.label}", progress)


def _score_negatives(bound: BoundScheme, negatives: Negatives, path: Path, progress: Progress) -> list[Row]:
    """Score unmarked texts in every language: how often a language raises a false alarm is the question."""
    anywhere = for_languages(bound, LanguagePolicy(every=True))
    texts, identity = negatives.documents, config.config_hash(bound.config_hash, "negatives")

    def expected(i: int) -> Row:
        known = {"kind": texts[i].kind, "language": negatives.languages[i], "config_hash": identity}
        return {**known, "text": texts[i].text, "tokens": ..., "scores": ...}

    def make(batch: range) -> list[Row]:
        found = _detect(anywhere, [texts[i].text for i in batch])
        return [
            {**expected(i), "tokens": each.tokens_scored if each else 0, "scores": [_score(each, None)]}
            for i, each in zip(batch, found, strict=True)
        ]

    return _rows(path, len(texts), _NEGATIVES_PER_BATCH, expected, make, "scoring unmarked texts", progress)


def _qualities(
    judge: Host, host: Host, plan: DossierPlan, texts: Sequence[Row], path: Path, progress: Progress
) -> list[Row]:
    """Perplexity under the judge, the host's mean entropy in bits per token, diversity and repetition."""
    identity = config.config_hash(judge.info.identity, host.info.identity)

    def expected(i: int) -> Row:
        row = texts[i]
        known = {"id": row["id"], "text_hash": row["config_hash"], "config_hash": identity}
        unknown = ("log_likelihood", "judged", "entropy", "distinct_2", "distinct_3", "repetition")
        return {**known, **dict.fromkeys(unknown, ...)}

    def make(batch: range) -> list[Row]:
        some = [texts[i] for i in batch]
        prompts, written = [row["prompt"] for row in some], [row["text"] for row in some]
        entropies = list(_entropies(host, prompts, written, temperature=plan.decoding.temperature))
        likelihoods = judge.log_likelihood(prompts, written)
        return [
            {
                **expected(i),
                "log_likelihood": total,
                "judged": count,
                "entropy": entropy,
                "distinct_2": distinct(row["text"], 2),
                "distinct_3": distinct(row["text"], 3),
                "repetition": repetition(row["text"]),
            }
            for i, row, entropy, (total, count) in zip(batch, some, entropies, likelihoods, strict=True)
        ]

    return _rows(path, len(texts), plan.batch_size, expected, make, "judging quality", progress)


def _entropies(
    host: Host, prompts: Sequence[str], texts: Sequence[str], *, temperature: float
) -> Iterator[float | None]:
    """The host's mean entropy along each text, in bits per token; None for an empty text."""
    ids = [list(each.ids) for each in host.info.tokenizer.encode(texts)]
    for each, logits in zip(ids, host.next_logits(prompts, ids), strict=True):
        log_p = (logits / max(temperature, 1e-6)).log_softmax(dim=-1)
        bits = -(log_p.exp() * log_p).nan_to_num(0.0).sum(dim=-1) / 0.6931471805599453
        yield float(bits.mean()) if each else None


def _scores(
    bound: BoundScheme, plan: DossierPlan, texts: Sequence[str], *, whole: bool = False
) -> list[list[Row]]:
    """Each text's results at the plan's lengths that it reaches, and as a whole (length None)."""
    tokenizer = bound.host.tokenizer
    sizes = [len(each.ids) for each in tokenizer.encode(texts)]
    found: list[list[Row]] = [[] for _ in texts]
    for length in () if whole else sorted(plan.lengths):
        places = [i for i, size in enumerate(sizes) if size >= length]
        heads = first_tokens([texts[i] for i in places], tokenizer, tokens=length)
        for i, each in zip(places, _detect(bound, heads), strict=True):
            found[i].append(_score(each, length))
    for row, each in zip(found, _detect(bound, texts), strict=True):
        row.append(_score(each, None))
    return found


def _detect(bound: BoundScheme, texts: Sequence[str]) -> list[Detection | None]:
    written = [i for i, text in enumerate(texts) if text.strip()]
    made = bound.detect_batch([texts[i] for i in written]) if written else []
    by_place = dict(zip(written, made, strict=True))
    return [by_place.get(i) for i in range(len(texts))]


def _score(found: Detection | None, length: int | None) -> Row:
    if found is None:
        return {"length": length, "p_value": None, "z": None, "effective_length": 0.0, "conclusive": False}
    row = found.to_dict()
    kept = {name: row[name] for name in ("p_value", "z", "effective_length")}
    return {"length": length, **kept, "conclusive": found.verdict.conclusive}


def _rows(
    path: Path,
    total: int,
    batch_size: int,
    expected: Callable[[int], Row],
    make: Callable[[range], list[Row]],
    what: str,
    progress: Progress,
) -> list[Row]:
    rows = ResumableRows(path, total, batch_size=batch_size, expected=expected, private=True)
    progress(what, rows.done, total)
    for batch in rows.pending():
        rows.append(make(batch))
        progress(what, rows.done, total)
    return list(rows.read())


def _open(label: str) -> Attack:
    """The attack ``NAME`` or ``NAME:SETTING=VALUE,…``; copy-paste gets the package's human text."""
    name, _, rest = label.partition(":")
    settings: dict[str, object] = dict(config.parse_settings(rest.split(",") if rest else ()))
    if name == "copy-paste":
        settings.setdefault("human", str(package_file("human.txt")))
    return load_attack(name, **settings)
