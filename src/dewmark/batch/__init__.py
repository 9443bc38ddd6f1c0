"""Rows in, rows out: sources, resumable runs, runners."""
