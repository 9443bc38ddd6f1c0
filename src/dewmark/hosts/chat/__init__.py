"""Chat models: hosts of ours or endpoints."""
