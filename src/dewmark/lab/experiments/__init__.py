"""The paper's tables by one command: recipes (data), stages with a cache, workers, a report at the end."""
