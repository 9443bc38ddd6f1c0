"""The paper's tables with one command: recipes, resumable stages and parallel workers."""
