"""The whole library in eight lines: a key, a marked text, a verdict."""

import dewmark

key = dewmark.Key.generate()  # 32 secret bytes, printed only as a fingerprint
wm = dewmark.Watermark(key)  # SmolLM2-135M from PyPI, and a multilingual lexicon
text = wm.generate("The old bridge over the river", max_new_tokens=200, seed=1).text
print(wm.detect(text))  # p-value, z, effective length, verdict, token scores
