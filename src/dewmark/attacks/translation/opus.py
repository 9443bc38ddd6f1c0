"""OPUS-MT between English and French: Marian models of 75M parameters, in transformers.

Decoding is greedy and in float32; sentences of one length form a batch, so that none is padded, and a
sentence's translation does not depend on its neighbours (up to rounding). Boundary: one direction's folder
in, translated texts out; `split_text` splits the texts.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dewmark.attacks.translation.split_text import OnProgress, translate_texts
from dewmark.errors import ModelError
from dewmark.extras import require
from dewmark.models.hub import quiet_libraries

__all__ = ["OpusTranslator"]

LONGEST = 200  # pieces of a sentence; the models were trained on shorter ones
_BATCH = {"cpu": 16, "cuda": 1024}  # sentences
_LENGTH_FACTOR = 2.5  # a translation has at most this many times the pieces of its source
_FIRST = 8  # pieces that any translation may have besides


class OpusTranslator:
    """One direction, from a folder with a Marian model of transformers."""

    def __init__(self, folder: Path, *, device: torch.device) -> None:
        require("sentencepiece", extra="translation")
        from transformers import MarianMTModel, MarianTokenizer

        try:
            with quiet_libraries(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of sacremoses, whose normalisation changes next to nothing
                self._tokenizer: Any = MarianTokenizer.from_pretrained(str(folder))
                model: Any = MarianMTModel.from_pretrained(str(folder), dtype=torch.float32)
        except Exception as error:  # the readers raise many classes
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise ModelError(f"cannot load {folder} ({reason}): delete it to download it again") from error
        self._model = model.eval().to(device)
        self._device = device

    def translate(self, texts: Sequence[str], *, on_progress: OnProgress) -> list[str]:
        """Translate texts; ``on_progress`` gets the number of finished sentences and of all sentences."""
        return translate_texts(
            texts,
            too_long=lambda sentence: len(sentence) > LONGEST and len(self._ids(sentence)) > LONGEST,
            translate=lambda sentences: self._translate(sentences, on_progress),
        )

    def _ids(self, sentence: str) -> list[int]:
        ids: list[int] = self._tokenizer(sentence)["input_ids"]
        return ids

    def _translate(self, sentences: list[str], on_progress: OnProgress) -> list[str]:
        by_length: defaultdict[int, list[int]] = defaultdict(list)
        sources = [self._ids(sentence) for sentence in sentences]
        for i, ids in enumerate(sources):
            by_length[len(ids)].append(i)
        size = _BATCH.get(self._device.type, _BATCH["cpu"])
        found: dict[int, str] = {}
        for length, alike in sorted(by_length.items()):
            for start in range(0, len(alike), size):
                batch = alike[start : start + size]
                written = self._decode([sources[i] for i in batch], length)
                found.update(zip(batch, written, strict=True))
                on_progress(len(found), len(sentences))
        return [found[i] for i in range(len(sentences))]

    @torch.inference_mode()
    def _decode(self, rows: list[list[int]], length: int) -> list[str]:
        ids = torch.tensor(rows, device=self._device)
        with quiet_libraries():
            made = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                num_beams=1,
                do_sample=False,
                max_length=int(length * _LENGTH_FACTOR) + _FIRST,
            )
        texts: list[str] = self._tokenizer.batch_decode(made, skip_special_tokens=True)
        return texts
