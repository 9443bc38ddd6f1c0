"""Stored detectors, and what a key and a text's words are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.golden.api import detecting, numbers, worlds, writing
from tests.golden.marks import PROMPTS, SEEDS, unmarked

from dewmark.detect import score_texts
from dewmark.detector import Detector
from dewmark.text.languages import guess_language
from dewmark.text.words import words

DETECTORS = Path(__file__).parent / "detectors"
"""Detectors that were exported when the record was made; they must stay readable."""

KEPT = {
    "lexicon": "lexicon (the default)",  # from before words had a form
    "lexicon-form": "lexicon (the default)",
    "tokens-window": "tokens bias, window white contexts",
    "kgw": "kgw",
}
_EXPORTED = (
    *dict.fromkeys(KEPT.values()),
    "tokens bias, composed raw contexts",
    "tokens bias, window raw contexts (the paper)",
    "tokens bias, context meaning only",
    "tokens bias, no meaning",
    "atw",
    "dipmark",
    "exp",
    "ksemstamp",
    "ewd",
    "morphmark",
    "pasa",
    "semstamp",
    "simkey",
    "sir",
    "sweet",
    "synthid",
    "ts",
    "unbiased",
    "unigram",
    "waterpool",
    "xsir",
)
_LANGUAGES = (
    "The old bridge over the river isn't open: it's 1,923 m long – they’ll re-open it at 3.14 pm.",
    "Die alte Brücke über den Fluß wurde 1923 gebaut, und die Stadt hat sie nie repariert.",
    "Le vieux pont qu’on a construit sur l'eau n'est plus là; aujourd'hui, c'est un chemin.",
    "El puente viejo sobre el río no está abierto, ¿verdad? ¡Nunca más!",
    "Старый мост через реку был построен давно, и никто его не чинил.",
    "古い橋が川の上にあります。人々は毎日そこを渡ります。",
    "河上的旧桥已经很久没有人走了。",
    "الجسر القديم فوق النهر لم يُفتح بعدُ.",
    "강 위의 오래된 다리는 아직 열리지 않았다.",
    "สะพานเก่าข้ามแม่น้ำยังไม่เปิด",
    "if (x != 42) { return a_b[i]; }  # ﬁne ½ Ⅷ I\u0307stanbul e\u0301t\u00e9 soft\u00adhyphen",
)


def _texts(world: worlds.World, mark: str) -> list[str]:
    """One text with the mark and one without."""
    (marked,) = writing.write(world.host(mark), world.bind(mark), PROMPTS[:1], seeds=SEEDS[:1], tokens=50)
    return [marked["text"], unmarked(0)]


def _judged(bound: Any, texts: list[str]) -> list[dict[str, Any]]:
    return [detecting.all_of(one) for one in score_texts(bound, texts, prompts=[PROMPTS[0], None])]


def exported(world: worlds.World) -> dict[str, Any]:
    """Detectors written to folders now: what lies in them, and what they say when read again."""
    found = {}
    for number, mark in enumerate(_EXPORTED):
        bound, folder = world.bind(mark), world.folder / f"detector {number}"
        Detector(bound).save(folder)
        found[mark] = detecting.stored_facts(folder)
        if not bound.needs.host_at_detection:
            found[mark]["detected"] = _judged(Detector.load(folder).scheme, _texts(world, mark))
    return found


def kept(world: worlds.World) -> dict[str, Any]:
    """The detectors in the repository, read by the code of now."""
    texts = {name: _texts(world, mark) for name, mark in KEPT.items()}
    return {name: _judged(Detector.load(DETECTORS / name).scheme, texts[name]) for name in KEPT}


def keep_detectors(world: worlds.World) -> None:
    """Export the detectors that the repository keeps; those that are there stay."""
    DETECTORS.mkdir(exist_ok=True)
    for name, mark in KEPT.items():
        if not (DETECTORS / name).exists():
            Detector(world.bind(mark)).save(DETECTORS / name)


def languages(world: worlds.World) -> dict[str, Any]:
    """Words in several scripts, and the languages guessed."""
    return {
        "words": [[[word.start, word.end, word.form] for word in words(text)] for text in _LANGUAGES],
        "languages": [guess_language(text) for text in _LANGUAGES],
    }


SECTIONS = {
    "detectors exported now": exported,
    "detectors kept in the repository": kept,
    "keys": lambda world: numbers.key_numbers(),
    "words and languages": languages,
}
