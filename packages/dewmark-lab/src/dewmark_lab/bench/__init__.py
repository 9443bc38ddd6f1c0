"""Benchmarks of marking and detection: schemes timed in turns on the machine at hand."""
