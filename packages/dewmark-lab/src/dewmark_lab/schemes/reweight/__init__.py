"""Schemes that reweight the host's distribution along a keyed order of the vocabulary."""
