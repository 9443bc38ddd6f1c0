"""Dual-Embedding Watermarking (DEW).

Start with `reference`, the default scheme in plain numpy; `paper_reference` has the paper's two algorithms.
`settings` lists the parameters, `scheme` joins them to a key. To follow a text to its p-value: `reading` →
`projection` → `detection`. To follow logits to the drawn token: `word_step` → `marking`.
"""
