"""Attacks that rewrite a text with a model: synonyms, DIPPER, paraphrase and translation by a chat model."""
