"""What a rewrite keeps: code, quotations, links, numbers, names, terms that the user lists, and the meaning.

Everything is found by its spelling in the text as it is given, Markdown and HTML included. Where a rule
cannot tell, it protects: an untouched word costs a little strength, a changed quotation costs trust.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dewmark_rewrite.sentences import TextSpan, tokens

if TYPE_CHECKING:
    from dewmark.encoders.base import Encoder

_PATTERNS = (
    r"\A---\n.*?\n---\n",  # front matter
    r"^(?P<fence>`{3,}|~{3,})[^\n]*\n.*?(?:^(?P=fence)|\Z)",
    r"^(?: {4}|\t)[^\n]*$",
    r"`[^`\n]+`",
    r"^[ \t]*>[^\n]*$",
    r"\$\$.*?\$\$|\$[^$\n]+\$",
    r"\]\([^)\n]*\)|\]\[[^\]\n]*\]|^\[[^\]\n]+\]:[^\n]*$",
    r"<!--.*?-->",
    r"<(?P<tag>script|style|pre|code|kbd|samp|q|blockquote|textarea|title)\b[^>]*>.*?</(?P=tag)\s*>",
    r"</?[A-Za-z][^<>\n]*>",
    r"&(?:#\w+|\w+);",
    r"\b(?:https?|ftp|file)://\S+|\bwww\.\S+|\bmailto:\S+",
    r"\b[\w.+-]+@[\w-]+\.[\w.-]+",
    r"\b[\w-]+(?:\.[\w-]+)*\.(?:com|org|net|edu|gov|io|co|uk|de|fr|info|py|js|txt|html?|pdf)\b[\w/?=&.-]*",
    r"[@#][\w-]+",
    r"“[^”]{1,2000}”|„[^“”]{1,2000}[“”]|«[^»]{1,2000}»|‘[^’\n]{2,500}’(?!\w)",
    r"\"[^\"]{1,2000}\"",
    r"(?<!\w)'[^'\n]{2,300}'(?!\w)",
    r"\S*[_\\/|=<>{}]\S*",
    r"\w*[a-z][A-Z]\w*",  # camelCase
)
_PROTECTED = re.compile("|".join(f"(?:{pattern})" for pattern in _PATTERNS), re.MULTILINE | re.DOTALL)
_NUMBERS = re.compile(r"\S*\d\S*")


def protected_spans(text: str, *, terms: Sequence[str] = (), numbers: bool = True) -> list[TextSpan]:
    """The places of a text that stay as they are, in order; ``terms`` are whole words in any case.

    Without ``numbers`` they are left out, for engines that compare the numbers of whole sentences.
    """
    found = [TextSpan(*match.span()) for match in _PROTECTED.finditer(text) if match.end() > match.start()]
    if numbers:
        found += [TextSpan(*match.span()) for match in _NUMBERS.finditer(text)]
    if terms:
        listed = "|".join(re.escape(term) for term in sorted(terms, key=len, reverse=True))
        found += [
            TextSpan(*match.span())
            for match in re.finditer(rf"(?<!\w)(?:{listed})(?!\w)", text, re.IGNORECASE)
        ]
    return sorted(found)


def is_name(token: str, *, first: bool) -> bool:
    """Whether a token is a name or an acronym by its spelling; ``first`` says that it begins a sentence."""
    letters = [c for c in token if c.isalpha()]
    if len(letters) > 1 and all(c.isupper() for c in letters):
        return True
    return bool(letters) and letters[0].isupper() and not first


_NEGATION = re.compile(
    r"\b(?:not|no|never|none|nobody|nothing|neither|nor|without|cannot|hardly|barely|scarcely|rarely|seldom)\b"
    r"|n['’]t\b",
    re.IGNORECASE,
)
_FIGURE = re.compile(r"\d+(?:[.,:/]\d+)*")


def same_facts(old: str, new: str) -> bool:
    """Whether two sentences have the same numbers, names and negations."""
    return (
        _FIGURE.findall(old) == _FIGURE.findall(new)
        and _names(old) == _names(new)
        and len(_NEGATION.findall(old)) == len(_NEGATION.findall(new))
    )


def _names(sentence: str) -> Counter[str]:
    found = [sentence[span.start : span.end] for span in tokens(sentence, TextSpan(0, len(sentence)))]
    return Counter(token for i, token in enumerate(found) if is_name(token, first=i == 0))


@dataclass(frozen=True)
class MeaningCheck:
    """Holds sentences to their facts, and to this cosine ``similarity`` of their vectors by an encoder."""

    encoder: Encoder | None
    similarity: float

    def keeps(self, old: str, new: str) -> bool:
        """Whether ``new`` may replace the sentence ``old``."""
        if not same_facts(old, new) or self.encoder is None:
            return same_facts(old, new)
        a, b = np.asarray(self.encoder.encode([old, new]), dtype=np.float64)
        lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
        return float(a @ b) >= self.similarity * max(lengths, 1e-12)
