"""The language of a text, and which languages a detector judges."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from py3langid.langid import MODEL_FILE, LanguageIdentifier

import dewmark
from dewmark.detect import score_text
from dewmark.dew.paper.scheme import DewPaper
from dewmark.encoders.base import encoder_languages
from dewmark.text.languages import _SAME, LanguagePolicy, TextLanguage, _load, guess_language
from dewmark.types import Detection, Verdict
from dewmark.workspace import Tokenized

HELD_OUT = {
    "ar": "سافرت أختي إلى الجنوب لتزور صديقتها القديمة.",
    "de": "Die Katze der Nachbarn lag den ganzen Morgen auf unserer Treppe und wartete, dass jemand öffnet.",
    "el": "Το παλιό λιμάνι γεμίζει βάρκες κάθε καλοκαίρι.",
    "en": "The neighbour's cat lay on our stairs all morning, waiting for somebody to open the door.",
    "es": "El gato de los vecinos pasó toda la mañana en nuestra escalera esperando que alguien abriera.",
    "fr": "Le chat des voisins est resté toute la matinée sur notre escalier à attendre qu'on lui ouvre.",
    "he": "הספרייה סגורה היום בגלל עבודות שיפוץ.",
    "it": "Il gatto dei vicini è rimasto tutta la mattina sulle nostre scale ad aspettare qualcuno.",
    "ja": "隣の猫は朝からずっと階段で待っていた。",
    "ko": "이웃집 고양이가 아침 내내 계단에 누워 있었다.",
    "nl": "De kat van de buren lag de hele ochtend op onze trap te wachten tot iemand de deur opendeed.",
    "pl": "Kot sąsiadów przez cały ranek leżał na naszych schodach i czekał, aż ktoś otworzy drzwi.",
    "pt": "O gato dos vizinhos passou a manhã inteira na nossa escada à espera de que alguém abrisse.",
    "ru": "Соседская кошка всё утро лежала на нашей лестнице.",
    "th": "แมวของเพื่อนบ้านนอนอยู่บนบันไดของเราตลอดทั้งเช้า",
    "tr": "Komşunun kedisi bütün sabah merdivenimizde yatıp birinin kapıyı açmasını bekledi.",
    "zh": "邻居的猫整个早上都躺在我们的楼梯上等人开门。",
}


@pytest.mark.parametrize("language", HELD_OUT)
def test_sentences_of_each_language(language: str) -> None:
    assert guess_language(HELD_OUT[language]) == language


UNKNOWN = {  # not among the default encoder's languages
    "cy": "Mae'r gath drws nesaf wedi bod yn gorwedd ar ein grisiau ni drwy'r bore yn aros i rywun agor.",
    "fa": "گربهٔ همسایه تمام صبح روی پله‌های ما خوابیده بود.",
    "fi": "Naapurin kissa on maannut portaillamme koko aamun ja odottanut, että joku avaisi oven.",
    "hi": "पड़ोसी की बिल्ली पूरी सुबह हमारी सीढ़ियों पर लेटी रही और दरवाज़ा खुलने का इंतज़ार करती रही।",
    "hu": "A szomszéd macskája egész reggel a lépcsőnkön feküdt, és várta, hogy valaki kinyissa.",
    "sw": "Paka wa jirani alilala kwenye ngazi zetu asubuhi yote akisubiri mtu afungue mlango wa nyumba.",
    "uk": "Сусідський кіт цілий ранок лежав на наших сходах і чекав, коли його впустять.",
    "vi": "Con mèo của hàng xóm nằm trên bậc thềm nhà tôi suốt buổi sáng.",
}


@pytest.mark.parametrize("language", UNKNOWN)
def test_languages_that_the_default_encoder_does_not_know(language: str) -> None:
    assert guess_language(UNKNOWN[language]) == language


@pytest.mark.parametrize("text", ["", "12 + 30 = 42 !?", "Oh!", "x = 1; y += 2; z[3] = f(x, y) // 4"])
def test_too_little_language(text: str) -> None:
    assert guess_language(text) == "und"


def test_the_main_script_decides() -> None:
    assert guess_language("Он сказал: «good morning» и ушёл, не дожидаясь ответа.") == "ru"
    assert guess_language("这部电影的日文名字是「の」,很短但是很好记住。" * 2) == "zh"


def test_a_long_text_is_sampled_evenly_and_in_constant_time() -> None:
    french, russian = HELD_OUT["fr"], HELD_OUT["ru"]
    assert guess_language(french * 20 + russian * 10_000) == "ru"


def given(*texts: str) -> list[Tokenized]:
    return [Tokenized(text, (), ()) for text in texts]


class TestPolicy:
    USE = LanguagePolicy(known=encoder_languages("use-m3"))

    def test_unknown_languages_are_refused(self) -> None:
        for code, text in UNKNOWN.items():
            assert self.USE.read(given(text)) == [TextLanguage(code, known=False, refused=True)]

    def test_known_languages_are_judged(self) -> None:
        for code in sorted(encoder_languages("use-m3") or ()):
            (found,) = self.USE.read(given(HELD_OUT[code]))
            assert found == TextLanguage(code, known=True, refused=False)

    def test_an_audit_or_a_reliable_scheme_lets_them_through(self) -> None:
        welsh = UNKNOWN["cy"]
        audited = LanguagePolicy(known=self.USE.known, audited=frozenset({"cy"}))
        assert audited.read(given(welsh)) == [TextLanguage("cy", known=False, refused=False)]
        assert audited.read(given(UNKNOWN["fi"]))[0].refused
        every = LanguagePolicy(known=self.USE.known, every=True)
        assert every.read(given(welsh)) == [TextLanguage("cy", known=False, refused=False)]

    def test_a_text_that_does_not_say_is_not_refused(self) -> None:
        assert self.USE.read(given("Oh!")) == [TextLanguage()]

    def test_schemes_without_languages_read_nothing(self, monkeypatch) -> None:
        monkeypatch.setattr("dewmark.text.languages._model", lambda: pytest.fail("a text was read"))
        assert LanguagePolicy().read(given(UNKNOWN["cy"])) == [TextLanguage()]

    def test_the_verdict(self) -> None:
        made = Detection(
            verdict=Verdict.TOO_SHORT,
            p_value=0.001,
            z=3.1,
            score=0.2,
            effective_length=9.0,
            tokens_scored=200,
            test="key",
            fpr=0.01,
            scheme="dew",
            key_fingerprint="0" * 16,
        )
        hindi, short = (found.applied(made) for found in self.USE.read(given(UNKNOWN["hi"], "Oh!")))
        assert hindi.verdict is Verdict.UNSUPPORTED_LANGUAGE  # not "give more of the text"
        assert (hindi.language, hindi.language_known, hindi.p_value) == ("hi", False, 0.001)
        assert short.verdict is Verdict.TOO_SHORT


def test_the_default_reads_the_languages_of_its_lexicon() -> None:
    default = dewmark.load_scheme(dewmark.Key(bytes(32)), host=None)
    known = {"ar", "bg", "cs", "da", "de", "el", "en", "es", "fi", "fr", "hi", "hr", "hu", "id", "it", "ja"}
    known |= {"ko", "lt", "lv", "nl", "no", "pl", "pt", "ro", "ru", "sk", "sl", "sv", "th", "tr", "uk"}
    known |= {"vi", "zh"}
    assert default.languages.known == default.scheme.languages == known
    for code, sentence in HELD_OUT.items():
        found = score_text(default, "\n".join([sentence] * 3))
        assert found.language_known is (code in known), code
        assert found.verdict.conclusive or found.verdict is (
            Verdict.TOO_SHORT if code in known else Verdict.UNSUPPORTED_LANGUAGE
        ), code
    paper = DewPaper()
    assert paper.languages == encoder_languages("use-m3")


def test_a_text_that_was_cut_into_words_is_not_cleaned_again(monkeypatch) -> None:
    default = dewmark.load_scheme(dewmark.Key(bytes(32)), host=None)
    monkeypatch.setattr("dewmark.text.languages.clean", lambda _: pytest.fail("a text was cleaned again"))
    for text in (f"<p>{HELD_OUT['de']}</p>", f"{HELD_OUT['de']} " * 40):
        assert score_text(default, text).language == "de"


@pytest.mark.parametrize("text", ["", "a", "ABC", "É", "日本語", *HELD_OUT.values()])
def test_the_model_agrees_with_its_own_library(text: str) -> None:
    model = _load()
    theirs: dict[str, float] = {}
    for code, probability in _library().rank(text):
        merged = _SAME.get(code, code)
        theirs[merged] = theirs.get(merged, 0.0) + probability
    found = dict(zip(model.labels, model.probabilities([text])[0].tolist(), strict=True))
    assert found == pytest.approx(theirs, abs=1e-4)


def test_texts_read_together_have_the_languages_of_each_alone() -> None:
    """Also where a text is empty, or so short that the automaton would still remember the one before."""
    model = _load()
    texts = ["", "a", *HELD_OUT.values(), "É", "the", "日本語"]
    together = model.probabilities(texts)
    np.testing.assert_array_equal(together, np.concatenate([model.probabilities([text]) for text in texts]))


@functools.cache
def _library() -> LanguageIdentifier:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@pytest.mark.parametrize(
    ("encoder", "knows", "lacks"),
    [
        ("use-m3", "tr", "cy"),
        ("minilm", "en", "de"),
        ("sentence-transformers/paraphrase-multilingual-mpnet-base-v2", "fi", "cy"),
        ("intfloat/multilingual-e5-base", "cy", "kab"),
        ("sentence-transformers/all-mpnet-base-v2", "en", "de"),
    ],
)
def test_encoders_declare_their_languages(encoder: str, knows: str, lacks: str) -> None:
    languages = encoder_languages(encoder)
    assert languages is not None
    assert knows in languages
    assert lacks not in languages


def test_a_cache_that_cannot_be_written_changes_no_language(monkeypatch, tmp_path: Path) -> None:
    texts, expected = list(HELD_OUT.values()), _load()
    (tmp_path / "file").write_text("not a folder", "utf-8")
    monkeypatch.setattr("dewmark.text.languages.cache_dir", lambda: tmp_path / "file")
    found = _load.__wrapped__()
    assert found.labels == expected.labels
    np.testing.assert_array_equal(found.probabilities(texts), expected.probabilities(texts))


def test_the_default_judges_texts_of_languages_that_it_does_not_know() -> None:
    """Its false alarms do not depend on the language; without enough listed words there is no verdict."""
    default = dewmark.load_scheme(dewmark.Key(bytes(32)), host=None)
    assert default.languages.read(given(UNKNOWN["cy"])) == [TextLanguage("cy", known=False, refused=False)]
    paper = LanguagePolicy(known=DewPaper().languages, every=DewPaper().language_free)
    assert paper.read(given(UNKNOWN["cy"])) == [TextLanguage("cy", known=False, refused=True)]
