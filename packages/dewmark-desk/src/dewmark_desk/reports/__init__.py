"""Signed detection reports, the provider's dossier and the signpost."""
