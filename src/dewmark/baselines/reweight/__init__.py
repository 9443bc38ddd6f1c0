"""Schemes that reweight a keyed order of the vocabulary."""
