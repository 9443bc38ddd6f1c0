"""`dew-paper`: the scheme of the paper, on the host's tokens.

Schäfer, Pilaszewicz and Wunder, *Robust Text Watermarking for Large Language Models via Dual Semantic
Embeddings*. `reference` has its two algorithms line by line.
"""
