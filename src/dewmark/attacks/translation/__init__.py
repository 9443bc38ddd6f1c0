"""Attacks by machine translation."""
