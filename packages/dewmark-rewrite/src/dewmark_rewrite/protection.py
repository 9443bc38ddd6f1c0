"""What a rewrite never touches: code, quotations, links, numbers, names and terms that the user lists.

Everything is found by its spelling in the text as it is given, Markdown and HTML included. Where a rule
cannot tell, it protects: an untouched word costs a little strength, a changed quotation costs trust.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dewmark_rewrite.sentences import Span

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


def protected_spans(text: str, *, terms: Sequence[str] = (), numbers: bool = True) -> list[Span]:
    """The places of a text that stay as they are, in order; ``terms`` are whole words in any case.

    Without ``numbers`` they are left out, for engines that compare the numbers of whole sentences.
    """
    found = [Span(*match.span()) for match in _PROTECTED.finditer(text) if match.end() > match.start()]
    if numbers:
        found += [Span(*match.span()) for match in _NUMBERS.finditer(text)]
    if terms:
        listed = "|".join(re.escape(term) for term in sorted(terms, key=len, reverse=True))
        found += [
            Span(*match.span()) for match in re.finditer(rf"(?<!\w)(?:{listed})(?!\w)", text, re.IGNORECASE)
        ]
    return sorted(found)


def is_name(token: str, *, first: bool) -> bool:
    """Whether a token is a name or an acronym by its spelling; ``first`` says that it begins a sentence."""
    letters = [c for c in token if c.isalpha()]
    if len(letters) > 1 and all(c.isupper() for c in letters):
        return True
    return bool(letters) and letters[0].isupper() and not first
