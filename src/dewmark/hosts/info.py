"""What may be known of a host without loading it: tokenizer, vocabulary, where its embeddings lie.

Boundary: no weights. For a converted host (a packaged one, a GGUF file) neither torch nor transformers is
imported until ``embeddings`` is called, so a detector starts fast.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dewmark.embeddings.packaged import PACKAGED
from dewmark.errors import ModelError
from dewmark.hosts.gguf import quiet
from dewmark.hosts.sources import Source, load_error, resolve
from dewmark.hosts.tokenizers import HFTokenizer
from dewmark.workspace import HostInfo, Progress

__all__ = ["describe", "host_info"]


def host_info(name: str, *, progress: Progress | None = None) -> HostInfo:
    """Describe a host by its tokenizer and configuration; its weights are not loaded.

    ``embeddings`` of the result reads that one tensor from the weight files when it is called.
    """
    info, _ = describe(resolve(name, weights=False, progress=progress), progress)
    return info


def describe(source: Source, progress: Progress | None = None) -> tuple[HostInfo, HFTokenizer]:
    """A host's description and its tokenizer, from its files."""
    own = source.tokenizer_folder
    if own is not None:
        tokenizer, vocab_size = HFTokenizer.load(own), _vocab_size(Path(source.location))
    else:
        tokenizer, vocab_size = _ask_transformers(source)
    _check_tokenizer(source, tokenizer)

    def embeddings() -> NDArray[np.float32]:
        from dewmark.hosts.weights import read_embeddings

        return read_embeddings(resolve(source.name, weights=True, progress=progress), vocab_size)

    info = HostInfo(
        name=source.name,
        identity=source.identity,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        embeddings=embeddings,
    )
    return info, tokenizer


def _check_tokenizer(source: Source, tokenizer: HFTokenizer) -> None:
    """Refuse a packaged host whose texts are cut otherwise than it was trained: it would write nonsense.

    The libraries read tokenizers out of GGUF files, and not every version reads each of them rightly
    (transformers 5.17: not Gemma's).
    """
    package = PACKAGED.get(source.name)
    if package is not None and package.tokenizer and package.tokenizer != tokenizer.identity:
        raise ModelError(
            f"the tokenizer of {source.name} was read wrongly (identity {tokenizer.identity}, expected "
            f"{package.tokenizer}): pip install 'transformers>=5.22', delete {source.location}, try again"
        )


def _vocab_size(folder: Path) -> int:
    """Out of the configuration that our own conversion wrote (its checksum was taken)."""
    return int(json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"])


def _ask_transformers(source: Source) -> tuple[HFTokenizer, int]:
    from transformers import AutoConfig, AutoTokenizer

    try:
        with quiet():
            config = AutoConfig.from_pretrained(source.location, **source.options)
            tokenizer = AutoTokenizer.from_pretrained(source.location, **source.options)
    except Exception as error:  # a broken file raises whatever its reader does
        raise load_error(source.name, error) from error
    return HFTokenizer(tokenizer), int(config.get_text_config().vocab_size)
