"""Null distributions and tests. Arrays in, numbers out: no models, no text, no keys."""
