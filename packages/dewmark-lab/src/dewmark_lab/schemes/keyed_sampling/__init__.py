"""Schemes in which the key takes part in sampling the next token."""
