"""Training texts: a file of the user's, or texts that the host itself writes without a mark.

By default the host continues the first words of sentences that the package has for other purposes, and once
all are used starts over with other seeds. It does not continue the package's openings: experiments do, and an
artifact must not have seen texts that it is evaluated on. Its texts are cached by host and seed and appended
batch by batch, so an interrupted run continues where it stopped and the next training for that host starts at
once.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dewmark import config, storage
from dewmark.decoding import Decoding, DecodingOptions
from dewmark.errors import InputError
from dewmark.hosts.base import Host
from dewmark.scheme import check_text
from dewmark.workspace import HostInfo, Progress
from dewmark_audit.texts import package_file
from dewmark_lab.prompt_sources import read_text

_TOKENS = 200  # per text that the host writes
_WORDS = 8  # of a sentence that the host continues
BATCH = 128


class TrainingTexts(ABC):
    """A source of training texts.

    ``source`` describes it in the artifact's card, ``option`` is the name of the file given as ``--texts``,
    and ``identity`` changes whenever the texts do.
    """

    def __init__(self, source: str, *, identity: str, option: str | None = None) -> None:
        self.source, self.identity, self.option = source, identity, option

    @abstractmethod
    def take(self, number: int, *, least: int) -> list[str]:
        """``number`` texts, the same ones on every call; a file returns all its texts, at least ``least``."""

    def record(self, texts: Sequence[str]) -> dict[str, Any]:
        """The card's entry about the texts that were used."""
        digest = hashlib.sha256("\x00".join(texts).encode()).hexdigest()
        return {"source": self.source, "number": len(texts), "sha256": digest}


class FileTexts(TrainingTexts):
    """The rows of a JSONL file with a ``text`` (or ``response``) each, or the paragraphs of a text file."""

    def __init__(self, path: Path) -> None:
        try:
            digest = storage.sha256_file(path)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None
        super().__init__(path.name, identity=digest, option=path.name)
        self.path = path

    def take(self, number: int, *, least: int) -> list[str]:
        texts = list(dict.fromkeys(self._read()))
        if len(texts) < least:
            raise InputError(f"{self.path} has {len(texts)} distinct texts, it takes {least}: add more")
        return texts

    def _read(self) -> list[str]:
        if self.path.suffix != ".jsonl":
            return [part.strip() for part in read_text(self.path).split("\n\n") if part.strip()]
        texts = []
        for number, row in storage.read_jsonl(self.path):
            text = str(row.get("text", row.get("response", "")))
            check_text(text, f"{self.path}, line {number}: text")
            texts.append(text)
        return texts


class HostTexts(TrainingTexts):
    """Unmarked texts of the host, of up to 200 tokens: continuations of `sentence_starts`, or answers."""

    def __init__(
        self,
        info: HostInfo,
        open_host: Callable[[], Host],
        *,
        cache: Path,
        seed: int,
        progress: Progress,
        requests: Sequence[str] | None = None,
    ) -> None:
        decoding: DecodingOptions = {"max_new_tokens": _TOKENS, "temperature": 0.7, "top_p": 0.9}
        if requests is None:
            decoding = {"max_new_tokens": _TOKENS, "no_repeat_ngram": 4, "min_new_tokens": _TOKENS // 2}
        self._answers = requests is not None
        self._starts = sentence_starts() if requests is None else list(requests)
        identity = config.config_hash(info.identity, info.tokenizer.identity, seed, decoding, self._starts)
        source = "answers to requests" if self._answers else "continuations of the first words of sentences"
        super().__init__(f"the host's own {source}", identity=identity)
        self._open_host, self._seed, self._progress = open_host, seed, progress
        self._decoding = Decoding(**decoding)
        self._file = cache / "training" / f"texts-{identity}.jsonl"
        self._host_name = info.name

    def take(self, number: int, *, least: int) -> list[str]:
        """``number`` texts; those that are not cached are written now."""
        wanted = -(-number // BATCH) * BATCH  # whole batches, so that texts don't depend on the number
        file = storage.ResumableRows(self._file, wanted, batch_size=BATCH)
        prompts = self._starts
        description = f"{self._host_name} is writing training texts"
        for batch in file.pending():
            self._progress(description, batch.start, wanted)
            host, asked = self._open_host(), [prompts[i % len(prompts)] for i in batch]
            generations = host.generate(
                [host.chat.render([{"role": "user", "content": each}]) for each in asked]
                if self._answers
                else asked,
                scheme=None,
                seeds=[self._seed + i for i in batch],
                batch_size=BATCH,
                decoding=self._decoding,
            )
            texts = [each.text if self._answers else each.prompt + each.text for each in generations]
            file.append([{"text": text} for text in texts])
        self._progress(description, wanted, wanted)
        return [row["text"] for row in file.read()][:number]


def sentence_starts() -> list[str]:
    """The first words of the package's English sentences, none of them an opening."""
    folder = sorted(package_file("registers").iterdir(), key=lambda file: file.name)
    texts = [file.read_text(encoding="utf-8") for file in (*folder, package_file("ordinary/en.txt"))]
    sentences = (sentence.split() for text in texts for sentence in re.split(r"(?<=[.!?])\s+", text))
    return list(dict.fromkeys(" ".join(words[:_WORDS]) for words in sentences if len(words) > _WORDS))
