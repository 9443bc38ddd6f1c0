"""Null distributions and tests: arrays in, numbers out; independent of models, texts and keys."""
