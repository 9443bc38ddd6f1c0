"""The mark at the settings people use: chat answers at T 0.7 and top-p 0.9 beside openings at T 1.

    python benchmarks/chat.py --host smollm2-135m --device cuda --texts 200 --keys 3 --out DIR

Per scheme, setting and key: texts marked and unmarked from the same prompts and seeds; what is found
unattacked, after deletion of words, with synonyms from WordNet, after translation into Portuguese, brought
back before scoring, and after the round trip; read by no model, by the host (with and without the prompt) and
by other models; the same of the unmarked texts under `NULL_KEYS` other keys; how the wording differs; and how
much less likely the host finds the marked text. Appends rows to DIR/rows.jsonl and texts to DIR/texts.jsonl
as it goes; what is there is not measured again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

import dewmark
from dewmark.core.projections import draw_matrix
from dewmark.decoding import Decoding
from dewmark.hosts import load_host
from dewmark.hosts.base import Host
from dewmark.hosts.expectations import open_reader
from dewmark.prompts import requests
from dewmark.scheme import BoundScheme
from dewmark_lab.attacks.rewriting.synonyms import Synonym
from dewmark_lab.attacks.translation.machine_translation import NeuralEngine
from dewmark_lab.evaluation.wording import MEASURES, TextPair, listed_words, prompt_interval
from dewmark_lab.metrics import mean_interval

NULL_KEYS = 24
SETTINGS = {
    "chat": Decoding(temperature=0.7, top_p=0.9),
    "chat-full": Decoding(temperature=0.7, top_p=0.9),  # no answer ends before its number of tokens
    "chat-warm": Decoding(temperature=1.0, top_p=0.95),
    "openings": Decoding(),
}
LEVELS = (0.01, 0.001, 1e-4)


def key(name: str) -> dewmark.Key:
    return dewmark.Key(hashlib.sha256(name.encode()).digest())


def prompts_of(host: Host, setting: str, number: int) -> list[str]:
    if setting.startswith("chat"):
        asked = requests("en", split="eval")[:number]
        return [host.chat.render([{"role": "user", "content": row["text"]}]) for row in asked]
    lines = (Path(dewmark.__file__).parent / "data" / "openings.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines[:number]]


def delete_words(texts: Sequence[str], share: float) -> list[str]:
    rng = np.random.default_rng(0)
    split = [text.split(" ") for text in texts]
    return [" ".join(w for w in words if rng.random() >= share) for words in split]


def p_values(
    bound: BoundScheme,
    texts: Sequence[str],
    prompts: Sequence[str],
    W: np.ndarray,
    *,
    test: str | None = None,
) -> np.ndarray:
    """p (texts, keys): under the scheme's own key, and for DEW under others (keys, d_T · d_C) too."""
    if bound.scheme.name != "dew" or not len(W):
        p = np.ones((len(texts), 1))  # an empty text is evidence of nothing
        kept = [number for number, text in enumerate(texts) if text.strip()]
        found = bound.detect_batch([texts[number] for number in kept], test=test)
        p[kept, 0] = [each.p_value for each in found]
        return p
    evidence = bound.evidence(bound.tokenize(texts), bound.tokenize(prompts))
    matrices = [(each.T * each.weights[:, None].astype(np.float32)).T @ each.C for each in evidence]
    M = np.stack([matrix.ravel() / max(float(np.linalg.norm(matrix)), 1e-12) for matrix in matrices])
    return np.asarray(ndtr(-(M @ W.T)))


def found(p: np.ndarray) -> dict[str, Any]:
    """The shares found at each level, and the mean z, of p (texts, keys) under the first key."""
    z = -np.asarray(_ndtri(p[:, 0]))
    return {"z": float(z.mean()), **{f"p<{level:g}": float(np.mean(p[:, 0] < level)) for level in LEVELS}}


def false_alarms(p: np.ndarray) -> dict[str, float]:
    return {f"p<{level:g}": float(np.mean(p < level)) for level in LEVELS}


def _ndtri(p: np.ndarray) -> np.ndarray:
    from scipy.special import ndtri

    return np.asarray(ndtri(np.clip(p.astype(np.float64), 1e-300, 1.0 - 1e-16)))


