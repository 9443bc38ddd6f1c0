"""Dual-Embedding Watermarking.

Read `reference` first: it is the paper's two algorithms, word for word. `folded` is the same mathematics with
less memory, `modes` the four ablations, `session` marks, `bound` detects, `scheme` holds the parameters.
"""
