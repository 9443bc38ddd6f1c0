"""Schemes that mark whole sentences by choosing between drafts."""
