"""DIPPER: an 11B-parameter T5 that paraphrases with controlled diversity (Krishna et al., 2023).

A text is split into chunks of three sentences. The model reads each chunk with two control codes (100 minus
the requested lexical and order diversity) and the output so far as context:

    lexical = 40, order = 100 The first chunk, rewritten. <sent> The second chunk. </sent>

Sentences are split by `dewmark_lab.sentences`. The first chunk has no context, because an attacker does not
know a text's prompt. Boundary: codes, chunks and context; `dewmark_lab.seq2seq` samples.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.workspace import Progress
from dewmark_lab.attacks.base import Attack, run_option
from dewmark_lab.sentences import sentences

if TYPE_CHECKING:
    from dewmark_lab.seq2seq import Seq2Seq

_DIVERSITIES = (0, 20, 40, 60, 80, 100)


@dataclass(frozen=True)
class Dipper(Attack):
    """Paraphrases with lexical diversity ``ld`` and order diversity ``od``, each 0 to 100 in steps of 20.

    ``top_p`` and ``max_new_tokens`` (per chunk) default to the model card's values. ``model`` and
    ``tokenizer`` are hub ids or local folders; ``tokenizer=none`` uses the model's own.
    """

    name: ClassVar[str] = "dipper"
    summary: ClassVar[str] = "paraphrases with DIPPER (T5, 11B) at a given diversity"

    ld: int = 60
    od: int = 0
    interval: Annotated[int, "at least 1"] = 3
    top_p: Annotated[float, "in (0, 1]"] = 0.75
    temperature: Annotated[float, "at least 0"] = 1.0
    max_new_tokens: Annotated[int, "at least 1"] = 512
    model: str = "kalpeshk2011/dipper-paraphraser-xxl"
    tokenizer: str | None = "google/t5-v1_1-xxl"
    device: str = run_option("auto")
    dtype: str = run_option("auto")
    batch_size: Annotated[int, "at least 1"] = run_option(8)

    def validate(self) -> None:
        for name, value in (("ld", self.ld), ("od", self.od)):
            if value not in _DIVERSITIES:
                raise ConfigError(f"{name} must be one of {', '.join(map(str, _DIVERSITIES))}, got {value}")

    @property
    def label(self) -> str:
        return f"dipper-{self.ld}-{self.od}"

    def identity(self) -> dict[str, object]:
        from dewmark.hosts.transformers.model_files import resolve

        named = {"model": self.model, "tokenizer": self.tokenizer}
        files = {
            role: None if name is None else resolve(name, weights=False).identity
            for role, name in named.items()
        }
        return {**super().identity(), **files}

    @functools.cached_property
    def paraphraser(self) -> Seq2Seq:
        """The model, loaded on first use."""
        from dewmark_lab.seq2seq import load_seq2seq

        return load_seq2seq(self.model, tokenizer=self.tokenizer, device=self.device, dtype=self.dtype)

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        done: list[str] = []
        for start in range(0, len(texts), self.batch_size):
            batch = slice(start, start + self.batch_size)
            done += self._batch(texts[batch], seeds[batch])
            progress(self.label, len(done), len(texts))
        return done

    def _batch(self, texts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        new = self.max_new_tokens
        decoding = Decoding(max_new_tokens=new, temperature=self.temperature, top_p=self.top_p)
        chunked = [chunks(text, interval=self.interval) for text in texts]
        written = [""] * len(texts)
        for turn in range(max(map(len, chunked))):
            open_rows = [row for row, pieces in enumerate(chunked) if turn < len(pieces)]
            outputs = self.paraphraser.write(
                [prompt(chunked[i][turn], ld=self.ld, od=self.od, context=written[i]) for i in open_rows],
                seeds=[seeds[row] for row in open_rows],
                decoding=decoding,
                first_step=turn * self.max_new_tokens,
            )
            for row, output in zip(open_rows, outputs, strict=True):
                written[row] = f"{written[row]} {output}".strip()
        return written


def chunks(text: str, *, interval: int) -> list[str]:
    """Split a text into chunks of ``interval`` sentences, with white space collapsed; at least one chunk."""
    flat = " ".join(text.split())
    found = [flat[sentence.start : sentence.end] for sentence in sentences(flat)] or [flat]
    return [" ".join(found[i : i + interval]) for i in range(0, len(found), interval)]


def prompt(chunk: str, *, ld: int, od: int, context: str) -> str:
    """The model's input: control codes, the output so far, and the chunk between its tags."""
    codes = f"lexical = {100 - ld}, order = {100 - od}"
    return " ".join(part for part in (codes, context, f"<sent> {chunk} </sent>") if part)
