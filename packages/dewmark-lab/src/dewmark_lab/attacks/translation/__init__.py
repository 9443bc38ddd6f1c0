"""Machine translation and round trips, by Bergamot's neural models or by Apertium."""
