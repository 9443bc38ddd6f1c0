"""The measurements of a dossier: the plan of what is written and attacked, and stages whose rows resume.

Openings are continued at the decoding options given; chat requests go through the host's own chat template at
its own generation settings, because that is how a product uses it. Three kinds of output that leave a mark
little room (code, JSON, labels of a few words) are requested on purpose.

Every stage is a JSONL file under ``rows/``, which a stopped run continues. Texts are scored as a desk would
see them: without their prompt. A text's ``scores`` are those of its first tokens at each length of the plan,
and of the whole. Boundary: rows out; `findings` counts them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dewmark import config
from dewmark.arrays import F32
from dewmark.batch.inputs import Document
from dewmark.decoding import Decoding
from dewmark.detect import Examined, detect_texts
from dewmark.errors import ConfigError, MissingExtraError, ModelError
from dewmark.hosts.base import ChatFormat, Host, generation_hash
from dewmark.registry import Registry
from dewmark.scheme import BoundScheme, for_languages
from dewmark.storage import ResumableRows
from dewmark.text.languages import LanguagePolicy
from dewmark.text.words import distinct, repetition
from dewmark.watermark import Watermark
from dewmark.workspace import Progress, silent
from dewmark_audit.negatives import Negatives, text_directions
from dewmark_audit.texts import first_tokens, openings, package_file, requests

Row = dict[str, Any]

FEWEST_OF_A_TASK = 8  # the audit predicts nothing for fewer
_NEGATIVES_PER_BATCH = 64
_QUALITIES = ("log_likelihood", "judged", "entropy", "distinct_2", "distinct_3", "repetition")

DEFAULT_ATTACKS = (
    "delete:r=0.1",
    "delete:r=0.3",
    "truncate:n=60",
    "copy-paste:share=0.25",
    "round-trip",
    "translate",
)
"""The attacks that need no large model; those that this machine cannot run are reported as not measured."""

LARGE_ATTACKS = ("synonym", "paraphrase", "dipper")
"""The library's other attacks, which are measured only on request."""

_FORMATS: Mapping[str, Sequence[str]] = {
    "code": (
        "Write a Python function that returns the n-th Fibonacci number. Answer with code only.",
        "Write a Python class for a bank account with deposit and withdraw. Answer with code only.",
        "Write a SQL query that counts the orders of each customer. Answer with code only.",
        "Write a JavaScript function that reverses a string. Answer with code only.",
    ),
    "JSON": (
        'Give me a JSON object with the keys "name", "age" and "city" for a person. Answer with JSON only.',
        "Give me a JSON list of five European capitals with their countries. Answer with JSON only.",
        'Give me a JSON object for a book with "title", "author", "year" and "tags". Answer with JSON only.',
        "Give me a JSON list of three recipes with their ingredients. Answer with JSON only.",
    ),
    "short labels": (
        "Is this review positive or negative? 'The food was cold and late.' Answer with one word.",
        "Which language is this: 'Das ist ein Haus'? Answer with one word.",
        "Choose a category for 'The team won the match in extra time': sports, politics, business. One word.",
        "Give me a title of at most five words for an article about bees.",
    ),
}
# ``open`` opens an attack by its name, and ``seed`` is the seed of one text in a run
_ATTACKING = Registry("part of attacking", {}, group="dewmark.attacking", companion="dewmark-lab")
_PROMPT_SENTENCES = 2  # in a language other than English, the prompt is this many ordinary sentences


class Attack(Protocol):
    """What a dossier asks of an attack; dewmark-lab publishes them."""

    at_once: int

    @property
    def label(self) -> str:
        """The name in tables."""

    def identity(self) -> dict[str, object]:
        """Everything that determines the output besides text and seed."""

    def apply(self, texts: Sequence[str], *, seeds: Sequence[int]) -> list[str]:
        """Rewrite texts in order."""


@dataclass(frozen=True, slots=True)
class StagePrompt:
    """A prompt as the host gets it; ``group`` is its genre, language or format."""

    id: str
    group: str
    prompt: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Stage:
    """Texts to write: prompts, decoding options, marked or not."""

    name: str
    prompts: tuple[StagePrompt, ...] = field(repr=False)
    decoding: Decoding
    marked: bool


