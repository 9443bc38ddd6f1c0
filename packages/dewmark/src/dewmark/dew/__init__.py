"""Dual-Embedding Watermarking (DEW).

Start with `reference`, the paper's two algorithms word for word. `settings` lists the parameters, `scheme`
joins them to a key. To follow a text to its p-value: `reading` → `projection` → `detection`. To follow logits
to the drawn token: `alignment` → `marking`.
"""
