"""Watermarks by other authors, on the same contract as DEW. Each family of schemes has its own package.

`token_schemes` is the base for any scheme that marks a token by its id and the ids before it; `engines` reads
the marks that serving engines write by themselves.
"""
