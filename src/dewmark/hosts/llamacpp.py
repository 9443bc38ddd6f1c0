"""A scheme inside llama-cpp-python: one callable that marks what a ``Llama`` writes.

    llm = Llama("model.gguf", n_ctx=2048)
    scheme = dewmark.load_scheme("dew", key=key, host=llamacpp_info(llm))
    mark = LlamaCppProcessor(scheme, llm, seed=1, temperature=0.8, top_p=0.95)
    llm(prompt, max_tokens=200, logits_processor=LogitsProcessorList([mark]),
        stopping_criteria=StoppingCriteriaList([mark.check]))

llama.cpp calls a processor before its own temperature, top-k and top-p. A scheme that needs the final
distribution is given them here: it warps, chooses the token, and leaves only that one finite, so whatever
comes after cannot change it.

Boundary: numpy arrays of one text in, numpy arrays out; llama.cpp drives everything, nothing of it is
imported here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.errors import ConfigError, VocabularyError
from dewmark.hosts.base import Decoding
from dewmark.hosts.llamacpp_info import Llama, llamacpp_info
from dewmark.scheme import BoundScheme

__all__ = ["LlamaCppProcessor", "llamacpp_info"]

_SAMPLE = 'The old bridge – "Brücke" – over the river, 1923: 3.14 km… \n\tif (x != 42) { return; }'


class LlamaCppProcessor:
    """Marks the texts of one ``Llama``, one after the other.

    A call whose ids do not extend those of the call before by one token begins another text, with a session
    of its own. With ``seed`` the first text draws from that seed, the next one from seed + 1, and so on;
    without it seeds are drawn. ``temperature``, ``top_k`` and ``top_p`` serve schemes that need the final
    distribution; for others llama.cpp's own are used, and these are ignored.
    """

    def __init__(
        self,
        scheme: BoundScheme,
        llm: Llama,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
    ) -> None:
        Decoding(temperature=temperature, top_k=top_k, top_p=top_p).check_scheme(scheme)
        if scheme.needs.drafts:
            raise ConfigError(
                f"{scheme.scheme.name} chooses between drafts of sentences, which llama.cpp does not write: "
                "run it in transformers, or use a scheme that marks token by token"
            )
        _check_vocabulary(scheme, llm)
        self._open = functools.partial(scheme.processor, temperature=temperature, top_k=top_k, top_p=top_p)
        self._seed = seed
        self._texts = 0
        self._ids: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._mark: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
        self._error: Exception | None = None

    def __call__(self, input_ids: NDArray[np.intc], scores: NDArray[np.single]) -> NDArray[np.single]:
        """Ids (length,) of prompt and text so far and logits (vocab,) to marked logits (vocab,)."""
        ids = np.array(input_ids, dtype=np.int64)  # a copy: llama.cpp goes on writing into its own
        rows = torch.from_numpy(ids).unsqueeze(0)
        try:
            if self._mark is None or not self._goes_on(ids):
                self._mark = self._begin(rows)
            self._ids = ids
            # llama.cpp lends a strided view of its own table of candidates
            logits = torch.from_numpy(np.ascontiguousarray(scores, dtype=np.float32)).unsqueeze(0)
            with torch.inference_mode():
                marked: NDArray[np.single] = self._mark(rows, logits)[0].numpy()
        except Exception as error:
            self._error = error  # for `check`: C swallows this one
            raise
        return marked

    def check(self, input_ids: NDArray[np.intc], logits: NDArray[np.single]) -> bool:
        """A stopping criterion that never stops, but raises what went wrong in a step.

        llama.cpp calls processors out of C, where an exception is printed and forgotten: without this the
        text would go on unmarked.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return False

    def _goes_on(self, ids: NDArray[np.int64]) -> bool:
        return len(ids) == len(self._ids) + 1 and np.array_equal(ids[:-1], self._ids)

    def _begin(self, prompt: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        seeds = None if self._seed is None else [self._seed + self._texts]
        self._texts += 1
        return self._open(prompt, torch.ones_like(prompt), seeds=seeds)


def _check_vocabulary(scheme: BoundScheme, llm: Llama) -> None:
    """Refuse a scheme that was made for another vocabulary, before anything is written."""
    theirs, ours = int(llm.n_vocab()), scheme.host.vocab_size
    same = theirs == ours
    if same:
        cut = tuple(llm.tokenize(_SAMPLE.encode(), add_bos=False, special=False))
        same = cut == scheme.host.tokenizer.encode([_SAMPLE])[0].ids
    if not same:
        raise VocabularyError(
            f"the scheme was made for {scheme.host.name} ({ours} ids) and the GGUF model has another "
            f"vocabulary ({theirs} ids): bind the scheme with host=llamacpp_info(llm)"
        )
