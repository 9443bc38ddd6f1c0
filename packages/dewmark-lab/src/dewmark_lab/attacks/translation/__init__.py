"""Machine translation and round trips."""