class Run:
    """One host's measurements, kept in a folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out: Path = options.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.host = load_host(options.host, device=options.device)
        self.device = options.device
        self.readers = {"host": open_reader(self.host, on_disk=False)}
        for name in options.readers:
            self.readers[name] = open_reader(name, device=options.device, on_disk=False)
        self.rows = {json.dumps(row["of"]): row for row in self._stored("rows.jsonl")}
        self.written = {json.dumps(row["of"]): row["texts"] for row in self._stored("texts.jsonl")}
        self.start = time.perf_counter()

    def _stored(self, name: str) -> Iterator[dict[str, Any]]:
        file = self.out / name
        yield from (
            (json.loads(line) for line in file.read_text("utf-8").splitlines()) if file.exists() else ()
        )

    def _append(self, name: str, row: dict[str, Any]) -> None:
        with (self.out / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def measured(self, of: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Measure unless it is there, and keep the row."""
        name = json.dumps(of)
        if name not in self.rows:
            begun = time.perf_counter()
            row = {"of": of, **measure(), "seconds": round(time.perf_counter() - begun, 2)}
            self.rows[name] = row
            self._append("rows.jsonl", row)
            shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items() if k != "of"}
            print(
                f"[{time.perf_counter() - self.start:6.1f}] {' '.join(map(str, of.values()))} {shown}",
                flush=True,
            )
        return self.rows[name]

    def texts(self, of: dict[str, Any], make: Callable[[], list[str]]) -> list[str]:
        """Make texts unless they are there, and keep them."""
        name = json.dumps(of)
        if name not in self.written:
            self.written[name] = make()
            self._append("texts.jsonl", {"of": of, "texts": self.written[name]})
        return self.written[name]

    def write(self, scheme: BoundScheme | None, setting: str, tokens: int) -> tuple[list[str], list[str]]:
        """Prompts of a setting and the texts that the host writes after them."""
        prompts = prompts_of(self.host, setting, self.options.texts)
        decoding = dewmark.Decoding(
            max_new_tokens=tokens,
            min_new_tokens=tokens if setting.endswith("-full") else 0,
            temperature=SETTINGS[setting].temperature,
            top_p=SETTINGS[setting].top_p,
        )
        made = self.host.generate(
            prompts,
            scheme=scheme,
            seeds=range(len(prompts)),
            decoding=decoding,
            batch_size=self.options.batch,
        )
        return prompts, [each.text for each in made]

    def attacked(self, of: dict[str, Any], texts: list[str]) -> dict[str, list[str]]:
        """The texts after each attack."""
        made = {"none": texts}
        if "delete" in self.options.attacks:
            made |= {f"delete-{share}": delete_words(texts, share / 100) for share in (30, 50)}
        quiet: Any = {"task": "", "progress": lambda *_: None}
        if "wordnet" in self.options.attacks:
            synonyms = Synonym(method="wordnet", r=0.3, device=self.device)
            made["wordnet-30"] = self.texts(
                of | {"attack": "wordnet-30"},
                lambda: synonyms.rewrite(texts, seeds=range(len(texts)), progress=quiet["progress"]),
            )
        if "translate" in self.options.attacks:
            there = NeuralEngine("en", "pt", self.device)
            back = NeuralEngine("pt", "en", self.device)
            made["translate"] = self.texts(
                of | {"attack": "translate"}, lambda: there.translate(texts, **quiet)
            )
            pt = made["translate"]
            made["round-trip"] = self.texts(
                of | {"attack": "round-trip"}, lambda: back.translate(pt, **quiet)
            )
        return made

    def score(
        self, bound: BoundScheme, of: dict[str, Any], prompts: list[str], texts: list[str], *, marked: bool
    ) -> None:
        """Score texts after every attack, read by every reader."""
        nothing = [""] * len(texts)
        W = np.zeros((0, 0))
        if bound.scheme.name == "dew":
            d_T, d_C = bound.W.shape
            own = [bound.W] if marked else []
            others = [draw_matrix(key(f"null-{i}"), d_T=d_T, d_C=d_C) for i in range(NULL_KEYS)]
            W = np.stack([matrix.astype(np.float32).ravel() for matrix in (*own, *others)])
        summary = found if marked else false_alarms
        kept: dict[str, np.ndarray] = {}
        for attack, changed in self.attacked(of, texts).items():
            tried: list[tuple[str, Any, list[str]]] = [("none", None, nothing)]
            if bound.scheme.name == "dew":
                for name, reader in self.readers.items():
                    if attack not in self.options.read_attacks:
                        continue
                    tried.append((name, reader, nothing))
                    if attack in ("none", "round-trip") and name == "host":
                        tried.append((f"{name} with prompt", reader, prompts))
            for name, reader, before in tried:
                mine = bound.reading_with(reader)

                def measure(mine=mine, changed=changed, before=before, name=name, attack=attack):  # noqa: ANN001, ANN202
                    p = p_values(mine, changed, before, W)
                    kept[f"{attack}/{name}"] = p
                    more = {"other keys": false_alarms(p[:, 1:])} if marked and p.shape[1] > 1 else {}
                    return {**summary(p), **more}

                self.measured(of | {"attack": attack, "reader": name, "marked": marked}, measure)
        for name in ("none", *self.readers):
            pair = kept.get(f"translate/{name}"), kept.get(f"round-trip/{name}")
            if pair[0] is not None and pair[1] is not None:
                both = np.minimum(2.0 * np.minimum(*pair), 1.0)
                where = of | {"attack": "translate, brought back", "reader": name, "marked": marked}
                self.measured(where, lambda both=both: summary(both))

    def judge(self, kinds: dict[str, list[str]]) -> None:
        """False alarms of the default on human texts, under `NULL_KEYS` keys, with and without readers."""
        bound = dewmark.load_scheme(key("chat-0"), host=self.host)
        shape = dict(zip(("d_T", "d_C"), bound.W.shape, strict=True))
        drawn = [draw_matrix(key(f"null-{i}"), **shape) for i in range(NULL_KEYS)]
        W = np.stack([matrix.astype(np.float32).ravel() for matrix in drawn])
        for kind, texts in kinds.items():
            for name, reader in {"none": None, **self.readers}.items():
                mine = bound.reading_with(reader)

                def measure(mine=mine, texts=texts):  # noqa: ANN001, ANN202
                    p = p_values(mine, texts, [""] * len(texts), W)
                    return {"texts": len(texts), **false_alarms(p), "sd of z": float(_ndtri(p).std())}

                self.measured({"host": self.options.host, "negatives": kind, "reader": name}, measure)

    def likely(self, prompts: Sequence[str], marked: Sequence[str], plain: Sequence[str]) -> dict[str, Any]:
        """Nats per token under the host at temperature 1, marked minus unmarked."""
        kinds = [[text or "." for text in texts] for texts in (marked, plain)]
        mine, theirs = (
            np.array([-total / count for total, count in self.host.log_likelihood(prompts, texts)])
            for texts in kinds
        )
        return {"nats": mean_interval(mine - theirs).to_dict(), "unmarked": float(theirs.mean())}

    def all(self) -> None:
        """All settings, schemes and keys."""
        options = self.options
        for tokens in options.tokens:
            for setting in options.settings:
                base = {"host": options.host, "setting": setting, "tokens": tokens, "scheme": "none"}
                prompts = prompts_of(self.host, setting, options.texts)
                plain = self.texts(base, lambda s=setting, t=tokens: self.write(None, s, t)[1])
                for scheme in options.schemes:
                    name, _, given = scheme.partition(":")
                    settings = json.loads(given) if given else {}
                    for number in range(options.keys if name == "dew" else options.rival_keys):
                        of = base | {"scheme": scheme, "key": number}
                        bound = dewmark.load_scheme(
                            key(f"chat-{number}"), host=self.host, scheme=name, settings=settings
                        )
                        begun = time.perf_counter()
                        texts = self.texts(of, lambda b=bound, s=setting, t=tokens: self.write(b, s, t)[1])
                        print(f"wrote in {time.perf_counter() - begun:.1f} s", flush=True)
                        self.score(bound, of, prompts, texts, marked=True)
                        self.measured(
                            of | {"wording": True}, lambda t=texts, p=plain, q=prompts: worded(q, t, p)
                        )
                        self.measured(
                            of | {"likelihood": True},
                            lambda q=prompts, t=texts, p=plain: self.likely(q, t, p),
                        )
                        if number == 0:
                            self.score(bound, base | {"by": scheme}, prompts, plain, marked=False)