@dataclass(frozen=True, kw_only=True)
class DossierPlan:
    """The sizes and settings of a dossier's measurements; texts are counted per marked or unmarked set."""

    openings: int = 24
    chats: int = 12
    per_language: int = 4
    per_format: int = 4
    languages: tuple[str, ...] = ("de", "es", "fr", "it", "pt")
    lengths: tuple[int, ...] = (50, 100, 200)
    levels: tuple[float, ...] = (0.01, 0.001)
    decoding: Decoding = Decoding()
    attacks: tuple[str, ...] = DEFAULT_ATTACKS
    """``NAME`` or ``NAME:SETTING=VALUE,…``."""
    seed: int = 0
    batch_size: int = 16

    def __post_init__(self) -> None:
        limits = {
            "openings": len(openings()),
            "chats": len(requests(split="eval")),
            "per_format": 4,
            "per_language": 10,
        }
        for name, most in limits.items():
            if not 0 <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must lie between 0 and {most}, got {getattr(self, name)}")
        if self.openings < 4:
            raise ConfigError(f"a dossier needs at least 4 openings, got {self.openings}")
        if not self.lengths or min(self.lengths) < 1:
            raise ConfigError(f"lengths must be positive numbers of tokens, got {self.lengths}")
        for level in self.levels:
            if not 0.0 < level < 1.0:
                raise ConfigError(f"a level must lie in (0, 1), got {level:g}")
        unknown = [name for name in self.languages if not _ordinary_file(name).is_file()]
        if unknown:
            raise ConfigError(f"no prompts in language {unknown[0]!r}: the package has ar, de, en, es, fr, …")

    def stages(self, chat: ChatFormat | None) -> list[Stage]:
        """The texts to write; a host without a chat format gets no requests."""
        long = dataclasses.replace(self.decoding, max_new_tokens=max(self.lengths))
        opened = tuple(StagePrompt(row["id"], "opening", row["text"]) for row in openings()[: self.openings])
        stages = [Stage("openings", opened, long, True), Stage("openings-unmarked", opened, long, False)]
        foreign = tuple(
            StagePrompt(f"{language}-{i}", language, prompt)
            for language in self.languages
            for i, prompt in enumerate(_ordinary_prompts(language)[: self.per_language])
        )
        if foreign:
            stages.append(Stage("languages", foreign, long, True))
        if chat is not None:
            own = dataclasses.replace(chat.decoding, max_new_tokens=max(self.lengths))
            chats = tuple(
                StagePrompt(row["id"], row["kind"], chat.render([{"role": "user", "content": row["text"]}]))
                for row in requests(split="eval")[: self.chats]
            )
            formats = tuple(
                StagePrompt(f"{name}-{i}", name, chat.render([{"role": "user", "content": text}]))
                for name, texts in _FORMATS.items()
                for i, text in enumerate(texts[: self.per_format])
            )
            if chats:
                stages += [Stage("chat", chats, own, True), Stage("chat-unmarked", chats, own, False)]
            if formats:
                stages.append(Stage("formats", formats, own, True))
        return stages


def _ordinary_file(language: str) -> Any:  # noqa: ANN401 - a Traversable, which mypy's stubs move about
    return package_file(f"ordinary/{language}.txt")


def _ordinary_prompts(language: str) -> list[str]:
    lines = _ordinary_file(language).read_text(encoding="utf-8").splitlines()
    return [
        " ".join(lines[i : i + _PROMPT_SENTENCES])
        for i in range(0, len(lines) - _PROMPT_SENTENCES + 1, _PROMPT_SENTENCES)
    ]


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
    """Of all ``negatives`` (N, D), see `dewmark_audit.negatives.text_directions`."""


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
    both, host = [*texts["openings"], *texts["openings-unmarked"]], watermark.host
    quality = _qualities(judge or host, host, plan, both, rows / "quality.jsonl", progress)
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


def _write(writer: Watermark, plan: DossierPlan, stage: Stage, path: Path, progress: Progress) -> list[Row]:
    bound = writer.scheme
    scheme = bound if stage.marked else None
    identity = config.config_hash(
        generation_hash(stage.decoding, scheme, bound.host), list(plan.lengths), bound.config_hash
    )

    def known(i: int) -> Row:
        prompt = stage.prompts[i]
        seed = {"seed": plan.seed + i, "config_hash": identity}
        return {"id": prompt.id, "group": prompt.group, **seed, "prompt": prompt.prompt}

    def make(batch: range) -> Iterator[Row]:
        made = writer.host.generate(
            [stage.prompts[i].prompt for i in batch],
            scheme=scheme,
            seeds=[plan.seed + i for i in batch],
            decoding=stage.decoding,
            batch_size=plan.batch_size,
        )
        scored = _scores(bound, plan, [each.text for each in made])
        for each, scores in zip(made, scored, strict=True):
            yield {"text": each.text, "tokens": each.tokens, "scores": scores}

    rows = _Rows(path, len(stage.prompts), plan.batch_size, known, ("text", "tokens", "scores"))
    return rows.completed(make, f"writing {stage.name}", progress)


