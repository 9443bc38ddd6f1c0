"""``reproduce main --profile paper`` by one command, from a hub with tiny models of the same architectures.

Every row of the paper's Table 1 is trained where it must be, written, attacked, scored and evaluated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import yaml
from tests.experiments.conftest import rows
from tests.hosts.chat_server import Reply, serving

from dewmark_lab.experiments.recipe import load_recipe

pytestmark = pytest.mark.contract

COMMIT = "ab" * 20
# The schemes' own numbers of training texts would only take longer here.
SMALL = """
import sys
from dewmark_lab.training import atw, semstamp, sir, texts, ts
sir.TEXTS = atw.TEXTS = ts.TEXTS = semstamp.TEXTS = 48
texts._TOKENS, texts._BATCH = 110, 48
from dewmark.cli.app import main
sys.exit(main())
"""


def put(hub: Path, name: str, model: object, tokenizer: object) -> None:
    """Store a model as the hub's client does after a download."""
    repository = hub / f"models--{name.replace('/', '--')}"
    folder = repository / "snapshots" / COMMIT
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HF_HOME with the profile's host, judge and encoders, and a stand-in for the library that streams C4."""
    import torch
    from tokenizers.processors import TemplateProcessing
    from transformers import BertConfig, BertModel, MPNetConfig, MPNetModel, XLMRobertaConfig, XLMRobertaModel

    from dewmark_lab.testing.fake_host import tiny_model, tiny_tokenizer

    home = tmp_path_factory.mktemp("hub")
    for name in ("meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.1-8B"):
        put(home / "hub", name, *tiny_model(kind="sentences"))
    sizes = {
        "vocab_size": 512,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 514,
        "initializer_range": 0.5,
    }
    encoders = {
        "sentence-transformers/paraphrase-multilingual-mpnet-base-v2": (XLMRobertaModel, XLMRobertaConfig),
        "sentence-transformers/all-mpnet-base-v2": (MPNetModel, MPNetConfig),
        "perceptiveshawty/compositional-bert-large-uncased": (BertModel, BertConfig),
        "AbeHou/SemStamp-c4-sbert": (MPNetModel, MPNetConfig),
    }
    torch.manual_seed(0)
    for name, (model, config) in encoders.items():
        tokenizer = tiny_tokenizer(kind="sentences")
        tokenizer.model_max_length = 512
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
        )
        put(home / "hub", name, model(config(**sizes, pad_token_id=0)), tokenizer)
    model, tokenizer = tiny_model(kind="sentences")
    (home / "stubs").mkdir()
    words = tokenizer.decode(range(4, 60))
    (home / "stubs" / "datasets.py").write_text(
        f"def load_dataset(*args, **kwargs):\n    return ({{'text': {words!r}}} for _ in range(50))\n"
    )
    return home


def reply(body: dict, _number: int) -> Reply:
    """Prefers the first text; rewrites a text as sentences of the language asked for, equally long."""
    asked = " ".join(message["content"] for message in body["messages"])
    if "=== Start of Sample 1 ===" in asked:
        return Reply("1")
    language = "de" if "German" in asked else "fr" if "French" in asked else "en"
    ordinary = resources.files("dewmark") / "data" / "ordinary" / f"{language}.txt"
    words = ordinary.read_text(encoding="utf-8").split()
    length = len(body["messages"][-1]["content"])
    while len(" ".join(words)) > length:
        words.pop()
    return Reply(" ".join(words))


def test_every_row_of_table_1(home, tmp_path):
    paper = load_recipe("main", profile="paper")
    learned = {entry.scheme for entry in paper.schemes if entry.build().needs.artifact}
    assert learned <= set(paper.training)
    training = {scheme: {**paper.training[scheme], "steps": 3} for scheme in sorted(learned)}
    recipe = tmp_path / "main.yaml"
    recipe.write_text(
        yaml.safe_dump({"base": "main", "lengths": [], "profiles": {"paper": {"training": training}}})
    )
    out, source = tmp_path / "out", Path(__file__).parents[2] / "src"
    with serving(reply) as server:
        environment = {
            **os.environ,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "1",
            "DEWMARK_CACHE": str(tmp_path / "cache"),
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": "none",
            "PYTHONPATH": os.pathsep.join((str(source), str(home / "stubs"))),
        }
        command = [sys.executable, "-c", SMALL, "reproduce", str(recipe), "--profile", "paper", "-q"]
        command += ["--texts", "2", "--seeds", "2", "--tokens", "60", "--keys", "one", "--out", str(out)]
        # without the report, whose figures take longer than all else
        command += ["--stages", "train,generate,attack,score,quality,preference,evaluate"]
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
    assert run.returncode == 0, run.stderr[-2000:]
    labels = {entry.label for entry in paper.schemes}
    scored = {(row["scheme"], row["attack"]) for row in rows(out / "scores.jsonl")}
    attacks = {"none", "paraphrase", "translate-de", "translate-fr"}
    assert {pair for pair in scored if not pair[1].startswith("truncate")} == {
        (label, attack) for label in labels for attack in attacks
    }
    for folder in (out / "artifacts").iterdir():
        card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        assert card["host"]["name"] == paper.schemes[0].host
        assert card["encoder"]["name"] == paper.training[card["scheme"]]["encoder"]
    assert {folder.name.split("-")[0] for folder in (out / "artifacts").iterdir()} == learned
    evaluation = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
    assert {cell["scheme"] for cell in evaluation["cells"]} == labels
