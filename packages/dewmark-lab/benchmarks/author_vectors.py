"""Recompute the vectors that tests hold our baselines to, with the authors' own functions on fixed inputs.

    python benchmarks/author_vectors.py MARKLLM ROBUST_WATERMARK tests/schemes/vectors/authors.json

The arguments are checkouts of github.com/THU-BPM/MarkLLM, the toolkit that the DEW paper evaluates, and of
github.com/THU-BPM/Robust_Watermark, the SIR authors' own. Single functions are taken from their files and
run; the tests hold the numbers, and no line of that code is in this project.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch


def function(path: Path, name: str) -> Callable[..., Any]:
    """A function or method of a file, without importing the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node = next(each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == name)
    node.returns, node.decorator_list = None, []
    for argument in node.args.args:
        argument.annotation = None
    space: dict[str, Any] = {"torch": torch, "np": np, "F": torch.nn.functional}
    exec(compile(ast.Module([node], []), str(path), "exec"), space)  # noqa: S102 - the point of the script
    found: Callable[..., Any] = space[name]
    return found


def module(path: Path) -> types.ModuleType:
    """A file that imports no other file of its project."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def waves(*shape: int, start: int = 0) -> torch.Tensor:
    """Numbers that every machine computes alike: the sines of (start + 1)², (start + 2)² and so on."""
    steps = np.arange(start + 1, start + int(np.prod(shape)) + 1, dtype=np.float64)
    return torch.from_numpy(np.sin(steps**2)).reshape(shape)


def fill(network: torch.nn.Module) -> torch.nn.Module:
    """Weights and biases from `waves`, in the order of the parameters."""
    start = 0
    network.double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(waves(*parameter.shape, start=start))
            start += parameter.numel()
    return network


def main() -> None:
    """Write the vectors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("markllm", type=Path)
    parser.add_argument("robust", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    marks = options.markllm / "watermark"
    logits = 2.0 * waves(3, 40)
    order = torch.argsort(waves(3, 40, start=500), dim=1)
    found: dict[str, Any] = {
        "origin": "THU-BPM/MarkLLM and THU-BPM/Robust_Watermark, run by benchmarks/author_vectors.py"
    }
    reweight = function(marks / "dip" / "dip.py", "reweight_logits")
    found["dipmark"] = {
        str(alpha): reweight(types.SimpleNamespace(config=types.SimpleNamespace(alpha=alpha)), order, logits)
        .softmax(dim=1)
        .tolist()
        for alpha in (0.3, 0.45, 0.5)
    }
    strategies = module(marks / "unbiased" / "strategy.py")
    found["unbiased_gamma"] = strategies.GammaStrategy().reweight_logits(order, logits).softmax(1).tolist()
    green = waves(3, 40, start=900) > 0.0
    morph = function(marks / "morphmark" / "morphmark.py", "_bias_greenlist_logits")
    settings = {"p_0": 0.15, "k_linear": 1.55, "k_exp": 1.3, "k_log": 2.15}
    found["morphmark"] = {
        form: [
            morph(
                types.SimpleNamespace(config=types.SimpleNamespace(type=form, **settings)),
                logits[i : i + 1].clone(),
                green[i : i + 1],
            )
            .softmax(dim=1)[0]
            .tolist()
            for i in range(3)
        ]
        for form in ("linear", "exp", "log")
    }
    bias = function(marks / "adaptive" / "adaptive.py", "bias_logits")
    found["atw"] = bias(None, logits, green.double(), 0.35).tolist()
    entropy = function(marks / "ewd" / "ewd.py", "calculate_entropy")
    modulus = (1 - 0.5) * (np.exp(2.0) - 1) / (1 - 0.5 + np.exp(2.0) * 0.5)
    model = types.SimpleNamespace(logits=logits[None])
    spikes = entropy(types.SimpleNamespace(z_value=modulus), lambda *_, **__: model, torch.zeros(3))
    found["ewd"] = spikes[1:]  # its first entry stands for a token without a context
    sir = module(options.robust / "train_watermark_model.py")
    network = fill(sir.TransformModel(num_layers=4, input_dim=6, hidden_dim=5, output_dim=8))
    inputs = waves(4, 6, start=300)
    outputs = network(inputs).detach()
    scale = function(marks / "sir" / "sir.py", "scale_vector")
    found["sir"] = {
        "outputs": outputs.tolist(),
        "scaled": [scale(None, row).tolist() for row in outputs.numpy()],
        "loss": float(sir.loss_fn(outputs, outputs.flip(0), inputs, inputs.flip(0), median_value=0.1)),
    }
    cluster = function(marks / "k_semstamp" / "k_semstamp.py", "kmeans_reject_overlap")
    cosine = function(marks / "k_semstamp" / "k_semstamp.py", "pairwise_cosine")
    owner = types.SimpleNamespace(config=types.SimpleNamespace(device="cpu"))
    owner.pairwise_cosine = types.MethodType(cosine, owner)
    centers, sentences = waves(8, 6), waves(12, 6, start=77)
    found["ksemstamp"] = []
    for row in sentences:
        embedder = types.SimpleNamespace(encode=lambda _, convert_to_tensor, row=row: row)
        text, nearest = cluster(owner, "sentence", embedder, centers, 0.05)
        found["ksemstamp"].append([int(nearest), text is not None])
    options.out.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
