"""Measures of an experiment: detectability, text quality, preference and running time."""
