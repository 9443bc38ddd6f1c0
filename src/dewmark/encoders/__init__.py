"""Encoders: where vectors of words, tokens and contexts come from."""
