"""Argos Translate's models: OpenNMT Transformers in CTranslate2 with a sentencepiece model.

Decoding is greedy. Boundary: one direction's folder in, translated texts out; `split_text` splits the texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dewmark.errors import ModelError
from dewmark.extras import require
from dewmark_lab.attacks.translation.split_text import OnProgress, translate_texts

LONGEST = 200  # pieces of a sentence
_BATCH = 32  # sentences
_SPACE = "▁"


class ArgosTranslator:
    """One direction, from the folder of an unpacked ``.argosmodel``."""

    def __init__(self, folder: Path, *, device: str) -> None:
        ctranslate2 = require("ctranslate2", extra="translation", package="dewmark-lab")
        sentencepiece = require("sentencepiece", extra="translation", package="dewmark-lab")
        try:
            self._pieces: Any = sentencepiece.SentencePieceProcessor(
                model_file=str(folder / "sentencepiece.model")
            )
            self._model: Any = ctranslate2.Translator(
                str(folder / "model"), device=device, inter_threads=1, compute_type="float32"
            )
        except (OSError, RuntimeError, ValueError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise ModelError(f"cannot load {folder} ({reason}): delete it to download it again") from error

    def translate(self, texts: Sequence[str], *, on_progress: OnProgress) -> list[str]:
        """Translate texts; ``on_progress`` gets the number of finished sentences and of all sentences."""
        return translate_texts(
            texts,
            too_long=lambda sentence: len(self._split(sentence)) > LONGEST,
            translate=lambda sentences: self._translate(sentences, on_progress),
        )

    def _split(self, sentence: str) -> list[str]:
        pieces: list[str] = self._pieces.encode(sentence, out_type=str)
        return pieces

    def _translate(self, sentences: list[str], on_progress: OnProgress) -> list[str]:
        out: list[str] = []
        for start in range(0, len(sentences), _BATCH):
            rows = [self._split(sentence) for sentence in sentences[start : start + _BATCH]]
            made = self._model.translate_batch(rows, beam_size=1, max_decoding_length=3 * LONGEST)
            out += ["".join(each.hypotheses[0]).replace(_SPACE, " ").strip() for each in made]
            on_progress(len(out), len(sentences))
        return out