def worded(prompts: Sequence[str], marked: Sequence[str], plain: Sequence[str]) -> dict[str, Any]:
    pairs = [TextPair(p, m, u) for p, m, u in zip(prompts, marked, plain, strict=True)]
    found = [(pair.prompt, pair.differences(listed=listed_words())) for pair in pairs]
    intervals = {name: prompt_interval([(prompt, each[name]) for prompt, each in found]) for name in MEASURES}
    return {"prompts": len(pairs), **{name: each and each.to_dict() for name, each in intervals.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--rival-keys", type=int, default=1)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--tokens", type=int, nargs="+", default=[200])
    parser.add_argument("--settings", nargs="+", default=["chat", "openings"], choices=list(SETTINGS))
    parser.add_argument("--schemes", nargs="+", default=["dew"], help='names, or name:{"settings": …}')
    parser.add_argument("--readers", nargs="*", default=[], help="models that read, besides the host")
    parser.add_argument("--attacks", nargs="*", default=["delete", "translate"])
    parser.add_argument("--read-attacks", nargs="*", default=["none", "delete-50", "round-trip"])
    parser.add_argument("--negatives", type=Path, help="JSON: kinds of human texts, for false alarms")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    run = Run(options)
    if options.negatives is not None:
        run.judge(json.loads(options.negatives.read_text(encoding="utf-8")))
    run.all()


if __name__ == "__main__":
    main()
