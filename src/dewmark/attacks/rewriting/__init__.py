"""Attacks that rewrite: synonyms, paraphrase."""
