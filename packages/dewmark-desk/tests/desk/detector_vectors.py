"""The test vectors of the public detector's format, ``docs/public-detector.vectors.json``.

python -m tests.desk.detector_vectors        # writes them anew: a change of z is a change of the format
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.desk.golden_texts import golden_texts

from dewmark import Key
from dewmark.detect import score_texts
from dewmark.opening import load_scheme
from dewmark.text.words import words
from dewmark_desk.browser_detector import FORMAT
from dewmark_desk.tenants import example_text, unmarked_text

FILE = Path(__file__).parents[4] / "docs" / "public-detector.vectors.json"
SECRET = hashlib.sha256(b"dewmark demonstration").digest()  # of the packaged example: nobody's key


def texts() -> list[str]:
    """The marked example, an unmarked text, a short one, and twelve in many languages and disguises."""
    short = [text for text in golden_texts(200) if 200 <= len(text) <= 1500]
    return [example_text(), unmarked_text(), unmarked_text()[:60], *short[::3][:12]]


def vectors() -> dict[str, Any]:
    """What the public half of the demonstration key says of each text."""
    bound = load_scheme(Key(SECRET)).public()
    return {
        "format": FORMAT,
        "key": f"dewmark-key-v1 {SECRET.hex()}",
        "key_fingerprint": bound.fingerprint,
        "lexicon": bound.reader.lexicon.identity,
        "tolerance": 1e-5,
        "vectors": [
            {
                "text": text,
                "words": [word.form for word in words(text)],
                "verdict": found.verdict.value,
                "z": round(found.z, 9),
                "p_value": found.p_value,
                "effective_length": round(found.effective_length, 9),
                "words_scored": found.tokens_scored,
            }
            for text, found in zip(texts(), score_texts(bound, texts()), strict=True)
        ],
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(vectors(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
