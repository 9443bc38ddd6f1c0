"""A scheme inside llama-cpp-python: one callable that marks the output of a ``Llama`` (docs/llamacpp.md).

llama.cpp calls a processor before its own temperature, top-k and top-p. A scheme that needs the final
distribution gets them from ``decoding``: it applies them, chooses the token, and leaves only that one finite,
so that nothing later can change it.

`llamacpp_info` describes the open GGUF model to schemes by llama.cpp's own tokenizer. A scheme that marks
words needs nothing else; one that reads the host's embeddings is bound with ``host="model.gguf"`` instead.

Boundary: numpy arrays of one text in, numpy arrays out; llama.cpp drives everything.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import I64
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, ModelError, VocabularyError
from dewmark.extras import require
from dewmark.hosts.base import check_decoding
from dewmark.mark import Writer
from dewmark.room import Room, rooms_of
from dewmark.scheme import BoundScheme
from dewmark.workspace import HostInfo, Tokenized

__all__ = ["Llama", "LlamaCppProcessor", "llamacpp_info"]

Llama = Any  # llama_cpp.Llama, which ships no types

_CONTROL, _UNKNOWN, _UNUSED = 1 << 3, 1 << 0, 1 << 1  # llama_token_attr
_LONGEST = 512  # bytes of one token
_SAMPLE = 'The old bridge – "Brücke" – over the river, 1923: 3.14 km… \n\tif (x != 42) { return; }'


def llamacpp_info(llm: Llama) -> HostInfo:
    """Describe a ``llama_cpp.Llama`` to schemes: pass the result to `dewmark.load_scheme` as ``host``."""
    path = Path(llm.model_path)
    tokenizer = LlamaCppTokenizer(llm)
    stat = path.stat()
    # size and time instead of contents: reading gigabytes would delay every start
    stamp = hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns} {tokenizer.identity}".encode()).hexdigest()
    identity = f"{path.name}@{stamp[:12]}"
    return HostInfo(path.name, identity, tokenizer.size, tokenizer, _no_embeddings)


def _no_embeddings() -> NoReturn:
    raise ConfigError("this scheme reads the host's embeddings: bind it with host=FILE.gguf instead")


class LlamaCppProcessor:
    """Marks the texts of one ``Llama``, one after another.

    A call whose ids do not extend those of the previous call by one token starts another text, with its own
    session. With ``seed`` the first text uses that seed, the next one seed + 1, and so on; without it seeds
    are random. ``decoding`` is for schemes that need the final distribution; others ignore it, and
    llama.cpp's own temperature and filters apply.
    """

    def __init__(
        self, scheme: BoundScheme, llm: Llama, *, seed: int | None = None, decoding: Decoding = Decoding()
    ) -> None:
        check_decoding(decoding, scheme)
        if scheme.needs.drafts:
            raise ConfigError(
                f"{scheme.scheme.name} chooses between drafts of sentences, which llama.cpp does not write: "
                "run it in transformers, or use a scheme that marks token by token"
            )
        _check_vocabulary(scheme, llm)
        self._scheme = scheme
        self._decoding, self._seed = decoding, seed
        self._texts = 0
        self._ids: I64 = np.zeros(0, dtype=np.int64)
        self._writer: Writer | None = None
        self._error: Exception | None = None

    def __call__(self, input_ids: NDArray[np.intc], scores: NDArray[np.single]) -> NDArray[np.single]:
        """Ids (length,) of prompt and text so far and logits (vocab,) to marked logits (vocab,)."""
        ids = np.array(input_ids, dtype=np.int64)  # a copy: llama.cpp keeps writing into its own
        rows = torch.from_numpy(ids).unsqueeze(0)
        try:
            if self._writer is None or len(ids) != len(self._ids) + 1 or (ids[:-1] != self._ids).any():
                seeds = None if self._seed is None else [self._seed + self._texts]
                self._writer = self._scheme.writer(rows, torch.ones_like(rows), seeds=seeds)
                self._texts += 1
            self._ids = ids
            # llama.cpp passes a strided view of its own table of candidates
            logits = torch.from_numpy(np.ascontiguousarray(scores, dtype=np.float32)).unsqueeze(0)
            with torch.inference_mode():
                marked: NDArray[np.single] = self._writer.logits(rows, logits, self._decoding)[0].numpy()
        except Exception as error:
            self._error = error  # for `check`: the C code swallows exceptions
            raise
        return marked

    @property
    def room(self) -> Room | None:
        """What the last text has left to the mark so far; None if it is not measured."""
        return rooms_of(None if self._writer is None else self._writer.room(), 1)[0]

    @property
    def unmarked(self) -> str | None:
        """Why the last text counts as unmarked so far: ``no_room``; None if it is marked."""
        return self._scheme.unmarked_reason(self.room)

    def check(self, input_ids: NDArray[np.intc], logits: NDArray[np.single]) -> bool:
        """A stopping criterion that never stops, but raises the exception of a failed step.

        llama.cpp calls processors from C, which prints an exception and continues: without this, the rest of
        the text would be unmarked.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return False


