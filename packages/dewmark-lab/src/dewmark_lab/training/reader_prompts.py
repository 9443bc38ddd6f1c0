"""The requests that hosts answer to train a reader of words: forms of request, each about a topic.

Topics are words of the package's own ordinary texts. None of these requests is among those that experiments
measure on.
"""

from __future__ import annotations

import itertools

import numpy as np

from dewmark.prompts import package_file
from dewmark.text.words import words

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
    "nl": (
        "Leg een beginner uit wat hij over {} moet weten.",
        "Schrijf een kort verhaal over {}.",
        "Wat zijn de voor- en nadelen van {}?",
        "Beschrijf {} in twee alinea's.",
    ),
    "pl": (
        "Wyjaśnij początkującemu, co powinien wiedzieć na temat „{}”.",
        "Napisz krótkie opowiadanie na temat „{}”.",
        "Jakie są zalety i wady tego, co nazywamy „{}”?",
        "Opisz w dwóch akapitach, czym jest „{}”.",
    ),
    "ru": (
        "Объясни новичку, что нужно знать о теме «{}».",
        "Напиши короткий рассказ на тему «{}».",
        "Какие плюсы и минусы у темы «{}»?",
        "Опиши тему «{}» в двух абзацах.",
    ),
    "tr": (
        "Yeni başlayan birine “{}” hakkında bilmesi gerekenleri açıkla.",
        "“{}” hakkında kısa bir öykü yaz.",
        "“{}” konusunun olumlu ve olumsuz yanları nelerdir?",
        "“{}” konusunu iki paragrafta anlat.",
    ),
    "ar": (
        "اشرح لمبتدئ ما يجب أن يعرفه عن «{}».",
        "اكتب قصة قصيرة عن «{}».",
        "ما مزايا وعيوب «{}»؟",
        "صف «{}» في فقرتين.",
    ),
    "zh": (
        "请向初学者解释关于“{}”应该知道什么。",
        "请写一个关于“{}”的短故事。",
        "“{}”有哪些优点和缺点？",
        "请用两段话描述“{}”。",
    ),
    "ja": (
        "「{}」について初心者が知っておくべきことを説明してください。",
        "「{}」をテーマに短い物語を書いてください。",
        "「{}」の長所と短所は何ですか。",
        "「{}」を二つの段落で説明してください。",
    ),
    "ko": (
        "초보자가 '{}'에 대해 알아야 할 것을 설명해 주세요.",
        "'{}'에 관한 짧은 이야기를 써 주세요.",
        "'{}'의 장점과 단점은 무엇인가요?",
        "'{}'을(를) 두 문단으로 설명해 주세요.",
    ),
}
_SHORTEST = {"zh": 2, "ja": 2, "ko": 2, "ar": 4}  # letters of a topic; 6 in other languages


def reader_requests(language: str) -> list[str]:
    """All requests in a language, mixed but always in the same order."""
    files = [package_file(f"ordinary/{language}.txt")]
    if language == "en":
        files += sorted(package_file("registers").iterdir(), key=lambda file: file.name)
    text = " ".join(file.read_text(encoding="utf-8") for file in files)
    shortest = _SHORTEST.get(language, 6)
    found = (text[word.start : word.end] for word in words(text))
    topics = dict.fromkeys(word for word in found if len(word) >= shortest and word.isalpha())
    every = [form.format(topic) for form, topic in itertools.product(FORMS[language], topics)]
    return [every[i] for i in np.random.default_rng(0).permutation(len(every))]
