"""Null distributions, tests and metrics: arrays in, numbers out; independent of models, texts and keys."""
