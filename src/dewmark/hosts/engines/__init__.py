"""Schemes inside serving engines: vLLM, llama.cpp."""
