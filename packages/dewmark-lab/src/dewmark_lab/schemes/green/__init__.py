"""Schemes that raise the logits of a keyed share of the vocabulary, the green list."""
