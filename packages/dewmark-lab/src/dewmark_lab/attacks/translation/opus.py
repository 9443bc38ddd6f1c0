"""OPUS-MT between English and French: Marian models of 75M parameters, in transformers.

Decoding is greedy and in float32. Sentences of similar lengths form a padded batch; a translation does not
depend on the other sentences of its batch (up to rounding).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from dewmark.errors import ModelError
from dewmark.extras import require
from dewmark.models.hub import quiet_libraries
from dewmark_lab.attacks.translation.split_text import OnProgress, SentenceTranslator, batches_of

_BATCH = {"cpu": 16, "cuda": 1024}  # sentences
_PIECES = 65_536  # of a batch, padding included
_LENGTH_FACTOR = 2.5  # a translation has at most this many times the pieces of its source
_FIRST = 8  # pieces that any translation may have besides


class OpusTranslator(SentenceTranslator):
    """One direction, from a folder with a Marian model of transformers."""

    longest = 200  # the models were trained on shorter sentences

    def __init__(self, folder: Path, *, device: torch.device) -> None:
        self._tokenizer, model = load(folder)
        self._model = model.eval().to(device)
        self._device = device

    def pieces(self, sentence: str) -> list[int]:
        """The ids of a sentence and its end."""
        ids: list[int] = self._tokenizer(sentence)["input_ids"]
        return ids

    def translate_sentences(self, sentences: Sequence[str], on_progress: OnProgress) -> list[str]:
        sources = [self.pieces(sentence) for sentence in sentences]
        most = _BATCH.get(self._device.type, _BATCH["cpu"])
        found: dict[int, str] = {}
        for batch in batches_of([len(ids) for ids in sources], room=_PIECES, most=most):
            found.update(zip(batch, self._decode([sources[i] for i in batch]), strict=True))
            on_progress(len(found), len(sentences))
        return [found[i] for i in range(len(sentences))]

    @torch.inference_mode()
    def _decode(self, rows: list[list[int]]) -> list[str]:
        padding = self._tokenizer.pad_token_id
        longest = [int(len(row) * _LENGTH_FACTOR) + _FIRST for row in rows]  # with its end
        sources = [torch.tensor(row) for row in rows]
        ids = pad_sequence(sources, batch_first=True, padding_value=padding)
        mask = pad_sequence([torch.ones_like(row) for row in sources], batch_first=True)
        with quiet_libraries():
            made = self._model.generate(
                input_ids=ids.to(self._device),
                attention_mask=mask.to(self._device),
                num_beams=1,
                do_sample=False,
                max_length=max(longest),
            )
        own = [row[: most - 1] for row, most in zip(made.tolist(), longest, strict=True)]
        texts: list[str] = self._tokenizer.batch_decode(own, skip_special_tokens=True)
        return texts


def load(folder: Path) -> tuple[Any, Any]:
    """The tokenizer and the model in a folder."""
    require("sentencepiece", extra="translation", package="dewmark-lab")
    from transformers import MarianMTModel, MarianTokenizer

    try:
        with quiet_libraries(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sacremoses, whose normalisation changes next to nothing
            tokenizer = MarianTokenizer.from_pretrained(str(folder))
            return tokenizer, MarianMTModel.from_pretrained(str(folder), dtype=torch.float32)
    except Exception as error:  # the readers raise many classes
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise ModelError(f"cannot load {folder} ({reason}): delete it to download it again") from error