def _attack(
    mark: BoundScheme, plan: DossierPlan, attack: Attack, texts: Sequence[Row], path: Path, progress: Progress
) -> list[Row]:
    seed = _ATTACKING["seed"]
    identity = config.config_hash(attack.identity(), [row["config_hash"] for row in texts])

    def known(i: int) -> Row:
        return {"id": texts[i]["id"], "config_hash": identity}

    def make(batch: range) -> Iterator[Row]:
        made = attack.apply(
            [texts[i]["text"] for i in batch], seeds=[seed(plan.seed, texts[i]["id"]) for i in batch]
        )
        scored = _scores(mark, plan, made, whole=True)
        for text, scores in zip(made, scored, strict=True):
            yield {"text": text, "scores": scores}

    rows = _Rows(path, len(texts), attack.at_once, known, ("text", "scores"))
    return rows.completed(make, f"attack {attack.label}", progress)


def _score_negatives(bound: BoundScheme, negatives: Negatives, path: Path, progress: Progress) -> list[Row]:
    """Score unmarked texts in every language: how often a language raises a false alarm is the question."""
    anywhere = for_languages(bound, LanguagePolicy(every=True))
    texts, identity = negatives.documents, config.config_hash(bound.config_hash, "negatives")

    def known(i: int) -> Row:
        kind = {"kind": texts[i].kind, "language": negatives.languages[i], "config_hash": identity}
        return {**kind, "text": texts[i].text}

    def make(batch: range) -> Iterator[Row]:
        for each in detect_texts([texts[i].text for i in batch], anywhere, explain=False, blank=True):
            yield {"tokens": each.detection.tokens_scored, "scores": [_score(each, None)]}

    rows = _Rows(path, len(texts), _NEGATIVES_PER_BATCH, known, ("tokens", "scores"))
    return rows.completed(make, "scoring unmarked texts", progress)


def _qualities(
    judge: Host, host: Host, plan: DossierPlan, texts: Sequence[Row], path: Path, progress: Progress
) -> list[Row]:
    """Perplexity under the judge, the host's mean entropy in bits per token, diversity and repetition."""
    identity = config.config_hash(judge.info.identity, host.info.identity)

    def known(i: int) -> Row:
        return {"id": texts[i]["id"], "text_hash": texts[i]["config_hash"], "config_hash": identity}

    def make(batch: range) -> Iterator[Row]:
        some = [texts[i] for i in batch]
        prompts, written = [row["prompt"] for row in some], [row["text"] for row in some]
        entropies = list(_entropies(host, prompts, written, temperature=plan.decoding.temperature))
        likelihoods = judge.log_likelihood(prompts, written)
        for text, entropy, (total, count) in zip(written, entropies, likelihoods, strict=True):
            pairs, triples = distinct(text, 2), distinct(text, 3)
            values = (total, count, entropy, pairs, triples, repetition(text))
            yield dict(zip(_QUALITIES, values, strict=True))

    rows = _Rows(path, len(texts), plan.batch_size, known, _QUALITIES)
    return rows.completed(make, "judging quality", progress)


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
        for i, each in zip(places, detect_texts(heads, bound, explain=False, blank=True), strict=True):
            found[i].append(_score(each, length))
    for row, each in zip(found, detect_texts(texts, bound, explain=False, blank=True), strict=True):
        row.append(_score(each, None))
    return found


def _score(found: Examined, length: int | None) -> Row:
    row = found.judged.to_dict() | {"p_of_whole": found.detection.p_value}
    kept = {name: row[name] for name in ("p_value", "p_of_whole", "z", "effective_length")}
    if not found.detection.tokens_scored:
        kept = dict.fromkeys(kept, None) | {"effective_length": 0.0}
    return {"length": length, **kept, "conclusive": found.verdict.conclusive}


@dataclass(frozen=True)
class _Rows:
    """A stage's file: what is ``known`` of row i in advance, and the fields that are ``made``."""

    path: Path
    total: int
    batch_size: int
    known: Callable[[int], Row]
    made: Sequence[str]

    def completed(self, make: Callable[[range], Iterable[Row]], what: str, progress: Progress) -> list[Row]:
        """All rows; those that the file lacks are made, batch by batch."""
        unknown = dict.fromkeys(self.made, ...)

        def expected(i: int) -> Row:
            return {**self.known(i), **unknown}

        size = self.batch_size
        rows = ResumableRows(self.path, self.total, batch_size=size, expected=expected, private=True)
        progress(what, rows.done, self.total)
        for batch in rows.pending():
            rows.append([{**self.known(i), **each} for i, each in zip(batch, make(batch), strict=True)])
            progress(what, rows.done, self.total)
        return list(rows.read())


def _open(label: str) -> Attack:
    """The attack ``NAME`` or ``NAME:SETTING=VALUE,…``; copy-paste gets the package's human text."""
    name, _, rest = label.partition(":")
    settings: dict[str, object] = dict(config.parse_settings(rest.split(",") if rest else ()))
    if name == "copy-paste":
        settings.setdefault("human", str(package_file("human.txt")))
    if "open" not in _ATTACKING:
        raise ConfigError("no attack is installed: pip install dewmark-lab")
    opened: Attack = _ATTACKING["open"](name, **settings)
    return opened
