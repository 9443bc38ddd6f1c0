"""What marking and detecting cost, on one's own machine: works timed in turn."""
