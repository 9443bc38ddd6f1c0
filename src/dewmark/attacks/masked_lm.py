"""A masked language model that fills one gap in each of many texts.

Boundary: (left, right) contexts in, one word each out; which words become gaps is the caller's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dewmark.errors import ConfigError, DewmarkError, ModelError

if TYPE_CHECKING:
    import torch

    from dewmark.hosts.sources import Source

__all__ = ["MaskedLM", "find_masked_lm"]

_CHARACTERS = 16  # of a token at most: what is further away cannot fall into the window
_WORD_STARTS = ("Ġ", "▁")  # how byte-level and SentencePiece tokenizers write the space before a word
_REMEDY = "name a folder or a hub id with model=NAME, or use method=wordnet"


def find_masked_lm(name: str) -> Source:
    """The files of a masked language model: a folder or a hub id (``bert-…`` is short for google-bert/…)."""
    from dewmark.hosts.sources import resolve

    short = "/" not in name and not Path(name).is_dir()
    try:
        return resolve(f"google-bert/{name}" if short else name, weights=False)
    except DewmarkError as error:
        # the host's own remedy, after the colon, is a packaged host: none of those is a masked model
        reason = str(error).rpartition(": ")[0] or str(error)
        raise ModelError(f"no masked language model {name!r} ({reason}): {_REMEDY}") from error


class MaskedLM:
    """A model with a mask token, in float32 so that the likeliest word does not hang on rounding."""

    def __init__(self, source: Source, *, device: str = "auto") -> None:
        import torch
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        from dewmark.hosts.gguf import quiet
        from dewmark.hosts.tokenizers import HFTokenizer

        chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        try:
            with quiet():
                tokenizer: Any = AutoTokenizer.from_pretrained(source.location, **source.options)
                model: Any = AutoModelForMaskedLM.from_pretrained(
                    source.location, dtype=torch.float32, **source.options
                )
                self.model = model.to(chosen).eval()
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, AssertionError) as error:
            first = str(error).strip().partition("\n")[0]
            raise ModelError(
                f"cannot load the masked language model {source.name}: {first}; {_REMEDY}"
            ) from error
        if tokenizer.mask_token_id is None:
            raise ConfigError(f"{source.name} has no mask token and cannot fill gaps: {_REMEDY}")
        self.tokenizer = HFTokenizer(tokenizer)
        self._mask_id: int = tokenizer.mask_token_id
        framed: list[int] = tokenizer(tokenizer.mask_token)["input_ids"]
        place = framed.index(self._mask_id)
        self._before, self._after = framed[:place], framed[place + 1 :]
        self._words = _whole_words(tokenizer)
        barred = torch.ones(model.config.vocab_size, dtype=torch.bool)
        barred[list(self._words)] = False
        self._barred = barred.to(chosen)

    def fill(self, contexts: Sequence[tuple[str, str]], *, window: int, batch_size: int) -> list[str]:
        """For each (left, right) the likeliest whole word between them, seen through ``window`` tokens."""
        found: list[str] = []
        for start in range(0, len(contexts), batch_size):
            found += self._best(self._rows(contexts[start : start + batch_size], window))
        return found

    def _rows(self, contexts: Sequence[tuple[str, str]], window: int) -> list[tuple[list[int], int]]:
        """Token ids of each context with the mask in it, and where the mask is."""
        room = window * _CHARACTERS
        sides = [side for left, right in contexts for side in (left[-room:].rstrip(), right[:room])]
        ids = [list(cut.ids) for cut in self.tokenizer.encode(sides)]
        rows = []
        for left, right in zip(ids[::2], ids[1::2], strict=True):
            # half of the window on each side; what one side does not need goes to the other
            after = min(len(right), max(window // 2, window - len(left)))
            kept = left[max(0, len(left) - (window - after)) :]
            row = [*self._before, *kept, self._mask_id, *right[:after], *self._after]
            rows.append((row, len(self._before) + len(kept)))
        return rows

    def _best(self, rows: list[tuple[list[int], int]]) -> list[str]:
        import torch

        width, pad = max(len(row) for row, _ in rows), self.tokenizer.pad_id or 0
        ids = torch.tensor([row + [pad] * (width - len(row)) for row, _ in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row, _ in rows])
        at = torch.tensor([place for _, place in rows])
        device = self._barred.device
        with torch.inference_mode():
            logits: torch.Tensor = self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
            gaps = logits[torch.arange(len(rows), device=device), at.to(device)]  # (rows, vocab)
            best: list[int] = gaps.masked_fill(self._barred, -torch.inf).argmax(dim=-1).tolist()
        return [self._words[token] for token in best]


def _whole_words(tokenizer: Any) -> dict[int, str]:  # noqa: ANN401 - transformers is not imported here
    """The ids that stand for a whole word of letters, and the word."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    special = set(tokenizer.all_special_tokens)
    starts = next((s for s in _WORD_STARTS if any(token.startswith(s) for token in vocabulary)), "")
    words = {
        index: token.removeprefix(starts)
        for token, index in vocabulary.items()
        if token.startswith(starts) and token.removeprefix(starts).isalpha() and token not in special
    }
    if not words:
        raise ModelError(f"the tokenizer has no whole words to fill gaps with: {_REMEDY}")
    return words
