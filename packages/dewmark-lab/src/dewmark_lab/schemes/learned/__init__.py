"""Schemes that use a trained network."""
