"""Choosing a scheme's settings for a host: measure a grid of configurations, keep the best within a budget.

`grid` says what is tried, `measuring` writes and scores the texts (and goes on after a kill), `choice`
compares them and says how much of the result is noise.
"""
