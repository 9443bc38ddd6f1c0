"""Research with dewmark: rival schemes, attacks, evaluation, experiments, training, benchmarks.

Boundary: imports the public names of `dewmark` only, and is found by it through entry points.
"""
