"""Recompute the vectors that tests hold our baselines to, with the authors' own functions on fixed inputs.

    pip install --no-deps --target CHECKOUTS/nearpy nearpy==1.0.0 future bitarray
    python benchmarks/author_vectors.py CHECKOUTS tests/schemes/vectors/authors.json

CHECKOUTS holds the repositories of `ORIGIN` under their own names. Single functions are taken from their
files and run; the tests hold the numbers, and no line of that code is in this project.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import torch
import transformers

ORIGIN = {
    "THU-BPM/MarkLLM": "112fa74 (2025-10-14), Apache-2.0: the toolkit of the DEW paper; EXP too",
    "THU-BPM/Robust_Watermark": "6d43991 (2024-11-13), no licence stated: SIR's authors",
    "XuandongZhao/Unigram-Watermark": "b96cdb4 (2023-12-04), MIT: Unigram's authors",
    "jthickstun/watermark": "80d4ec8 (2024-09-07), no licence stated: EXP by Kuditipudi et al.",
    "bohanhou14/SemStamp": "97db73d (2024-12-08), no licence stated, on nearpy 1.0.0 (MIT)",
}
IDS = [3 + (i * i * 7 + i // 3) % 297 for i in range(150)]


def function(path: Path, name: str, **names: object) -> Callable[..., Any]:
    """A function or method of a file, without importing the file; ``names`` are what it refers to."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node = next(each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == name)
    node.returns, node.decorator_list = None, []
    for argument in node.args.args:
        argument.annotation = None
    space: dict[str, Any] = {"torch": torch, "np": np, "F": torch.nn.functional, **names}
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


def words(rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Words that look random and that every machine computes alike."""
    steps = np.arange(1, rows * columns + 1, dtype=np.uint64)
    mixed = (steps * np.uint64(0x9E3779B97F4A7C15)) ^ (steps * steps * np.uint64(0xD1B54A32D192ED03))
    return (mixed >> np.uint64(32)).astype(np.uint32).reshape(rows, columns)


def unigram(checkout: Path) -> dict[str, Any]:
    """The green list of a key, what the detector says of `IDS`, and biased logits."""
    transformers.LogitsWarper = transformers.LogitsProcessor  # its name until transformers 5
    code = module(checkout / "gptwm.py")
    given = {"fraction": 0.5, "strength": 2.0, "vocab_size": 320, "watermark_key": 42}
    detector, warper = code.GPTWatermarkDetector(**given), code.GPTWatermarkLogitsWarper(**given)
    return {
        "green": "".join(str(int(each)) for each in detector.green_list_mask),
        "z_all": float(detector.detect(IDS)),
        "z_unique": float(detector.unidetect(IDS)),
        "logits": warper(None, 2.0 * waves(1, 320).float())[0, :40].tolist(),
    }


def exp(markllm: Path, authors: Path) -> dict[str, Any]:
    """The tokens that fixed words choose by the toolkit and by Kuditipudi et al., score and p-value."""
    logits = (3.0 * waves(60, 40)).softmax(dim=1)
    u = torch.from_numpy((words(60, 40) + 0.5) * 2.0**-32)
    sample = function(markllm / "watermark" / "exp" / "exp.py", "exp_sampling")
    rows: dict[str, list[int]] = {}
    for name, top_k in (("chosen", 0), ("chosen_of_5", 5)):
        owner = types.SimpleNamespace(config=types.SimpleNamespace(top_k=top_k))
        rows[name] = [int(sample(owner, logits[i : i + 1], u[i : i + 1])) for i in range(60)]
    theirs = function(authors / "watermarking" / "gumbel" / "sampler.py", "gumbel_sampling")
    places = torch.arange(40).expand(60, 40)
    assert theirs(logits, places, u)[:, 0].tolist() == rows["chosen"]
    score = function(authors / "watermarking" / "gumbel" / "score.py", "gumbel_score")
    total = -float(score(torch.tensor(rows["chosen"]), u))
    return {**rows, "score": total, "p_value": float(scipy.stats.gamma.sf(total, 60))}


def semstamp(checkout: Path, nearpy: Path) -> dict[str, Any]:
    """The authors' hyperplanes, and the bin and the acceptance of 24 vectors; z of a sequence of bins."""
    sys.path.insert(0, str(nearpy))
    from nearpy.hashes import RandomBinaryProjections

    hasher = RandomBinaryProjections("vectors", projection_count=3, rand_seed=1234)  # the authors' seed
    hasher.reset(6)
    vectors = waves(24, 6, start=77).numpy()
    model = types.SimpleNamespace(hasher=hasher, get_embeddings=lambda numbers: vectors[numbers])
    hashes = types.MethodType(function(checkout / "sbert_lsh_model.py", "get_hash"), model)
    file = checkout / "sampling_lsh_utils.py"
    on_cpu = types.SimpleNamespace(
        tensor=lambda values, device: torch.tensor(values),
        abs=torch.abs,
        randperm=lambda count, device, generator: torch.randperm(count, generator=generator),
    )
    cosines = function(file, "cosine_distance_matrix")
    close = function(file, "reject_close_generation", torch=on_cpu, cosine_distance_matrix=cosines)
    _, kept = close(model, list(range(24)), margin=0.1)
    # their module's generator and key
    mask = function(
        file, "get_mask_from_seed", torch=on_cpu, rng=torch.Generator(), hash_key=15485863, device="cpu"
    )
    model.get_hash = hashes
    detect = function(checkout / "detection_utils.py", "detect_lsh", get_mask_from_seed=mask)
    return {
        "normals": hasher.normals.tolist(),
        "bins": hashes(list(range(24))),
        "clear": [i in kept for i in range(24)],
        "accepted": [mask(3, 0.25, seed).tolist() for seed in range(8)],
        "z": float(detect(list(range(24)), model, 0.25, 3)),
    }


def main() -> None:
    """Write the vectors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    folder = options.checkouts
    marks = folder / "MarkLLM" / "watermark"
    logits = 2.0 * waves(3, 40)
    order = torch.argsort(waves(3, 40, start=500), dim=1)
    found: dict[str, Any] = {
        "origin": ORIGIN,
        "unigram": unigram(folder / "Unigram-Watermark"),
        "exp": exp(folder / "MarkLLM", folder / "watermark"),
        "semstamp": semstamp(folder / "SemStamp", folder / "nearpy"),
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
    sir = module(folder / "Robust_Watermark" / "train_watermark_model.py")
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
