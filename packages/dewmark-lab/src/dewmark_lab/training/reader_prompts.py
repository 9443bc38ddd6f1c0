"""The requests that hosts answer to train a reader of words: forms of request, each about a topic.

Topics are words of the package's own ordinary texts. None of these requests is among those that experiments
measure on.
"""

from __future__ import annotations

import itertools
import re

import numpy as np

from dewmark.prompts import package_file

FORMS = {
    "en": (
        "Explain what a beginner should know about {}.",
        "Write a short story in which {} matters.",
        "Give me advice about {}.",
        "What are the advantages and disadvantages of {}?",
        "Write an e-mail to a colleague about {}.",
        "Describe {} in two paragraphs.",
        "How has {} changed over time?",
        "Plan a week around {}.",
    ),
    "de": (
        "Erkläre einem Anfänger, was er über {} wissen sollte.",
        "Schreibe eine kurze Geschichte über {}.",
        "Was spricht für und was gegen {}?",
        "Beschreibe {} in zwei Absätzen.",
    ),
    "fr": (
        "Explique à un débutant ce qu'il faut savoir sur « {} ».",
        "Écris une courte histoire sur le thème « {} ».",
        "Quels sont les avantages et les inconvénients de « {} » ?",
        "Décris « {} » en deux paragraphes.",
    ),
    "es": (
        "Explica a un principiante lo que debe saber sobre «{}».",
        "Escribe un cuento breve sobre «{}».",
        "¿Qué ventajas e inconvenientes tiene «{}»?",
        "Describe «{}» en dos párrafos.",
    ),
    "pt": (
        "Explique a um principiante o que deve saber sobre «{}».",
        "Escreva um conto curto sobre «{}».",
        "Quais são as vantagens e desvantagens de «{}»?",
        "Descreva «{}» em dois parágrafos.",
    ),
    "it": (
        "Spiega a un principiante che cosa deve sapere su «{}».",
        "Scrivi un breve racconto su «{}».",
        "Quali sono i vantaggi e gli svantaggi di «{}»?",
        "Descrivi «{}» in due paragrafi.",
    ),
}
_SHORTEST = 6  # letters of a topic


def reader_requests(language: str) -> list[str]:
    """All requests in a language, mixed but always in the same order."""
    files = [package_file(f"ordinary/{language}.txt")]
    if language == "en":
        files += sorted(package_file("registers").iterdir(), key=lambda file: file.name)
    found = re.findall(r"[^\W\d_]+", " ".join(file.read_text(encoding="utf-8") for file in files))
    topics = dict.fromkeys(word for word in found if len(word) >= _SHORTEST)
    every = [form.format(topic) for form, topic in itertools.product(FORMS[language], topics)]
    return [every[i] for i in np.random.default_rng(0).permutation(len(every))]
