"""Keys, pseudo-random functions, projections and whitening: independent of models and text."""
