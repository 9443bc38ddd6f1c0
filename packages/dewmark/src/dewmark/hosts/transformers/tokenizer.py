"""A transformers tokenizer as schemes see it: ids with character offsets, an identity, files of its own.

`HFTokenizer` works on a private copy of the fast tokenizer's backend, because the original is shared and
keeps the truncation, padding and special-token settings of its last caller. Byte-level tokenizers decode by
joining the bytes of single ids (`Pieces`): the backend takes several times as long, and marks that read
windows of text wait for it in every step. Boundary: ids and text; no scheme, no model.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dewmark.errors import ArtifactError, ConfigError, InputError, ModelError
from dewmark.storage import atomic_write
from dewmark.workspace import Tokenized

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerBase

__all__ = ["HFTokenizer"]

TOKENIZER_FILE = "tokenizer.json"
_IDS_FILE = "tokenizer_ids.json"

# Text that normalizers, pre-tokenizers and models treat differently.
_PROBES = (
    "The old bridge over the river, which my grandmother's father built in 1857, doesn't stand any more.",
    " leading, trailing ",
    "two  spaces   three\ttab\nline\r\nWindows line\n\n\nparagraph",
    "",
    "UPPER lower Title camelCase snake_case kebab-case SHOUTING!!! what?! (well...) [no] {yes} <b>bold</b>",
    "0 1 12 123 1234 12345 3.14159 1,000,000 50% $5 €7 £9 №3 ½ ² 1st 2nd 10:30 2024-01-31",
    "def f(x): return x**2 if x != 0 else None  # comment\n    for i in range(10):\n        print(i)",
    "https://example.org/a/b?c=d&e=f user@example.org C:\\Users\\x /usr/local/bin",
    "naïve café Ångström Straße Œuvre ñandú çà İstanbul ﬁne e\u0301 u\u0308 n\u0303",
    "Die Brücke über den Fluß; le pont sur la rivière; el puente sobre el río; a ponte sobre o rio",
    "Старый мост через реку. Παλιά γέφυρα. הגשר הישן. الجسر القديم فوق النهر",
    "古い橋が川にかかっている。旧桥横跨河流，很长。강 위의 오래된 다리. สะพานเก่าข้ามแม่น้ำ पुराना पुल",
    "🙂 👩‍👩‍👧 🏳️‍🌈 ✓ → ≤ ∑ ‘single’ “double” – — … \u00a0nbsp\u200bzero \ufeffbom \u3000wide",
    "it's we're they've I'll he'd o'clock rock'n'roll don’t John's dogs'",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa abcabcabcabc xyzzy qwertyuiop Donaudampfschifffahrt",
    "<|im_start|> <s> </s> [CLS] [MASK] <unk> <pad> <|endoftext|>",
)


class HFTokenizer:
    """The `dewmark.workspace.Tokenizer` protocol for a fast tokenizer; safe to share between threads.

    ``open_original`` opens transformers' own tokenizer, where there is one.
    """

    open_original: Callable[[], PreTrainedTokenizerBase] | None = None

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not getattr(tokenizer, "is_fast", False) or backend is None:
            raise ModelError(
                f"{type(tokenizer).__name__} is a slow tokenizer without character offsets; "
                "load it with AutoTokenizer.from_pretrained(..., use_fast=True)"
            )
        ends = tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id
        self._setup(backend.to_str(), len(tokenizer), tokenizer.all_special_ids, ends)
        self.original = tokenizer

    def _setup(self, backend: str, size: int, special: Iterable[int], ends: Sequence[int | None]) -> None:
        """From the backend's JSON; ``ends`` are the ids of padding, begin and end of text."""
        from tokenizers import Tokenizer as Backend

        # Truncation and padding come from the last caller and would cut long texts.
        canonical = {**json.loads(backend), "truncation": None, "padding": None}
        self._json = json.dumps(canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        flagged = {token["id"] for token in canonical.get("added_tokens", ()) if token.get("special")}
        self._plain: tokenizers.Tokenizer = Backend.from_str(self._json)
        self._plain.encode_special_tokens = True  # "<|im_end|>" in a scored text is ordinary text
        merges = canonical["model"].get("merges") or ()
        tokens = self._plain.get_vocab(with_added_tokens=True)
        whole = [
            sorted((index, token) for token, index in tokens.items()),
            [merge if isinstance(merge, str) else " ".join(merge) for merge in merges],
            [encoding.ids for encoding in self._plain.encode_batch(_PROBES, add_special_tokens=False)],
        ]
        decisive = json.dumps(whole, separators=(",", ":"), ensure_ascii=True)
        self.identity = hashlib.sha256(decisive.encode()).hexdigest()[:16]
        """Equal for tokenizers that tokenize alike: their vocabulary, merges and the probes' tokens decide.

        It is no hash of the file: each library version writes the same tokenizer a little differently, and a
        table or a trained network built with one version must stay valid with the next.
        """
        self.size = size
        self.special_ids = frozenset(special) | flagged
        pad, self.bos_id, self.eos_id = ends
        self.pad_id = self.eos_id if pad is None else pad
        by_bytes = (canonical.get("decoder") or {}).get("type") == "ByteLevel"
        self.pieces = Pieces(self._plain, self.size, self.special_ids) if by_bytes else None

    def encode(self, texts: Sequence[str]) -> list[Tokenized]:
        """Tokenize texts without special tokens, even if a text spells one out.

        Tokens that are part of one character (byte-level tokenizers) share that character's offsets.
        """
        encodings = self._encode(self._plain, texts)
        return [
            Tokenized(text=text, ids=tuple(encoding.ids), offsets=tuple(encoding.offsets))
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def encode_prompts(self, prompts: Sequence[str], *, needs_bos: bool = False) -> list[list[int]]:
        """Prompts as the model expects them: the special prefix that the tokenizer adds, then the text.

        Here special tokens that a prompt spells out (from a chat template) are special. ``needs_bos`` puts
        the begin-of-text id first if the tokenizer has one but does not add it. An empty prompt becomes the
        begin-of-text id, or the end-of-text id if there is none.
        """
        backend, prefix = self._for_prompts
        if needs_bos and self.bos_id is not None and self.bos_id not in prefix:
            prefix = [self.bos_id, *prefix]
        rows = []
        for encoding in self._encode(backend, prompts):
            ids = list(encoding.ids)
            if prefix and ids[: len(prefix)] == prefix:  # the template wrote the prefix itself
                ids = ids[len(prefix) :]
            row = prefix + ids
            if not row:
                start = self.eos_id if self.bos_id is None else self.bos_id
                if start is None:
                    raise InputError("the prompt is empty and the model has no begin-of-text token: give one")
                row = [start]
            rows.append(row)
        return rows

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - transformers' own types
        """Transformers' method: a conversation as a prompt or its ids."""
        return self.original.apply_chat_template(*args, **kwargs)

    @functools.cached_property
    def original(self) -> PreTrainedTokenizerBase:
        """Transformers' own tokenizer."""
        if self.open_original is None:
            raise ConfigError("a detector keeps no chat template: take the tokenizer of dewmark.load_host")
        return self.open_original()

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """Token ids to text, without special tokens, spaces unchanged."""
        if self.pieces is None:
            return self._decode(batch)
        return [b"".join(map(self.pieces.__getitem__, ids)).decode(errors="replace") for ids in batch]

    def _decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        kept = [[int(i) for i in ids if i not in self.special_ids and i < self.size] for ids in batch]
        texts: list[str] = self._plain.decode_batch(kept, skip_special_tokens=True)
        return texts

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json`` (readable by transformers) and the special ids beside it."""
        ids = {
            "identity": self.identity,
            "size": self.size,
            "special": sorted(self.special_ids),
            "pad": self.pad_id,
            "bos": self.bos_id,
            "eos": self.eos_id,
        }
        with atomic_write(folder / TOKENIZER_FILE) as stream:
            stream.write(self._json.encode())
        with atomic_write(folder / _IDS_FILE) as stream:
            stream.write(json.dumps(ids, indent=1).encode() + b"\n")

    @classmethod
    def load(cls, folder: Path) -> HFTokenizer:
        """Load files that `save` wrote (without transformers), or any folder of a transformers tokenizer."""
        if not (folder / _IDS_FILE).exists():
            from transformers import AutoTokenizer

            try:
                original: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                    folder, local_files_only=True
                )
            except Exception as error:  # a broken tokenizer.json raises a bare Exception
                reason = str(error).splitlines()[0][:200]
                raise ModelError(f"cannot load a tokenizer from {folder}: {reason}") from error
            return cls(original)
        tokenizer = cls.__new__(cls)
        try:
            ids = json.loads((folder / _IDS_FILE).read_text(encoding="utf-8"))
            backend = (folder / TOKENIZER_FILE).read_text(encoding="utf-8")
            ends = ids["pad"], ids["bos"], ids["eos"]
            tokenizer._setup(backend, ids["size"], ids["special"], ends)
            expected = ids["identity"]
        except Exception as error:  # the backend raises bare Exceptions
            raise ArtifactError(
                f"the tokenizer in {folder} is corrupt or incomplete: make another"
            ) from error
        if tokenizer.identity != expected:
            raise ArtifactError(
                f"the tokenizer in {folder} is not the one that was saved there: delete {folder.parent} and "
                "run again"
            )
        return tokenizer

    def _encode(self, backend: tokenizers.Tokenizer, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        try:
            encodings: list[tokenizers.Encoding] = backend.encode_batch(list(texts), add_special_tokens=False)
        except TypeError:
            for i, text in enumerate(texts):
                try:
                    str.encode(text, "utf-8")
                except (TypeError, UnicodeEncodeError):
                    raise InputError(f"text {i} is not valid Unicode text: decode it properly") from None
            raise
        return encodings

    @functools.cached_property
    def _for_prompts(self) -> tuple[tokenizers.Tokenizer, list[int]]:
        """A backend that knows special tokens, and the ids it puts before a text (mostly begin-of-text)."""
        from tokenizers import Tokenizer as Backend

        backend: tokenizers.Tokenizer = Backend.from_str(self._json)
        bare = backend.encode("a", add_special_tokens=False).ids
        full = backend.encode("a", add_special_tokens=True).ids
        starts = range(len(full) - len(bare) + 1)
        start = next((i for i in starts if full[i : i + len(bare)] == bare), 0)
        return backend, list(full[:start])


# Byte-level tokenizers write the bytes of a token as characters: printable ones as themselves.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTES = {byte: byte for byte in _PRINTABLE}
_BYTES |= {256 + i: byte for i, byte in enumerate(sorted(set(range(256)) - _BYTES.keys()))}


class Pieces(dict[int, bytes]):
    """The bytes of each id of a byte-level tokenizer, none of special and unknown ones."""

    def __init__(self, backend: tokenizers.Tokenizer, size: int, special: Collection[int]) -> None:
        self._backend, self._size, self._special = backend, size, special

    def __missing__(self, token: int) -> bytes:
        known = token < self._size and token not in self._special
        text = (known and self._backend.id_to_token(int(token))) or ""
        codes = [_BYTES.get(ord(each)) for each in text]
        piece = text.encode() if None in codes else bytes(codes)  # type: ignore[arg-type]
        self[int(token)] = piece
        return piece
