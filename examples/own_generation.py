"""Mark inside your own transformers code, then detect in a process that never loads the model.

    python examples/own_generation.py MODEL

MODEL is a folder or hub id of any causal language model of transformers.
"""

import sys
import tempfile
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

import dewmark

model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
key = dewmark.Key.generate()
scheme = dewmark.load_scheme(key, host=model, tokenizer=tokenizer)

inputs = tokenizer("The old bridge over the river", return_tensors="pt")
output = model.generate(
    **inputs,
    do_sample=True,
    min_new_tokens=200,
    max_new_tokens=200,
    watermarking_config=dewmark.WatermarkingConfig(scheme),  # honours the model's temperature and top-p
)
text = tokenizer.decode(output[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)
print(text)
print(dewmark.Detector(scheme).detect(text))

with tempfile.TemporaryDirectory() as folder:
    dewmark.Detector(scheme).save(Path(folder) / "detector")
    detector = dewmark.Detector.load(Path(folder) / "detector")
    print(detector.detect(text))  # the same verdict, from tokenizer and tables alone
