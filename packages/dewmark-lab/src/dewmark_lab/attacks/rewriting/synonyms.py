"""Word substitution in context, as in the DEW paper, with a masked language model.

Of a text's W words, ⌊r·W⌉ words with a WordNet entry are drawn and masked one after another, and each is
replaced by the model's most likely whole word (possibly itself).

`WordNet` reads the database of WordNet 3.x as Debian's ``wordnet-base`` installs it under /usr/share/wordnet:
``index.POS`` lists lemmas, and ``POS.exc`` irregular forms.
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from dewmark.errors import ConfigError, DewmarkError, ModelError
from dewmark.workspace import Progress
from dewmark_lab.attacks.base import Attack, run_option
from dewmark_lab.attacks.lexical import words

if TYPE_CHECKING:
    from dewmark.hosts.transformers.model_files import ModelSource

_TOKEN_CHARACTERS = 16  # at most, per token: text further away cannot fall into the window
_WORD_STARTS = ("Ġ", "▁")  # the space before a word in byte-level and SentencePiece vocabularies
_REMEDY = "set model=NAME to a folder or a hub id"


@dataclass(frozen=True)
class Synonym(Attack):
    """Replaces a share ``r`` of a text's words, drawn by the seed among those that WordNet knows.

    The masked language ``model`` sees ``window`` tokens around a gap; ``wordnet`` is the database folder.
    """

    name: ClassVar[str] = "synonym"
    summary: ClassVar[str] = "replaces a share r of the words, in context"
    r: Annotated[float, "in [0, 1]"] = 0.3
    model: str = "bert-large-uncased"
    window: Annotated[int, "at least 2"] = 256
    wordnet: str | None = None
    device: str = run_option("auto")
    batch_size: Annotated[int, "at least 1"] = run_option(32)

    def identity(self) -> dict[str, object]:
        """Model and WordNet count by content."""
        files = {"wordnet": self._lexicon.identity, "model": self._source.identity}
        return {"name": self.name, "r": self.r, "window": self.window, **files}

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        """Fill the first gap of every text, then the second, and so on: each sees those filled before."""
        known = self._lexicon.has_entry
        gapped = [GappedText(text, seed, self.r, known) for text, seed in zip(texts, seeds, strict=True)]
        steps = max(len(gaps.places) for gaps in gapped)
        for step in range(steps):
            progress("substituting words", step, steps)
            left = [gaps for gaps in gapped if step < len(gaps.places)]
            contexts = [gaps.around(gaps.places[step]) for gaps in left]
            found = self._masked_lm.fill(contexts, window=self.window, batch_size=self.batch_size)
            for gaps, word in zip(left, found, strict=True):
                gaps.put(gaps.places[step], word)
        progress("substituting words", steps, steps)
        return ["".join(gaps.pieces) for gaps in gapped]

    @functools.cached_property
    def _lexicon(self) -> WordNet:
        return WordNet.open(self.wordnet)

    @functools.cached_property
    def _source(self) -> ModelSource:
        return find_masked_lm(self.model)

    @functools.cached_property
    def _masked_lm(self) -> MaskedLM:
        return MaskedLM(self._source, device=self.device)


class GappedText:
    """A text split into pieces; those at ``places``, listed in filling order, are words to replace."""

    def __init__(self, text: str, seed: int, share: float, eligible: Callable[[str], bool]) -> None:
        found = words(text)
        cores = [(word.start(), *_core(word.group())) for word in found]
        known = [(start + at, core) for start, at, core in cores if core.isalpha() and eligible(core)]
        drawn = random.Random(seed).sample(known, min(round(share * len(found)), len(known)))
        self.pieces: list[str] = []
        at = 0
        numbers = {}
        for start, core in sorted(drawn):
            self.pieces += [text[at:start], core]
            numbers[start] = len(self.pieces) - 1
            at = start + len(core)
        self.pieces.append(text[at:])
        self.places = [numbers[start] for start, _ in drawn]

    def around(self, place: int) -> tuple[str, str]:
        """The current text before and after a place."""
        return "".join(self.pieces[:place]), "".join(self.pieces[place + 1 :])

    def put(self, place: int, word: str) -> None:
        """Replace the word at a place, keeping its capitalization."""
        self.pieces[place] = _cased(word, self.pieces[place])


def _cased(word: str, old: str) -> str:
    """A word capitalized like the one that it replaces."""
    if len(old) > 1 and old.isupper():
        return word.upper()
    return word[0].upper() + word[1:] if old[0].isupper() else word


def _core(word: str) -> tuple[int, str]:
    """Where a word's core starts, and the core: the word without surrounding punctuation."""
    letters = [i for i, character in enumerate(word) if character.isalnum()]
    return (letters[0], word[letters[0] : letters[-1] + 1]) if letters else (0, "")


