"""Schemes that keep what they wrote."""
