"""Marks on the surface of a text, its tokens: bases for such schemes, and the marks of serving engines."""
