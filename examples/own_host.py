"""A host of your own: a bigram model of words, counted from a few texts, writes marked text.

    python examples/own_host.py

counts the package's own English texts, writes with two schemes, and detects both. To publish the host, put
the class into a package with an entry point:

    [project.entry-points."dewmark.hosts"]
    bigrams = "my_package.own_host:Bigrams"
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import torch

import dewmark
from dewmark.encoders.contexts import register_texts
from dewmark.mark import Writer

END, UNKNOWN = 0, 1


class Words:
    """A tokenizer with one id per word, which keeps the space before the word."""

    identity = "bigrams-1"  # changes whenever the vocabulary does
    special_ids = frozenset({END, UNKNOWN})
    pad_id = END
    pieces = None

    def __init__(self, texts: Sequence[str]) -> None:
        words = sorted({word for text in texts for word in re.findall(r"\s*\S+", text)})
        self._words = ["", "", *words]
        self._ids = {word: i for i, word in enumerate(self._words) if word}
        self.size = len(self._words)

    def encode(self, texts: Sequence[str]) -> list[dewmark.Tokenized]:
        """Ids with their character offsets, without special tokens (except for unknown words)."""
        found = [list(re.finditer(r"\s*\S+", text)) for text in texts]
        return [
            dewmark.Tokenized(
                text=text,
                ids=tuple(self._ids.get(word[0], UNKNOWN) for word in words),
                offsets=tuple(word.span() for word in words),
            )
            for text, words in zip(texts, found, strict=True)
        ]

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """Ids to text."""
        return ["".join(self._words[i] for i in ids) for ids in batch]

    def save(self, folder: Path) -> None:
        """A detector stores its tokenizer; this one has no files."""
        raise dewmark.ConfigError("the bigram model's tokenizer has no files: detect with the key instead")


class Bigrams(dewmark.Host):
    """Predicts a word from the word before it. The other arguments (device, dtype, progress) are unused."""

    def __init__(self, name: str = "bigrams", **unused: object) -> None:
        texts = [re.sub(r"\s+", " ", text) for text in register_texts()]
        self._tokenizer = Words(texts)
        self._followers: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._counts = torch.zeros(self._tokenizer.size)
        for text in self._tokenizer.encode(texts):
            for before, after in zip(text.ids, text.ids[1:], strict=False):
                self._followers[before][after] += 1
                self._counts[after] += 1
        self._info = dewmark.HostInfo(
            name=name,
            identity="bigrams-1",
            vocab_size=self._tokenizer.size,
            tokenizer=self._tokenizer,
            embeddings=self._no_embeddings,
        )

    @property
    def info(self) -> dewmark.HostInfo:
        """What schemes see of the host."""
        return self._info

    def complete(
        self,
        prompts: Sequence[str],
        *,
        scheme: dewmark.BoundScheme | None,
        seeds: Sequence[int],
        decoding: dewmark.Decoding,
    ) -> list[list[int]]:
        """New ids of each row; a neural model would write all rows in one batch.

        For brevity, ``no_repeat_ngram`` and ``min_new_tokens`` are ignored.
        """
        return [self._write(*row, scheme, decoding) for row in zip(prompts, seeds, strict=True)]

    def next_logits(
        self, prompts: Sequence[str], completions: Sequence[Sequence[int]]
    ) -> Iterator[torch.Tensor]:
        """Logits of given ids: perplexity, and schemes that run the host to detect, need them."""
        for prompt, ids in zip(self._tokenizer.encode(prompts), completions, strict=True):
            yield torch.stack([self._logits(last) for last in [*(prompt.ids[-1:] or [END]), *ids][:-1]])

    def _write(
        self, prompt: str, seed: int, scheme: dewmark.BoundScheme | None, decoding: dewmark.Decoding
    ) -> list[int]:
        ids = torch.tensor([self._tokenizer.encode([prompt])[0].ids or [END]])
        start = ids.shape[1]
        writer = Writer(None, ids, seeds=[seed]) if scheme is None else scheme.writer(ids, seeds=[seed])
        for _ in range(decoding.max_new_tokens):
            logits = self._logits(int(ids[0, -1])).unsqueeze(0)
            # one draw per step: temperature, filters, the mark and the row's own random numbers
            chosen, _ = writer.draw(ids, logits, decoding)
            ids = torch.cat((ids, chosen.unsqueeze(1)), dim=1)
        return [int(i) for i in ids[0, start:]]

    def _logits(self, before: int) -> torch.Tensor:
        """Log-counts (vocab,) of what follows a word, mixed with those of all words."""
        counts = 0.02 * self._counts / self._counts.sum()
        followers = self._followers[before]
        if followers:
            ids = torch.tensor(list(followers))
            counts[ids] += torch.tensor(list(followers.values())) / sum(followers.values())
        return counts.log()  # -inf for special ids, which are never chosen

    @staticmethod
    def _no_embeddings() -> NoReturn:
        raise dewmark.ConfigError("a bigram model has no embeddings: use a scheme that needs none")


if __name__ == "__main__":
    dewmark.HOSTS.register("bigrams", Bigrams)
    for scheme in ("kgw", "exp"):
        wm = dewmark.Watermark(dewmark.Key.generate(), host="bigrams", scheme=scheme)
        text = wm.generate("The old bridge", max_new_tokens=300, seed=1).text
        print(f"{scheme}: {text[:200]}…")
        print(wm.detect(text))
    ((log_p, tokens),) = wm.host.log_likelihood(["The old bridge"], [text])
    print(f"perplexity {math.exp(-log_p / tokens):.1f}")
