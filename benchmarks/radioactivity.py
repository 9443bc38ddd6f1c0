"""Whether the mark passes into a student fine-tuned on marked, paraphrased or translated text.

    python benchmarks/radioactivity.py --device cuda --work W --out A --students before unmarked key-1
    python benchmarks/radioactivity.py --device cuda --work W --out B --students key-0 paraphrased translated

A teacher continues the package's openings, unmarked and marked under two keys. The texts of key 0 are also
paraphrased by an LLM and translated into French by OPUS-MT. On each of these sets a fresh student is fully
fine-tuned; it then continues openings that no teacher saw, without a mark. All its texts together are tested
(`dewmark.lab.evaluation.radioactivity`), alone and against the student before training.

The null: students of unmarked and of other-key text under the teacher's keys, and every student under
`NULL_KEYS` keys that marked nothing. Students' texts go to OUT/students.jsonl and tests to OUT/rows.jsonl;
what is there is not made again. W holds the teacher's texts.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from script_inputs import named_key, script_parser

import dewmark
from dewmark.attacks.rewriting.chat_model import Paraphrase
from dewmark.attacks.translation.machine_translation import NeuralEngine
from dewmark.decoding import Decoding
from dewmark.hosts import load_host
from dewmark.hosts.chat.local import LocalChat
from dewmark.hosts.transformers.model import TransformersHost
from dewmark.lab.evaluation.radioactivity import corpus_matrix, other_keys, z_under
from dewmark.lab.prompts import openings
from dewmark.scheme import BoundScheme
from dewmark.storage import append_jsonl, read_jsonl
from dewmark.workspace import silent

NULL_KEYS = 400
HELD_OUT = 100  # openings that only students continue
STUDENTS = ("before", "unmarked", "key-0", "key-1", "paraphrased", "translated")
FRENCH = "translated"
BEFORE_IN_FRENCH = "before, in French"  # the control of the student of translations


def main() -> None:
    """Run the benchmark."""
    options = parse()
    run = Run(options)
    for name in options.students:
        run.student_texts(name)
    for name in options.students:
        run.test(name)


class Run:
    """Texts and tests, kept in two folders."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.decoding = Decoding(max_new_tokens=options.tokens)
        self.start = time.perf_counter()
        for folder in (options.work, options.out):
            folder.mkdir(parents=True, exist_ok=True)

    def kept(self, file: Path, name: str, make: Callable[[], list[str]]) -> list[str]:
        """Texts from a file, made and added to it if they are not there."""
        stored = {row["name"]: row["texts"] for _, row in read_jsonl(file)} if file.exists() else {}
        if name not in stored:
            begun = time.perf_counter()
            stored[name] = make()
            append_jsonl(file, [{"name": name, "texts": stored[name]}])
            self.say(f"{len(stored[name])} texts {name} in {time.perf_counter() - begun:.1f} s")
        return list(stored[name])

    # What students learn from.

    def prompts(self, number: int, *, held_out: bool) -> list[str]:
        """Openings, again and again: those that teachers continue, or the others."""
        every = [row["text"] for row in openings()]
        chosen = every[-HELD_OUT:] if held_out else every[:-HELD_OUT]
        return list(itertools.islice(itertools.cycle(chosen), number))

    @functools.cached_property
    def teacher(self) -> TransformersHost:
        """The model whose texts are learned from."""
        return load_host(self.options.teacher, device=self.options.device)  # type: ignore[return-value]

    def taught(self, name: str) -> list[str]:
        """The training texts of a student, prompts included."""
        file = self.options.work / f"{name}.jsonl"
        if name in ("paraphrased", "translated"):
            rewrite = self.paraphrased if name == "paraphrased" else self.translated
            return self.kept(file, name, lambda: rewrite(self.taught("key-0")))

        def write() -> list[str]:
            scheme = None
            if name != "unmarked":
                scheme = dewmark.load_scheme("dew", key=named_key(name), host=self.teacher)
            return self.continued(self.teacher, self.options.texts, scheme=scheme, held_out=False)

        return self.kept(file, name, write)

    def continued(
        self,
        host: TransformersHost,
        number: int,
        *,
        held_out: bool,
        scheme: BoundScheme | None = None,
        french: bool = False,
    ) -> list[str]:
        """Openings with what a host writes after them; of held-out ones only what it writes."""
        prompts = self.prompts(number, held_out=held_out)
        if french:
            prompts = self.translated(prompts)
        made = host.generate(
            prompts,
            scheme=scheme,
            seeds=[10_000_000 * held_out + i for i in range(number)],
            decoding=self.decoding,
            batch_size=self.options.batch,
        )
        return [
            each.text if held_out else prompt + each.text for prompt, each in zip(prompts, made, strict=True)
        ]

    def paraphrased(self, texts: list[str]) -> list[str]:
        """The texts after an LLM has paraphrased them with the paper's prompt."""
        llm = load_host(self.options.llm, device=self.options.device)
        chat = LocalChat(
            lambda: llm,
            identity=llm.info.identity,
            render=llm.chat.render,
            decoding=llm.chat.decoding,
            batch_size=self.options.llm_batch,
        )
        return chat.complete(
            Paraphrase().conversations(texts),
            seeds=range(len(texts)),
            max_new_tokens=int(1.6 * self.options.tokens),
        )

    def translated(self, texts: list[str]) -> list[str]:
        """The texts in French, by OPUS-MT."""
        if self.options.opus is None:
            return NeuralEngine("en", "fr", self.options.device).translate(texts, task="", progress=silent)
        from real_models import opus_from, quiet

        return opus_from(self.options.opus, "en", "fr", self.options.device)(texts, on_progress=quiet)

    # Students.

    def student_texts(self, name: str) -> list[str]:
        """What a student writes after openings that its teacher did not continue."""

        def write() -> list[str]:
            host = load_host(self.options.student, device=self.options.device, dtype="float32")
            if name not in ("before", BEFORE_IN_FRENCH):
                losses = fine_tune(host, self.taught(name), self.options)
                self.say(f"student {name}: loss {losses[0]:.3f} to {np.mean(losses[-20:]):.3f}")
            host.model.to(torch.bfloat16 if host.device.type == "cuda" else torch.float32)
            return self.continued(
                host, self.options.written, held_out=True, french=name in (FRENCH, BEFORE_IN_FRENCH)
            )

        return self.kept(self.options.out / "students.jsonl", name, write)

    def test(self, name: str) -> None:
        """Test a student's texts under the teacher's keys and under others, alone and against a control."""
        keys = [named_key(f"key-{i}") for i in range(2)]
        nulls = [named_key(f"null-{i}") for i in range(NULL_KEYS)]
        bound = dewmark.load_scheme("dew", key=keys[0])
        texts = self.student_texts(name)
        controls = {"none": []}
        if name != "before":
            controls["before"] = self.student_texts(BEFORE_IN_FRENCH if name == FRENCH else "before")
        for control, other in controls.items():
            M = corpus_matrix(bound, texts, control=other)
            null = other_keys(M, nulls)
            row: dict[str, Any] = {
                "student": name,
                "control": control,
                "texts": len(texts),
                "trained on": 0 if name == "before" else self.options.texts,
                **{f"z key-{i}": z for i, z in enumerate(other_keys(M, keys))},
                "null mean": float(null.mean()),
                "null sd": float(null.std()),
                "null p<0.01": float(np.mean(null > 2.3263)),
            }
            assert abs(row["z key-0"] - z_under(M, bound.fold.product)) < 1e-3  # type: ignore[attr-defined]
            append_jsonl(self.options.out / "rows.jsonl", [row])
            self.say(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}))

    def say(self, line: str) -> None:
        """Print a line with the time."""
        print(f"[{time.perf_counter() - self.start:6.1f}] {line}", flush=True)


