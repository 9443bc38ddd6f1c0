r"""OPUS-MT in CTranslate2 with 8-bit weights: several times as fast on a CPU as the library's float32.

    ct2-transformers-converter --model …/helsinki_fr_en --output_dir FOLDER --quantization int8 \
        --copy_files source.spm target.spm

`benchmarks/real_models.py --opus` takes such folders, too. Greedy, sentence by sentence, like
`dewmark.attacks.translation.opus`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dewmark.attacks.translation.split_text import OnProgress, translate_texts
from dewmark.extras import require

LONGEST = 200  # pieces of a sentence
BATCH = 32  # sentences


class Int8Opus:
    """One direction, from a converted folder."""

    def __init__(self, folder: Path) -> None:
        sentencepiece = require("sentencepiece", extra="translation")
        ctranslate2 = require("ctranslate2", extra="translation")
        self.source, self.target = (
            sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
            for side in ("source", "target")
        )
        self.model: Any = ctranslate2.Translator(str(folder), device="cpu", intra_threads=1)

    def translate(self, texts: Sequence[str], *, on_progress: OnProgress) -> list[str]:
        """Translate texts; ``on_progress`` gets the number of finished sentences and of all sentences."""
        return translate_texts(
            texts,
            too_long=lambda sentence: len(self.source.encode(sentence)) > LONGEST,
            translate=lambda sentences: self._sentences(sentences, on_progress),
        )

    def _sentences(self, sentences: list[str], on_progress: OnProgress) -> list[str]:
        rows = [[*self.source.encode(sentence, out_type=str), "</s>"] for sentence in sentences]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found: dict[int, str] = {}
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            made = self.model.translate_batch(
                [rows[i] for i in batch], beam_size=1, max_decoding_length=int(2.5 * LONGEST)
            )
            found |= {i: self.target.decode(each.hypotheses[0]) for i, each in zip(batch, made, strict=True)}
            on_progress(len(found), len(sentences))
        return [found[i] for i in range(len(sentences))]
