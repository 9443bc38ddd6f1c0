"""Text: words, growing texts, sentences, languages and windows; independent of models and keys."""
