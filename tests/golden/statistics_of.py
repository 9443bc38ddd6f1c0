"""Numbers that no text is written for: keys, words, audits, retention, calibration, evaluation, passages."""

from __future__ import annotations

import random
from typing import Any

from tests.golden.api import detecting, numbers, worlds, writing
from tests.golden.marks import PROMPTS, SEEDS, unmarked

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
_JUDGED = ("lexicon (the default)", "tokens bias, window raw contexts (the paper)", "kgw")
_LOCATED = (
    "tokens bias, window raw contexts (the paper)",
    "kgw",
    "exp",
    "synthid",
    "unigram",
)
_RETAINED = ("tokens bias, no meaning", "kgw")


def keys(world: worlds.World) -> dict[str, Any]:
    """All that is drawn from one key."""
    return numbers.key_numbers()


def languages(world: worlds.World) -> dict[str, Any]:
    """Words in several scripts, and the languages guessed."""
    return {
        "words": [numbers.words_of(text) for text in _LANGUAGES],
        "languages": [numbers.language_of(text) for text in _LANGUAGES],
    }


def audits(world: worlds.World) -> dict[str, Any]:
    """Audits of sixty unmarked texts of many lengths, in two groups."""
    texts = [unmarked(i, 30 + 5 * (i % 17)) for i in range(60)]
    groups = ["one" if i % 2 else "two" for i in range(60)]
    found = {}
    for mark in _JUDGED:
        detections = detecting.detect(world.bind(mark), texts)
        found[mark] = {
            "p": [one.p_value for one in detections],
            "audit": numbers.audit_numbers(detections, groups),
        }
    return found


def calibrations(world: worlds.World) -> dict[str, Any]:
    """Ranks among thirty negatives, one of them too short."""
    found = {}
    for mark in _JUDGED:
        bound = world.bind(mark)
        texts = [unmarked(i, 70 if i else 4) for i in range(31)]
        negatives = detecting.detect(bound, texts)
        (marked,) = writing.write(world.host(mark), bound, PROMPTS[:1], seeds=SEEDS[:1], tokens=40)
        detections = detecting.detect(bound, [marked["text"], unmarked(100)])
        folder = world.folder / f"calibration {len(list(world.folder.glob('calibration*')))}"
        folder.mkdir()
        found[mark] = numbers.calibration_numbers(negatives, detections, folder)
    return found


def retentions(world: worlds.World) -> dict[str, Any]:
    """What rewrites keep, where every fourth word is another."""
    pairs = []
    for i in range(8):
        words, chance = unmarked(200 + i).split(), random.Random(i)
        rewritten = [word if chance.random() < 0.75 else chance.choice(words) for word in words]
        pairs.append((" " + " ".join(words), " " + " ".join(rewritten)))
    return {mark: numbers.retention_numbers(world.bind(mark), pairs) for mark in _RETAINED}


def located(world: worlds.World) -> dict[str, Any]:
    """Passages of a text that is unmarked, marked, unmarked, marked; and of one that is unmarked."""
    found = {}
    for mark in _LOCATED:
        bound = world.bind(mark)
        first, second = writing.write(world.host(mark), bound, PROMPTS[:2], seeds=SEEDS[:2], tokens=70)
        mixed = unmarked(300) + first["text"] + unmarked(301) + second["text"]
        found[mark] = {
            "mixed": detecting.passages(bound, mixed),
            "unmarked": detecting.passages(bound, unmarked(302, 120)),
        }
    return found


def protocol(world: worlds.World) -> dict[str, Any]:
    """The protocol of evaluation, corrections for many tests, and power, on imaginary scores."""
    return {
        "evaluation": numbers.evaluation_numbers(),
        "many tests": numbers.multiple_numbers([0.001, 0.2, 0.03, 0.0004, 0.9, 0.03]),
        "power": numbers.power_numbers(),
    }


def hosts(world: worlds.World) -> dict[str, Any]:
    """Unmarked texts, greedy and without repeated n-grams, and what the host thinks of them."""
    host = world.host("kgw")
    plain = writing.write(host, None, PROMPTS, seeds=SEEDS, tokens=30)
    return {
        "unmarked": plain,
        "greedy, no 3-gram twice": writing.write(
            host, None, PROMPTS, seeds=SEEDS, tokens=30, temperature=0.0, no_repeat_ngram=3
        ),
        "marked, no 2-gram twice": writing.write(
            host, world.bind("lexicon (the default)"), PROMPTS, seeds=SEEDS, tokens=30, no_repeat_ngram=2
        ),
        "one by one": writing.write(host, world.bind("kgw"), PROMPTS, seeds=SEEDS, tokens=12, batch_size=1),
        "log-likelihoods": writing.likelihoods(host, PROMPTS, [one["text"] for one in plain]),
    }


def attacks(world: worlds.World) -> dict[str, Any]:
    """What attacks that need no model make of three texts."""
    texts, seeds = [unmarked(400 + i, 40) for i in range(3)], [1, 2, 3]
    return {
        "a third of the words deleted": writing.attacked("delete", texts, seeds, r=0.3),
        "half of the words deleted": writing.attacked("delete", texts, seeds, r=0.5),
    }


SECTIONS = {
    "keys": keys,
    "words and languages": languages,
    "audits": audits,
    "calibrations": calibrations,
    "retention": retentions,
    "passages": located,
    "protocol": protocol,
    "hosts": hosts,
    "attacks": attacks,
}
