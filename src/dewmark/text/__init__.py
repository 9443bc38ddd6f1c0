"""Text: words, growing texts, sentences and languages; no models, no keys."""
