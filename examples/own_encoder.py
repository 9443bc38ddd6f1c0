"""An encoder of your own: hashed character n-grams, so that similar spellings get similar vectors.

    python examples/own_encoder.py

marks a text on a tiny host with the paper's scheme over this encoder, and detects it. `dewmark build-lexicon`
makes a lexicon for the default scheme from it. To publish the encoder, put the class
into a package with an entry point:

    [project.entry-points."dewmark.encoders"]
    ngrams = "my_package.own_encoder:CharacterNgrams"
"""

import zlib
from collections.abc import Sequence

import numpy as np

import dewmark


class CharacterNgrams(dewmark.Encoder):
    """Counts character n-grams, each hashed to a coordinate and a sign.

    Derived tables are cached under ``identity``: change it whenever the vectors change.
    """

    name = "ngrams"
    identity = "character-ngrams-1"
    dim = 128

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """N texts to vectors (N, dim)."""
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            padded = f" {text.lower().strip()} "
            for n in (2, 3, 4):
                for i in range(len(padded) - n + 1):
                    code = zlib.crc32(padded[i : i + n].encode())
                    vector[code % self.dim] += 1.0 if code >> 31 else -1.0
        return vectors


if __name__ == "__main__":
    from dewmark_lab.testing.fake_host import FakeHost  # a tiny model with random weights

    dewmark.ENCODERS.register("ngrams", CharacterNgrams)
    key, settings = dewmark.Key.generate(), {"encoder": "ngrams", "lambda": 6.0}
    wm = dewmark.Watermark(key, host=FakeHost(), scheme="dew-paper", settings=settings)
    text = wm.generate("the old bridge", max_new_tokens=200, min_new_tokens=200, seed=1).text
    print(text)
    print(wm.detect(text))
