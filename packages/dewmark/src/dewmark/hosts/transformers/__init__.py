"""Hosts that run in transformers."""
