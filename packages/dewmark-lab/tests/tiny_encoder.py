"""A sentence encoder of random weights, as a folder that sentence-transformers loads (with mean pooling)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def tiny_bert(folder: Path, words: Sequence[str]) -> Path:
    """Write a BERT with 16 dimensions, one layer and these words into the folder."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder
