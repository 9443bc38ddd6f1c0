"""Schemes with a trained network."""
