"""Schemes whose key decides the draw of the next token."""