def find_masked_lm(name: str) -> ModelSource:
    """The files of a masked language model: a folder or a hub id (``bert-…`` means google-bert/bert-…)."""
    from dewmark.hosts.transformers.model_files import resolve

    short = "/" not in name and not Path(name).is_dir()
    try:
        return resolve(f"google-bert/{name}" if short else name, weights=False)
    except DewmarkError as error:
        # drop the remedy after the colon: it suggests packaged hosts, none of which is a masked model
        reason = str(error).rpartition(": ")[0] or str(error)
        raise ModelError(f"no masked language model {name!r} ({reason}): {_REMEDY}") from error


class MaskedLM:
    """A masked language model, in float32 so that rounding does not change the most likely word."""

    def __init__(self, source: ModelSource, *, device: str = "auto") -> None:
        import torch
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        from dewmark.hosts.transformers.tokenizer import HFTokenizer
        from dewmark.models.hub import quiet_libraries

        chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        try:
            with quiet_libraries():
                tokenizer: Any = AutoTokenizer.from_pretrained(source.location, **source.options)
                model: Any = AutoModelForMaskedLM.from_pretrained(
                    source.location, dtype=torch.float32, **source.options
                )
                self.model = model.to(chosen).eval()
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, AssertionError) as error:
            first = str(error).strip().partition("\n")[0]
            raise ModelError(f"cannot load the model {source.name}: {first}; {_REMEDY}") from error
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
        """For each (left, right) context of ``window`` tokens, the most likely whole word between them."""
        found: list[str] = []
        for start in range(0, len(contexts), batch_size):
            found += self._best(self._rows(contexts[start : start + batch_size], window))
        return found

    def _rows(self, contexts: Sequence[tuple[str, str]], window: int) -> list[tuple[list[int], int]]:
        """Each context's token ids with the mask, and the mask's position."""
        room = window * _TOKEN_CHARACTERS
        sides = [side for left, right in contexts for side in (left[-room:].rstrip(), right[:room])]
        ids = [list(tokenized.ids) for tokenized in self.tokenizer.encode(sides)]
        rows = []
        for left, right in zip(ids[::2], ids[1::2], strict=True):
            # half of the window per side; what one side does not need goes to the other
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
    """Ids that stand for a whole word of letters, and their words."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    special = set(tokenizer.all_special_tokens)
    start = next((s for s in _WORD_STARTS if any(token.startswith(s) for token in vocabulary)), "")
    found = {
        index: token.removeprefix(start)
        for token, index in vocabulary.items()
        if token.startswith(start) and token.removeprefix(start).isalpha() and token not in special
    }
    if not found:
        raise ModelError(f"the tokenizer has no whole words to fill gaps with: {_REMEDY}")
    return found


_FOLDER = "/usr/share/wordnet"
_VARIABLE = "WNSEARCHDIR"  # as in WordNet's own programs

# By part of speech: an inflected form's ending and its replacement in the lemma (WordNet's morphology).
_ENDINGS = {
    "noun": (("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"),
             ("men", "man"), ("ies", "y")),
    "verb": (("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"),
             ("ing", "")),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}  # fmt: skip


@dataclass(frozen=True)
class WordNet:
    """The database in a folder; its files are read on first use."""

    folder: Path

    @classmethod
    def open(cls, folder: str | None = None) -> WordNet:
        """The database in a folder (default: ``$WNSEARCHDIR``, else Debian's), checked to be complete."""
        path = Path(folder or os.environ.get(_VARIABLE) or _FOLDER).expanduser()
        for part in _ENDINGS:
            if not (path / f"index.{part}").is_file():
                raise ModelError(
                    f"no WordNet at {path} (index.{part} is missing): install it with "
                    "'apt-get install wordnet-base', or set wordnet=FOLDER"
                )
        return cls(path)

    @functools.cached_property
    def identity(self) -> str:
        """A hash of the database."""
        sums = hashlib.sha256()
        for part in _ENDINGS:
            sums.update((self.folder / f"index.{part}").read_bytes())
        return sums.hexdigest()[:16]

    def has_entry(self, word: str) -> bool:
        """Whether a word or its lemma has an entry."""
        word = word.lower()
        for part, (lemmas, irregular) in self._words.items():
            if word in lemmas or irregular.get(word) in lemmas:
                return True
            endings = () if word in irregular else _ENDINGS[part]
            if any(word.endswith(end) and word.removesuffix(end) + new in lemmas for end, new in endings):
                return True
        return False

    @functools.cached_property
    def _words(self) -> dict[str, tuple[frozenset[str], dict[str, str]]]:
        """By part of speech: the lemmas, and irregular form to its first lemma."""
        return {
            part: (
                # the licence at the top is indented
                frozenset(line.partition(" ")[0] for line in _lines(self.folder / f"index.{part}")),
                {line.split()[0]: line.split()[1] for line in _lines(self.folder / f"{part}.exc")},
            )
            for part in _ENDINGS
        }


def _lines(file: Path) -> list[str]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [line for line in lines if line.strip() and not line.startswith(" ")]
