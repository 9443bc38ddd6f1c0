"""Schemes that mark whole sentences."""
