"""Encoder-decoder models such as T5: texts in, sampled texts out, each row with its own random numbers.

A row's output depends only on its input, its seed and the decoding options, not on its batch (up to rounding
in low-precision weights); the library's own ``generate`` cannot guarantee that. Boundary: the caller prepares
the texts and knows what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dewmark.decoding import Decoding
from dewmark.errors import ModelError
from dewmark.hosts.transformers.attention import growing_attention
from dewmark.hosts.transformers.decoding_loop import check_sound, device_of
from dewmark.hosts.transformers.model_files import load_error, resolve
from dewmark.mark import draw
from dewmark.models.devices import torch_device, torch_dtype
from dewmark.models.hub import quiet_libraries
from dewmark.sampling import RandomStreams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Seq2Seq:
    """An encoder-decoder model in memory and its tokenizer."""

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase) -> None:  # noqa: ANN401 - transformers
        self.model = model.eval()
        self.tokenizer = tokenizer

    @torch.inference_mode()
    def write(
        self, inputs: Sequence[str], *, seeds: Sequence[int], decoding: Decoding, first_step: int = 0
    ) -> list[str]:
        """One output for each input, as one batch.

        Step t of a row uses step ``first_step`` + t of its seed's random stream, so that one seed can serve
        several outputs of one text.
        """
        device = device_of(self.model)
        encoded = self.tokenizer(list(inputs), return_tensors="pt", padding=True).to(device)
        mask = encoded["attention_mask"]
        encoder_outputs = self.model.get_encoder()(input_ids=encoded["input_ids"], attention_mask=mask)
        eos = self._special("eos_token_id")
        pad = self._special("pad_token_id")
        last = torch.full((len(inputs),), self._special("decoder_start_token_id"), device=device)
        finished = torch.zeros(len(inputs), dtype=torch.bool, device=device)
        sound = torch.ones_like(finished)
        noise = RandomStreams(seeds, device=device)
        cache = None
        rows: list[torch.Tensor] = []
        for step in range(decoding.max_new_tokens):
            with growing_attention(device):
                output = self.model(
                    encoder_outputs=encoder_outputs,
                    attention_mask=mask,
                    decoder_input_ids=last[:, None],
                    past_key_values=cache,
                    use_cache=True,
                    return_dict=True,
                )
            cache = output.past_key_values
            scores = output.logits[:, -1].float()
            chosen, fine = draw(scores, decoding, noise, first_step + step)
            sound &= fine.to(device) | finished
            last = chosen.to(device).masked_fill(finished, pad)
            rows.append(last)
            finished |= last == eos
            if bool(finished.all()):
                break
        check_sound(sound, self.model)
        ids = torch.stack(rows, dim=1)
        texts: list[str] = self.tokenizer.batch_decode(ids.tolist(), skip_special_tokens=True)
        return [text.strip() for text in texts]

    def _special(self, name: str) -> int:
        """A special id, from wherever the model's files keep it."""
        for holder in (self.model.generation_config, self.model.config, self.tokenizer):
            found = getattr(holder, name, None)
            if isinstance(found, int):
                return found
        raise ModelError(f"the model's configuration has no {name}: use a T5 model with its original files")


def load_seq2seq(
    name: str, *, tokenizer: str | None = None, device: str = "auto", dtype: str = "auto"
) -> Seq2Seq:
    """Load a model from a local folder or a hub id, with the tokenizer of another one if given."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    target = torch_device(device)
    kind = torch_dtype(dtype, target)
    source = resolve(name)
    tokenizer_source = source if tokenizer is None else resolve(tokenizer, weights=False)
    try:
        with quiet_libraries():
            loaded = AutoTokenizer.from_pretrained(tokenizer_source.location, **tokenizer_source.options)
    except Exception as error:
        raise ModelError(
            f"cannot load the tokenizer of {tokenizer_source.name}: check its files; without tokenizer.json "
            "it needs sentencepiece (pip install 'dewmark[dipper]')"
        ) from error
    try:
        with quiet_libraries():
            model = AutoModelForSeq2SeqLM.from_pretrained(source.location, dtype=kind, **source.options)
            model = model.to(target)
    except torch.OutOfMemoryError:
        raise ModelError(f"{name} does not fit in the memory of {target}: use device='cpu'") from None
    except Exception as error:
        raise load_error(name, error) from error
    return Seq2Seq(model, loaded)
