"""What a mark does to the texts of a model, measured against unmarked texts of the same prompts."""
