"""Schemes that look up marked outputs by their meaning."""
