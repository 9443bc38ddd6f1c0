"""Schemes inside serving engines: vLLM, SGLang, llama.cpp."""
