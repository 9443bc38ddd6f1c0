"""What experiments measure: scores against nulls, text quality, preference, running time."""
