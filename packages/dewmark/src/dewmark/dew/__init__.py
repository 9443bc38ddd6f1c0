"""Dual-Embedding Watermarking (DEW): the default scheme, and the paper's.

Start with `reference`, the default in plain numpy. To follow a text to its p-value: `reading` → `matrix`. To
follow logits to the drawn token: `word_step` → `race`. `scheme` joins both to a key.
"""
