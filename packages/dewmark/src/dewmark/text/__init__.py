"""Text: words, pieces of words, languages and windows; independent of models and keys."""