class LlamaCppTokenizer:
    """The `dewmark.workspace.Tokenizer` protocol for llama.cpp's tokenizer."""

    def __init__(self, llm: Llama) -> None:
        self._llm = llm
        self.size = int(llm.n_vocab())
        api = require("llama_cpp", extra="llamacpp")
        vocab = api.llama_model_get_vocab(llm.model)
        textless = _CONTROL | _UNKNOWN | _UNUSED
        attributes = [int(api.llama_vocab_get_attr(vocab, i)) for i in range(self.size)]
        self.special_ids = frozenset(i for i, attribute in enumerate(attributes) if attribute & textless)
        self.pieces = {i: _piece(api, vocab, i) for i in range(self.size)}
        pad = int(api.llama_vocab_pad(vocab))
        self.pad_id: int | None = pad if pad >= 0 else int(llm.token_eos())

    @functools.cached_property
    def identity(self) -> str:
        """16 hex digits of the SHA-256 of all tokens' bytes and attributes."""
        digest = hashlib.sha256(b"llama.cpp")
        for i, piece in self.pieces.items():
            digest.update(b"%d %d " % (len(piece), i in self.special_ids) + piece)
        return digest.hexdigest()[:16]

    def encode(self, texts: Sequence[str]) -> list[Tokenized]:
        """Tokenize texts without special tokens, even if a text spells one out."""
        return [self._encode(text) for text in texts]

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """Token ids to text, without special tokens; bytes that form no character become U+FFFD."""
        return [self._bytes(ids).decode("utf-8", "replace") for ids in batch]

    def save(self, folder: Path) -> None:
        """Raise `ConfigError`: the tokenizer is inside the GGUF file and has no file of its own."""
        raise ConfigError(
            "llama.cpp's tokenizer cannot be stored with a detector: bind the scheme with host=FILE.gguf to "
            "export it, or use a scheme that detects without a tokenizer (dew)"
        )

    def _encode(self, text: str) -> Tokenized:
        data = text.encode("utf-8")
        ids = tuple(self._llm.tokenize(data, add_bos=False, special=False)) if data else ()
        joined = self._bytes(ids)
        extra = len(joined) - len(data)  # some tokenizers add a space before the first word
        if joined[extra:] != data or joined[:extra].strip():
            raise ModelError(
                "this GGUF model's tokenizer changes the text, so character offsets are unknown: "
                "use a scheme that detects without a tokenizer (dew)"
            )
        # the character of each byte; a token that ends within a character shares it with the next token
        character = np.cumsum([0, *((byte & 0xC0) != 0x80 for byte in data)])
        ends = np.clip(np.cumsum([len(self.pieces[i]) for i in ids]) - extra, 0, len(data)).tolist()
        starts = [0, *ends][:-1]
        offsets = tuple(
            (
                max(int(character[start + 1]) - 1, 0) if end > start else int(character[start]),
                int(character[end]),
            )
            for start, end in zip(starts, ends, strict=True)
        )
        return Tokenized(text=text, ids=ids, offsets=offsets)

    def _bytes(self, ids: Sequence[int]) -> bytes:
        known = (int(i) for i in ids if i < self.size and i not in self.special_ids)
        return b"".join(self.pieces[i] for i in known)


def _piece(api: Any, vocab: Any, token: int) -> bytes:  # noqa: ANN401 - ctypes
    buffer = ctypes.create_string_buffer(_LONGEST)
    length = api.llama_token_to_piece(vocab, token, buffer, _LONGEST, 0, False)
    if length < 0:
        raise ModelError(f"token {token} of the GGUF model is longer than {_LONGEST} bytes")
    return buffer.raw[:length]


def _check_vocabulary(scheme: BoundScheme, llm: Llama) -> None:
    """Raise `VocabularyError` for a scheme built for another vocabulary, before anything is written."""
    theirs, ours = int(llm.n_vocab()), scheme.host.vocab_size
    same = theirs == ours
    if same:
        ids = tuple(llm.tokenize(_SAMPLE.encode(), add_bos=False, special=False))
        same = ids == scheme.host.tokenizer.encode([_SAMPLE])[0].ids
    if not same:
        raise VocabularyError(
            f"the scheme was built for {scheme.host.name} ({ours} ids) and the GGUF model has another "
            f"vocabulary ({theirs} ids): bind the scheme with host=llamacpp_info(llm)"
        )
