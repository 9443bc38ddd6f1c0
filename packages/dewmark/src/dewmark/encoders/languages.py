"""The languages that encoders know, by ISO 639 code.

An encoder's name is enough, so that a stored detector, which may not need the encoder itself, knows them too.
"""

from __future__ import annotations

import re

from dewmark.registry import ENCODERS

_ENGLISH = "en"
# As their makers list them. XLM-RoBERTa's languages are those that e5 starts from.
_USE_M3 = "ar de en es fr it ja ko nl pl pt ru th tr zh"
_SBERT = (
    "ar bg ca cs da de el en es et fa fi fr gl gu he hi hr hu hy id it ja ka ko ku lt lv mk mn mr ms my nl "
    "no pl pt ro ru sk sl sq sr sv th tr uk ur vi zh"
)
_XLM_R = (
    "af am ar as az be bg bn br bs ca cs cy da de el en eo es et eu fa fi fr fy ga gd gl gu ha he hi hr hu "
    "hy id is it ja jv ka kk km kn ko ku ky la lo lt lv mg mk ml mn mr ms my ne nl no om or pa pl ps pt ro "
    "ru sa sd si sk sl so sq sr su sv sw ta te th tl tr ug uk ur uz vi xh yi zh"
)
_PACKAGED = {"use-m3": _USE_M3, "minilm": _ENGLISH}
_FAMILIES = (
    (re.compile(r"paraphrase-multilingual-", re.IGNORECASE), _SBERT),
    (re.compile(r"multilingual-e5-", re.IGNORECASE), _XLM_R),
    (re.compile(r"/all-(?:minilm|mpnet|distilroberta)-", re.IGNORECASE), _ENGLISH),
)


def encoder_languages(name: str) -> frozenset[str] | None:
    """The languages of an encoder that `dewmark.encoders.load_encoder` finds by this name; None if unknown.

    A registered class declares them as its attribute ``languages``.
    """
    if name in _PACKAGED:
        return _codes(_PACKAGED[name])
    if name in ENCODERS:
        return getattr(ENCODERS[name], "languages", None)
    return next((_codes(languages) for family, languages in _FAMILIES if family.search(name)), None)


def _codes(languages: str) -> frozenset[str]:
    return frozenset(languages.split())
