"""The mark on a model that people deploy, after an LLM and translators have rewritten its texts.

    python benchmarks/real_models.py --device cuda --settings chat --out DIR
    python benchmarks/real_models.py --device cuda --settings openings --out DIR2    # beside the first
    python benchmarks/real_models.py --device cpu --stages score table --out DIR     # needs only the texts

The host answers requests (chat, T 0.7, top-p 0.9) and continues openings (T 1), unmarked and marked by DEW
and its rivals. The same model, or ``--llm``, then paraphrases the texts and translates them with the paper's
prompts, OPUS-MT translates them into French, both bring their translations back, and the LLM weighs pairs in
both orders, spoiled texts among them. Unmarked texts take every treatment too. Rewrites that failed are left
out by the rule of `dewmark_lab.evaluation.rewrites`, which sees no score.

Stages, for DEW and then for its rivals: write, rewrite (three treatments, the others afterwards), read (by
the host, before scoring), judge; then languages (requests in other languages); score, meaning (similarity of
a few rewrites by another encoder) and table need only the texts. Texts go to DIR/texts.jsonl, z to
DIR/scores.jsonl and summaries to DIR/rows.jsonl as they arrive, and what is there is not made again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from chat import LEVELS, NULL_KEYS, SETTINGS, Run, key, p_values, prompts_of, worded
from scipy.special import ndtri

import dewmark
from dewmark.attack import load_attack
from dewmark.core.projections import draw_matrix
from dewmark.encoders import load_encoder
from dewmark.hosts import load_host
from dewmark.hosts.base import Host
from dewmark.hosts.expectations import open_reader
from dewmark.prompts import requests
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme
from dewmark.workspace import silent
from dewmark_lab.artifacts import CARD
from dewmark_lab.attacks.rewriting.chat_model import LlmTranslate, Paraphrase, Summarise
from dewmark_lab.attacks.translation.machine_translation import NeuralEngine
from dewmark_lab.chat.local import LocalChat
from dewmark_lab.evaluation.preference import Pair, net_preference, weigh_pairs
from dewmark_lab.evaluation.rewrites import check_rewrites, rewriter_quality
from dewmark_lab.experiments.recipe import SchemeEntry, load_recipe

STAGES = ("write", "rewrite", "read", "judge", "languages", "score", "meaning", "table")
RIVALS = ("exp", "kgw", "synthid", "unigram", "dipmark", "morphmark", "kgw-self", "unbiased")
TESTS = {"unbiased": "order"}  # its default test runs the host over every text
SPOILED = (0.05, 0.1, 0.3)  # shares of words deleted, to see whether the judge notices
ALIKE = 20  # rewrites whose meaning is compared
LANGUAGES = ("de", "fr", "es", "pt", "zh")
FIRST = ("paraphrase", "fr-opus", "de-llm")  # for all schemes, before the other treatments
READ = ("none", "paraphrase", "fr-opus-back", "de-llm-back")


@dataclasses.dataclass(frozen=True)
class Treatment:
    """A rewriting of a set of texts: by ``llm``'s instruction or by OPUS-MT, after another treatment or none.

    ``language`` is the language of the result, ``share`` its expected length and ``room`` the tokens that it
    may take for each token of the original.
    """

    language: str
    llm: Any = None
    after: str = "none"
    share: float = 1.0
    room: float = 1.6


TREATMENTS = {
    "paraphrase": Treatment("en", Paraphrase()),
    "fr-opus": Treatment("fr"),
    "de-llm": Treatment("de", LlmTranslate(target="de"), room=2.0),
    "fr-opus-back": Treatment("en", after="fr-opus"),
    "de-llm-back": Treatment("en", LlmTranslate(source="de", target="en"), after="de-llm"),
    "fr-llm": Treatment("fr", LlmTranslate(target="fr"), room=2.0),
    "clsa-de": Treatment("de", Summarise(target="de"), share=0.5),
}

CHANGED = 0.2  # of the words; the paper's rewriter changes more in three of four paraphrases
VARIANTS = {"paraphrase": ("paraphrase", f"paraphrase, {CHANGED:.0%} changed", "paraphrase, in English")}
"""Selections of a treatment's rewrites that are summarised too: the thorough ones, and translations of texts
in other languages, since the LLM often answers in the language of the instruction."""


@dataclasses.dataclass(frozen=True)
class TextSet:
    """The texts of one scheme (a label of the recipes, or ``none``) under one key, setting and length."""

    host: str
    setting: str
    tokens: int
    scheme: str
    number: int = 0

    @property
    def of(self) -> dict[str, Any]:
        """What names the set in files."""
        own = {} if self.scheme == "none" else {"key": self.number}
        return {
            "host": self.host,
            "setting": self.setting,
            "tokens": self.tokens,
            "scheme": self.scheme,
            **own,
        }


class RealRun(Run):
    """The measurements of one host, kept in a folder; models are loaded when they are needed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = options.device
        self.out = options.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.rows = {json.dumps(row["of"]): row for row in self._stored("rows.jsonl")}
        self.written = {json.dumps(row["of"]): row["texts"] for row in self._stored("texts.jsonl")}
        self.scores = {json.dumps(row["of"]): np.array(row["z"]) for row in self._stored("scores.jsonl")}
        labels = ["dew-default", *options.schemes]
        self.entries = scheme_entries(options.host, labels, artifacts=options.artifacts)
        self.readings: dict[str, dict[Any, Any]] = {}
        self.start = time.perf_counter()

    @functools.cached_property
    def host(self) -> Host:  # type: ignore[override]
        """The model that writes."""
        return load_host(self.options.host, device=self.device)

    @functools.cached_property
    def llm(self) -> Host:
        """The model that rewrites and judges."""
        same = self.options.llm in (None, self.options.host)
        return self.host if same else load_host(self.options.llm, device=self.device)

    def chat(self, *, batch: int) -> LocalChat:
        """The LLM with its own sampling options."""
        return LocalChat(
            lambda: self.llm,
            identity=self.llm.info.identity,
            render=self.llm.chat.render,
            decoding=self.llm.chat.decoding,
            batch_size=batch,
        )

    def bound(self, label: str, number: int | str, *, host: object = None) -> BoundScheme:
        """A scheme under a key (number or name); ``host`` None is its vocabulary, without its weights.

        A scheme whose detection runs the host gets it, and keeps for all keys what it read.
        """
        entry = self.entries[label]
        reads = SCHEMES[entry.scheme].needs.host_at_detection and label not in TESTS
        bound = dewmark.load_scheme(
            key(f"chat-{number}" if isinstance(number, int) else number),
            host=host or (self.host if reads else self.options.host),
            scheme=entry.scheme,
            settings=dict(entry.settings),
        )
        if reads:
            bound.readings.known = self.readings.setdefault(label, {})  # type: ignore[attr-defined]
        return bound

    def sets(self, setting: str, tokens: int, *, rivals: bool) -> list[TextSet]:
        """The unmarked set and DEW's, or those of the rivals."""
        make = functools.partial(TextSet, self.options.host, setting, tokens)
        if not rivals:
            plain = [make("none")] if self.options.unmarked else []
            return [*plain, *(make("dew-default", number) for number in range(self.options.keys))]
        return [make(label, number) for number in self.options.rival_keys for label in self.options.schemes]

    def stored(self, texts: TextSet, treatment: str = "none") -> list[str] | None:
        """The texts of a set after a treatment, if they are there."""
        return self.written.get(json.dumps(treated(texts, treatment)))

    # The stages.

    def write_texts(self, sets: Sequence[TextSet]) -> None:
        """Write the sets' texts."""
        for texts in sets:
            scheme = None
            if texts.scheme != "none" and self.stored(texts) is None:
                scheme = self.bound(texts.scheme, texts.number, host=self.host)
            self.timed(texts.of, lambda t=texts, s=scheme: self.write(s, t.setting, t.tokens)[1])

    def rewrite_texts(self, sets: Sequence[TextSet], names: Sequence[str]) -> None:
        """Put sets through treatments, as many sets at once as fill the LLM's batch; OPUS-MT takes all."""
        for name in names:
            missing = [
                texts
                for texts in sets
                if self.stored(texts, TREATMENTS[name].after) is not None and self.stored(texts, name) is None
            ]
            at_once = max(self.options.llm_batch // self.options.texts, 1)
            if TREATMENTS[name].llm is None:
                at_once = max(len(missing), 1)
            for first in range(0, len(missing), at_once):
                self.rewrite_some(missing[first : first + at_once], name)

    def rewrite_some(self, sets: Sequence[TextSet], name: str) -> None:
        """Put sets through one treatment together."""
        self.check_time()
        begun = time.perf_counter()
        before = [self.stored(texts, TREATMENTS[name].after) or [] for texts in sets]
        flat = [text for each in before for text in each]
        made = self.rewritten(flat, TREATMENTS[name], max(texts.tokens for texts in sets))
        for texts, each in zip(sets, before, strict=True):
            own, made = made[: len(each)], made[len(each) :]
            self.texts(treated(texts, name), lambda own=own: own)
        self.say(f"{name} of {len(flat)} texts in {time.perf_counter() - begun:.1f} s")

    def rewritten(self, texts: list[str], treatment: Treatment, tokens: int) -> list[str]:
        """One rewrite per text; blank texts stay blank."""
        given = [i for i, text in enumerate(texts) if text.strip()]
        out = list(texts)
        chosen = [texts[i] for i in given]
        if treatment.llm is None:
            made = self.opus("fr", "en") if treatment.language == "en" else self.opus("en", "fr")
            answers = made(chosen)
        else:
            answers = self.chat(batch=self.options.llm_batch).complete(
                treatment.llm.conversations(chosen),
                seeds=given,
                max_new_tokens=int(tokens * treatment.room),
            )
        for i, answer in zip(given, answers, strict=True):
            out[i] = answer
        return out

    def opus(self, source: str, target: str) -> Callable[[list[str]], list[str]]:
        """One direction of OPUS-MT, from ``--opus`` or from its package."""
        if self.options.opus is None:
            engine = NeuralEngine(source, target, self.device)
            return functools.partial(engine.translate, task="", progress=silent)
        return functools.partial(opus_from(self.options.opus, source, target, self.device), on_progress=quiet)

    def read_texts(self, sets: Sequence[TextSet]) -> None:
        """Score DEW's texts, and unmarked ones, with the host as reader; the prompt is known for ``none``."""
        reader = open_reader(self.host, on_disk=False)
        for texts in sets:
            for name in READ:
                after = self.stored(texts, name)
                if after is None:
                    continue
                prompts = prompts_of(self.host, texts.setting, self.options.texts)
                for known in (False, True) if name == "none" else (False,):
                    kind = "host with prompt" if known else "host"
                    self.scored(texts, name, after, reader=(kind, reader), prompts=prompts if known else None)

    def judge_texts(self, sets: Sequence[TextSet]) -> None:
        """Let the LLM weigh marked texts, and spoiled ones, against unmarked ones of the same prompt.

        The host says how much less likely it finds the marked ones.
        """
        for texts in sets:
            plain = self.stored(dataclasses.replace(texts, scheme="none", number=0))
            mine = self.stored(texts)
            if texts.scheme == "none" or mine is None or plain is None:
                continue
            shown = self.asked(texts.setting)
            self.judged(texts.of, shown, mine, plain)
            prompts = prompts_of(self.host, texts.setting, self.options.texts)
            self.measured(
                texts.of | {"likelihood": True},
                lambda q=prompts, m=mine, p=plain: self.likely(q, m, p),
            )
        for setting, tokens in {(texts.setting, texts.tokens) for texts in sets}:
            unmarked = TextSet(self.options.host, setting, tokens, "none")
            plain = self.stored(unmarked)
            for share in SPOILED if plain else ():
                worse = load_attack("delete", r=share).apply(plain, seeds=range(len(plain)))
                of = unmarked.of | {"spoiled": share}
                self.judged(of, self.asked(setting), worse, plain)

    def judged(self, of: dict[str, Any], asked: list[str], mine: list[str], plain: list[str]) -> None:
        """Keep the net preference of some texts over others."""

        def measure() -> dict[str, Any]:
            pairs = [Pair(str(i), 0, *each) for i, each in enumerate(zip(asked, mine, plain, strict=True))]
            pairs = [pair for pair in pairs if pair.marked.strip() and pair.unmarked.strip()]
            rows = weigh_pairs(self.llm, pairs, scheme=of["scheme"])
            odds = float(np.mean([row["odds"] for row in rows]))
            return net_preference(rows).to_dict() | {"odds": round(odds, 3)}

        self.measured(of | {"judge": self.options.llm or self.options.host}, measure)

    def asked(self, setting: str) -> list[str]:
        """The requests or openings, without a chat template."""
        if setting.startswith("chat"):
            return [row["text"] for row in requests("en", split="eval")[: self.options.texts]]
        return prompts_of(self.host, setting, self.options.texts)

    def write_languages(self) -> None:
        """Answer requests in other languages and let the LLM paraphrase the answers."""
        for language in self.options.languages:
            asked = itertools.islice(itertools.cycle(requests(language)), self.options.texts)
            prompts = [self.host.chat.render([{"role": "user", "content": row["text"]}]) for row in asked]
            for texts in self.language_sets(language):
                scheme = None
                if texts.scheme != "none" and self.stored(texts) is None:
                    scheme = self.bound(texts.scheme, texts.number, host=self.host)

                self.timed(texts.of, functools.partial(self.answers, prompts, scheme))
            self.rewrite_texts(self.language_sets(language), ["paraphrase"])

    def answers(self, prompts: list[str], scheme: BoundScheme | None) -> list[str]:
        """The host's answers at the settings of chat."""
        made = self.host.generate(
            prompts,
            scheme=scheme,
            seeds=range(len(prompts)),
            decoding=dataclasses.replace(SETTINGS["chat"], max_new_tokens=self.options.tokens[0]),
            batch_size=self.options.batch,
        )
        return [each.text for each in made]

    def language_sets(self, language: str) -> list[TextSet]:
        """The unmarked set and DEW's of a language."""
        make = functools.partial(TextSet, self.options.host, f"chat-in-{language}", self.options.tokens[0])
        return [make("none"), *(make("dew-default", number) for number in range(self.options.keys))]

    # Scores and summaries.

    def score_texts(self) -> None:
        """Score all stored sets without a reader, compare them with unmarked ones, and check the rewrites."""
        every = [text_set(json.loads(name)) for name in self.written]
        sets = list(dict.fromkeys(texts for texts in every if texts.host == self.options.host))
        for texts in sets:
            for name in ("none", *TREATMENTS):
                after = self.stored(texts, name)
                if after is not None:
                    self.scored(texts, name, after)
                    if name != "none":
                        self.measured(
                            treated(texts, name) | {"rewriter": True},
                            lambda t=texts, n=name: rewriter_quality(self.checks(t, n)).to_dict(),
                        )
        for texts in sets:
            if texts.scheme != "none":
                self.compare(texts)

    def compare(self, texts: TextSet) -> None:
        """Summarise a marked set after every treatment, beside the unmarked one."""
        plain = dataclasses.replace(texts, scheme="none", number=0)
        variants = ((name, each) for name in ("none", *TREATMENTS) for each in VARIANTS.get(name, (name,)))
        for name, variant in variants:
            if variant.endswith("in English") and not texts.setting.startswith("chat-in-"):
                continue
            for reader in ("none", "host", "host with prompt"):
                mine, other = (self.z(each, texts.scheme, name, reader) for each in (texts, plain))
                clean = self.z(plain, texts.scheme, "none", reader)
                if mine is None or other is None or clean is None:
                    continue
                column = 0 if texts.scheme != "dew-default" else texts.number
                found = [mine[self.kept(texts, name, variant), column]]
                null = [other[self.kept(plain, name, variant)]]
                self.measured(
                    treated(texts, variant) | {"reader": reader},
                    lambda f=found, n=null, c=clean: shares(f[0], n[0], c),
                )
                before = TREATMENTS[name].after if name in TREATMENTS else "none"
                first = [self.z(each, texts.scheme, before, reader) for each in (texts, plain)]
                if before == "none" or first[0] is None or first[1] is None:
                    continue
                both, nothing = either(mine, first[0]), either(other, first[1])
                found, null = (
                    [both[self.kept(texts, name), column]],
                    [nothing[self.kept(plain, name)]],
                )
                self.measured(
                    treated(texts, f"{before}, brought back") | {"reader": reader},
                    lambda f=found, n=null, c=clean: shares(f[0], n[0], c),
                )
        mine, other = self.stored(texts), self.stored(plain)
        if mine is not None and other is not None:
            prompts = [str(i) for i in range(len(mine))]
            self.measured(texts.of | {"wording": True}, lambda: worded(prompts, mine, other))

    def scored(
        self,
        texts: TextSet,
        name: str,
        after: list[str],
        *,
        reader: tuple[str, Any] = ("none", None),
        prompts: list[str] | None = None,
    ) -> None:
        """Keep the z of texts: under DEW's keys and others, or under a rival's; unmarked ones under all."""
        labels = [texts.scheme]
        if texts.scheme == "none":  # under every scheme that has marked texts to compare with
            numbers = {0, *self.options.rival_keys}
            labels = [
                label
                for label in self.entries
                if any(self.stored(dataclasses.replace(texts, scheme=label, number=i), name) for i in numbers)
            ]
        for label in labels:
            if reader[1] is not None and label != "dew-default":
                continue
            of = treated(texts, name) | {"by": label, "reader": reader[0]}
            if json.dumps(of) in self.scores:
                continue
            number = 0 if label == "dew-default" else texts.number
            host = self.host if reader[1] is not None else None
            bounds = [self.bound(label, number, host=host).reading_with(reader[1])]
            if texts.scheme == "none" and label != "dew-default":
                bounds += [self.bound(label, f"null-{i}") for i in range(self.options.rival_nulls)]
            written = self.stored(dataclasses.replace(texts, scheme=label)) or []
            for bound in bounds:
                bound.finished(written, seeds=range(len(written)))  # WaterPool looks texts up among these
            W, known = self.matrices(label, bounds[0]), prompts or [""] * len(after)
            p = np.hstack([p_values(each, after, known, W, test=TESTS.get(label)) for each in bounds])
            z = -ndtri(np.clip(p.astype(np.float64), 1e-300, 1.0 - 1e-16))
            self.scores[json.dumps(of)] = z
            self._append("scores.jsonl", {"of": of, "z": np.round(z, 3).tolist()})

    def matrices(self, label: str, bound: BoundScheme) -> np.ndarray:
        """The keys of DEW's default and `NULL_KEYS` others (keys, d_T · d_C); of other rows none."""
        if label != "dew-default":
            return np.zeros((0, 0))
        shape = dict(zip(("d_T", "d_C"), bound.W.shape, strict=True))
        names = [f"chat-{i}" for i in range(self.options.keys)] + [f"null-{i}" for i in range(NULL_KEYS)]
        drawn = [draw_matrix(key(name), **shape) for name in names]
        return np.stack([matrix.astype(np.float32).ravel() for matrix in drawn])

    def z(self, texts: TextSet, label: str, name: str, reader: str) -> np.ndarray | None:
        """The stored z (texts, keys) of a set under a scheme."""
        return self.scores.get(json.dumps(treated(texts, name) | {"by": label, "reader": reader}))

    def compare_meanings(self) -> None:
        """Similarity of the first rewrites of DEW's first key and of unmarked texts with their originals."""
        encoder = load_encoder(self.options.encoder)
        for of in [json.loads(name) for name in self.written]:
            if (
                of.get("attack") in TREATMENTS
                and of["scheme"] in ("none", "dew-default")
                and not of.get("key")
            ):

                def measure(of: dict[str, Any] = of) -> dict[str, Any]:
                    checks = self.checks(text_set(of), of["attack"])
                    good = [i for i, each in enumerate(checks) if each.fault is None][:ALIKE]
                    texts, rewrites = self.stored(text_set(of)) or [], self.written[json.dumps(of)]
                    pairs = [texts[i] for i in good], [rewrites[i] for i in good]
                    language = TREATMENTS[of["attack"]].language
                    alike = rewriter_quality(check_rewrites(*pairs, language=language, encoder=encoder))
                    return {"similarity": alike.similarity, "texts": len(good)}

                self.measured(of | {"meaning": self.options.encoder}, measure)

    @functools.cache  # noqa: B019 - one run per process
    def checks(self, texts: TextSet, name: str, *, in_english: bool = False) -> list[Any]:
        """The checks of a set's rewrites, compared with the texts before all treatments."""
        treatment = TREATMENTS[name]
        language = treatment.language
        if texts.setting.startswith("chat-in-") and not in_english:
            language = texts.setting.removeprefix("chat-in-")
        return check_rewrites(
            self.stored(texts) or [],
            self.stored(texts, name) or [],
            language=language,
            length=treatment.share,
        )

    def kept(self, texts: TextSet, name: str, variant: str = "") -> np.ndarray:
        """The places of the rewrites without a fault, at any step, that a variant selects."""
        good = np.ones(len(self.stored(texts) or []), dtype=bool)
        least = CHANGED if variant.endswith("changed") else 0.0
        while name != "none":
            checks = self.checks(texts, name, in_english=variant.endswith("in English"))
            good &= np.array([each.fault is None and each.words_changed >= least for each in checks])
            name = TREATMENTS[name].after
        return good

    def timed(self, of: dict[str, Any], make: Callable[[], list[str]]) -> None:
        """Make texts unless they are there, and say how long it took."""
        if json.dumps(of) not in self.written:
            self.check_time()
            begun = time.perf_counter()
            self.texts(of, make)
            self.say(f"wrote {' '.join(map(str, of.values()))} in {time.perf_counter() - begun:.1f} s")

    def check_time(self) -> None:
        """End the run if its time is over; a later one continues."""
        if time.perf_counter() - self.start > 60 * self.options.minutes:
            raise SystemExit(f"{self.options.minutes:g} minutes are over: the same command continues")

    def say(self, line: str) -> None:
        """Print a line with the time."""
        print(f"[{time.perf_counter() - self.start:6.1f}] {line}", flush=True)

    def all(self) -> None:
        """All stages."""
        options, stages = self.options, set(self.options.stages)
        first = [name for name in options.treatments if name in FIRST]
        for tokens in options.tokens:
            for rivals in (False, True):
                for setting in options.settings:
                    sets = self.sets(setting, tokens, rivals=rivals)
                    if "write" in stages:
                        self.write_texts(sets)
                    if "rewrite" in stages:
                        self.rewrite_texts(sets, first)
                    if "read" in stages and not rivals:
                        self.read_texts(sets)
                    if "judge" in stages:
                        self.judge_texts(sets)
            for rivals in (False, True):
                for setting in options.settings:
                    sets = self.sets(setting, tokens, rivals=rivals)
                    if "rewrite" in stages:
                        self.rewrite_texts(sets, options.treatments)
                    if "read" in stages and not rivals:
                        self.read_texts(sets)
            if "languages" in stages and tokens == options.tokens[0]:
                self.write_languages()
        if "score" in stages:
            self.score_texts()
        if "meaning" in stages:
            self.compare_meanings()
        if "table" in stages:
            print("\n".join(table(self.rows.values())))


def scheme_entries(host: str, labels: Sequence[str], *, artifacts: Path | None) -> dict[str, SchemeEntry]:
    """Rows of the main table by label, on this host."""
    recipe = load_recipe("main", profile="local").on_host(host)
    return {entry.label: with_artifact(entry, artifacts) for entry in recipe.narrowed(schemes=labels).schemes}


def with_artifact(entry: SchemeEntry, folder: Path | None) -> SchemeEntry:
    """A row with its artifact of a folder of `train_rivals`, if there is one."""
    if folder is None or not (folder / entry.scheme / CARD).exists():
        return entry
    return dataclasses.replace(entry, settings={**entry.settings, "artifact": str(folder / entry.scheme)})


def treated(texts: TextSet, treatment: str) -> dict[str, Any]:
    """What names a set after a treatment."""
    return texts.of if treatment == "none" else texts.of | {"attack": treatment}


def text_set(of: dict[str, Any]) -> TextSet:
    """The set that a stored name belongs to."""
    return TextSet(of["host"], of["setting"], of["tokens"], of["scheme"], of.get("key", 0))


def either(z: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The z of p = 2 min(p₁, p₂)."""
    from scipy.special import ndtr

    p = np.minimum(2.0 * np.minimum(ndtr(-z), ndtr(-other)), 1.0)
    return -np.asarray(ndtri(np.clip(p, 1e-300, 1.0 - 1e-16)))


def shares(marked: np.ndarray, unmarked: np.ndarray, clean: np.ndarray) -> dict[str, Any]:
    """Shares found, false alarms, and the shares found where 1% or 5% of unmarked texts (texts, keys) are.

    ``matched`` are unmarked texts after the same treatment; the paper's thresholds come from untreated ones.
    """
    limits = {level: -float(ndtri(level)) for level in LEVELS}
    if not len(marked) or not len(unmarked):  # every rewrite failed
        return {"texts": len(marked), "unmarked texts": len(unmarked)}
    return {
        "texts": len(marked),
        "unmarked texts": len(unmarked),
        "z": float(marked.mean()),
        **{f"p<{level:g}": float(np.mean(marked > limit)) for level, limit in limits.items()},
        "false alarms": {f"p<{level:g}": float(np.mean(unmarked > limit)) for level, limit in limits.items()},
        **{f"matched {r}%": float(np.mean(marked > np.quantile(unmarked, 1 - r / 100))) for r in (1, 5)},
        **{f"untreated {r}%": float(np.mean(marked > np.quantile(clean, 1 - r / 100))) for r in (1, 5)},
    }


@functools.cache
def opus_from(folder: Path, source: str, target: str, device: str) -> Callable[..., list[str]]:
    """A Marian model in FOLDER/helsinki_SOURCE_TARGET, of transformers or converted (`opus_int8`)."""
    from opus_int8 import Int8Opus

    from dewmark.models.devices import torch_device
    from dewmark_lab.attacks.translation.opus import OpusTranslator

    model = folder / f"helsinki_{source}_{target}"
    if (model / "model.bin").exists():
        return Int8Opus(model).translate
    return OpusTranslator(model, device=torch_device(device)).translate


def quiet(done: int, total: int) -> None:
    """Progress that nobody sees."""


def table(rows: Any) -> Iterator[str]:  # noqa: ANN401 - values of a dict
    """Markdown: a line per setting, scheme and treatment, means over keys."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        of = row["of"]
        if "matched 1%" in row:
            name = (of["setting"], of["tokens"], of.get("attack", "none"), of["scheme"], of["reader"])
            groups.setdefault(name, []).append(row)
    heads = ["setting", "tokens", "treatment", "scheme", "reader", "texts", "z", "p < 0.01", "p < 1e-4"]
    heads += ["matched at 1%", "unmarked p < 0.01"]
    yield "| " + " | ".join(heads) + " |"
    yield "| --- " * len(heads) + "|"
    for name, each in groups.items():
        mean = {
            field: np.mean([row[field] for row in each])
            for field in ("z", "p<0.01", "p<0.0001", "matched 1%")
        }
        alarms = np.mean([row["false alarms"]["p<0.01"] for row in each])
        number = "+".join(str(row["texts"]) for row in each)
        cells = [
            *map(str, name),
            number,
            f"{mean['z']:.2f}",
            f"{mean['p<0.01']:.3f}",
            f"{mean['p<0.0001']:.3f}",
        ]
        yield "| " + " | ".join([*cells, f"{mean['matched 1%']:.3f}", f"{alarms:.3f}"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="qwen2.5-coder-1.5b")
    parser.add_argument("--llm", help="the model that rewrites and judges, unless it is the host")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--keys", type=int, default=3, help="keys of DEW")
    parser.add_argument("--rival-keys", type=int, nargs="+", default=[0], help="the numbers of rivals' keys")
    parser.add_argument("--rival-nulls", type=int, default=4, help="more keys of rivals on unmarked texts")
    parser.add_argument("--tokens", type=int, nargs="+", default=[200, 400])
    parser.add_argument("--settings", nargs="+", default=["chat", "openings"], choices=list(SETTINGS))
    parser.add_argument(
        "--schemes", nargs="*", default=list(RIVALS), help="rivals, by their labels in recipes"
    )
    parser.add_argument("--treatments", nargs="*", default=list(TREATMENTS), choices=list(TREATMENTS))
    parser.add_argument("--artifacts", type=Path, help="a folder of train_rivals.py for this host")
    parser.add_argument(
        "--unmarked",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="--no-unmarked: another process has these texts; join the files texts.jsonl to score",
    )
    parser.add_argument("--languages", nargs="*", default=list(LANGUAGES))
    parser.add_argument("--stages", nargs="+", default=list(STAGES[:5]), choices=STAGES)
    parser.add_argument("--encoder", default="e5-small", help="for the stage meaning; no scheme uses it")
    parser.add_argument("--opus", type=Path, help="a folder with helsinki_en_fr and helsinki_fr_en")
    parser.add_argument("--batch", type=int, default=200, help="texts that the host writes at once")
    parser.add_argument("--llm-batch", type=int, default=800)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after them")
    parser.add_argument("--out", type=Path, required=True)
    RealRun(parser.parse_args()).all()


if __name__ == "__main__":
    main()
