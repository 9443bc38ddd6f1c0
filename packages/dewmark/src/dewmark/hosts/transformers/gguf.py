"""Converting GGUF files to transformers folders: bfloat16 safetensors and the tokenizer.

Boundary: one file in, one folder out; `dewmark.hosts.transformers.model_files` caches and verifies.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dewmark.errors import DewmarkError, ModelError, StorageError
from dewmark.models.hub import quiet_libraries
from dewmark.workspace import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Control tokens that GGUF files list as text: Gemma 3 writes an image placeholder with a probability of 12%
# in the middle of a sentence.
_CONTROLS = frozenset({"[multimodal]", "<start_of_image>", "<end_of_image>"})


def convert_gguf(
    gguf: Path, folder: Path, progress: Progress, *, generation: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Write the model and the tokenizer of ``gguf`` into ``folder``, in bfloat16.

    ``generation`` are the fields of the model's published generation_config, for which GGUF has no place.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    description = f"converting {gguf.name}"
    progress(description, 0, 1)
    try:
        with quiet_libraries(), _tensor_progress(description, progress):
            tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
            model = AutoModelForCausalLM.from_pretrained(
                str(gguf.parent),
                gguf_file=gguf.name,
                dtype=torch.bfloat16,
                quantization_config=GgufConfig(dequantize=True),
            )
            flag_controls(tokenizer)
            _split_digits(tokenizer, gguf)
            drop_padding(tokenizer)
            model.generation_config.update(**generation)  # type: ignore[no-untyped-call]
            tokenizer.save_pretrained(str(folder))
            model.save_pretrained(str(folder))
    except DewmarkError:
        raise
    except Exception as error:  # the readers and writers below raise many classes
        if "No space left" in str(error):
            raise StorageError(
                f"the disk is full at {folder.parent}: free some space and try again"
            ) from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise ModelError(
            f"cannot convert {gguf}: {reason}; it may be damaged or of a kind that transformers cannot read"
        ) from error
    progress(description, 1, 1)


def flag_controls(tokenizer: PreTrainedTokenizerBase) -> None:
    """Mark the control tokens among a tokenizer's added tokens as special."""
    from transformers import AddedToken

    present = sorted(_CONTROLS & {str(token) for token in tokenizer.added_tokens_decoder.values()})
    if present:
        tokenizer.backend_tokenizer.add_special_tokens(
            [AddedToken(token, special=True, normalized=False) for token in present]
        )


def _split_digits(tokenizer: PreTrainedTokenizerBase, gguf: Path) -> None:
    """Make a SmolLM tokenizer split numbers into digits, as in training.

    A GGUF file names its model's pre-tokenizer, and llama.cpp obeys; transformers ignores the name and
    pre-tokenizes as GPT-2 does.
    """
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers

    field = GGUFReader(gguf).get_field("tokenizer.ggml.pre")
    if field is not None and field.contents() == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        rest = tokenizer.backend_tokenizer.pre_tokenizer
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, rest])


def drop_padding(tokenizer: PreTrainedTokenizerBase) -> None:
    """Drop the names, such as ``[PAD151665]``, that llama.cpp gives to ids beyond the tokenizer's.

    They are rows of the embedding matrix that no text uses; as tokens they could be written.
    """
    from tokenizers import Tokenizer as Backend

    whole = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = whole["model"]["vocab"]
    if not isinstance(vocabulary, dict) or all(name != f"[PAD{i}]" for name, i in vocabulary.items()):
        return
    whole["model"]["vocab"] = {name: i for name, i in vocabulary.items() if name != f"[PAD{i}]"}
    tokenizer._tokenizer = Backend.from_str(json.dumps(whole))


@contextlib.contextmanager
def _tensor_progress(description: str, progress: Progress) -> Iterator[None]:
    """Report dequantized tensors to ``progress`` instead of to a progress bar.

    The GGUF reader draws its bar with tqdm directly, whatever transformers' switch for bars says, so its
    ``tqdm`` is replaced for a while. If transformers renames it, a bar appears, nothing worse.
    """
    from transformers import modeling_gguf_pytorch_utils as reader

    def follow(tensors: Iterable[Any], **options: object) -> Iterator[Any]:
        items = list(tensors)
        for done, item in enumerate(items):
            progress(description, done, len(items))
            yield item

    original = getattr(reader, "tqdm", None)
    if original is None:
        yield
        return
    vars(reader)["tqdm"] = follow
    try:
        yield
    finally:
        vars(reader)["tqdm"] = original