def fine_tune(host: TransformersHost, texts: Sequence[str], options: argparse.Namespace) -> list[float]:
    """Train all weights on texts, in bfloat16 on a GPU; returns the loss of each step."""
    model, device = host.model.train(), host.device
    rows = [ids[: 2 * options.tokens] for ids in host.tokenizer.encode_prompts(texts, needs_bos=False)]
    order = np.random.default_rng(0)
    steps = options.epochs * (len(rows) // options.train_batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.01)
    warm = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))
    )
    losses: list[float] = []
    while len(losses) < steps:
        for batch in np.array_split(order.permutation(len(rows)), len(rows) // options.train_batch):
            longest = max(len(rows[i]) for i in batch)
            ids = torch.zeros(len(batch), longest, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for at, i in enumerate(batch):
                ids[at, : len(rows[i])] = torch.tensor(rows[i])
                mask[at, : len(rows[i])] = 1
            ids, mask = ids.to(device), mask.to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                labels = ids.masked_fill(mask == 0, -100)
                loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss.detach()))
    model.eval()
    return losses


def parse() -> argparse.Namespace:
    """The command line."""
    parser = script_parser(__doc__)
    parser.add_argument("--teacher", default="smollm2-135m")
    parser.add_argument("--student", default="smollm2-135m")
    parser.add_argument("--llm", default="qwen2.5-coder-1.5b")
    parser.add_argument("--opus", type=Path, help="a folder with helsinki_en_fr")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--texts", type=int, default=3000, help="texts that a student learns from")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--written", type=int, default=1000, help="texts that a student writes")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--train-batch", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--llm-batch", type=int, default=800)
    parser.add_argument("--students", nargs="+", default=list(STUDENTS), choices=STUDENTS)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
