"""What one key does, before anyone relies on it: false alarms, power, what rewrites keep, and calibration.

Boundary: imports the public names of `dewmark` only, and is found by it through entry points.
"""
