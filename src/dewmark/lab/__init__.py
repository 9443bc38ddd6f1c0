"""Research: experiments, evaluation, training, tuning, benchmarks."""
