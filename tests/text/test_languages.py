"""Guesses on sentences outside the training data."""

from __future__ import annotations

import pytest

from dewmark.text.languages import guess_language

HELD_OUT = {
    "ar": ["سافرت أختي إلى الجنوب لتزور صديقتها القديمة.", "هل تعرف متى يفتح المتحف أبوابه؟"],
    "de": [
        "Die Katze der Nachbarn lag den ganzen Morgen auf unserer Treppe und wartete, dass jemand öffnet.",
        "Im Herbst sammeln wir Pilze, aber nur solche, die mein Großvater gekannt hat.",
        "Wer hat schon wieder die Schere nicht zurückgelegt?",
    ],
    "el": ["Το παλιό λιμάνι γεμίζει βάρκες κάθε καλοκαίρι."],
    "en": [
        "The neighbour's cat lay on our stairs all morning, waiting for somebody to open the door.",
        "Nobody had told the new baker that the oven ran twenty degrees too hot.",
        "If you take the earlier train, there is usually a seat by the window.",
    ],
    "es": [
        "El gato de los vecinos pasó toda la mañana en nuestra escalera esperando que alguien abriera.",
        "Mañana iremos al mercado a comprar tomates y un poco de queso.",
    ],
    "fr": [
        "Le chat des voisins est resté toute la matinée sur notre escalier à attendre qu'on lui ouvre.",
        "Nous avons retrouvé la lettre derrière l'armoire, encore fermée.",
    ],
    "he": ["הספרייה סגורה היום בגלל עבודות שיפוץ."],
    "it": [
        "Il gatto dei vicini è rimasto tutta la mattina sulle nostre scale ad aspettare qualcuno.",
        "Domani andiamo al mare, se il tempo non cambia ancora una volta.",
    ],
    "ja": ["隣の猫は朝からずっと階段で待っていた。", "このカメラは父からもらったものです。"],
    "ko": ["이웃집 고양이가 아침 내내 계단에 누워 있었다.", "내일은 친구와 산에 갈 생각이다."],
    "nl": [
        "De kat van de buren lag de hele ochtend op onze trap te wachten tot iemand de deur opendeed.",
        "Volgende week gaan we met de fiets naar het strand, als het niet regent.",
    ],
    "pl": [
        "Kot sąsiadów przez cały ranek leżał na naszych schodach i czekał, aż ktoś otworzy drzwi.",
        "Jutro pojedziemy nad jezioro, jeżeli nie będzie padać.",
    ],
    "pt": [
        "O gato dos vizinhos passou a manhã inteira na nossa escada à espera de que alguém abrisse.",
        "Amanhã vamos ao mercado comprar pão, queijo e algumas laranjas.",
    ],
    "ru": [
        "Соседская кошка всё утро лежала на нашей лестнице.",
        "Завтра мы поедем на дачу, если не будет дождя.",
    ],
    "th": ["แมวของเพื่อนบ้านนอนอยู่บนบันไดของเราตลอดทั้งเช้า"],
    "tr": [
        "Komşunun kedisi bütün sabah merdivenimizde yatıp birinin kapıyı açmasını bekledi.",
        "Yarın hava güzel olursa çocuklarla göl kıyısına gideceğiz.",
    ],
    "zh": ["邻居的猫整个早上都躺在我们的楼梯上等人开门。", "明天如果不下雨，我们就去山上走走。"],
}


@pytest.mark.parametrize("language", HELD_OUT)
def test_sentences_of_each_language(language: str) -> None:
    assert [guess_language(text) for text in HELD_OUT[language]] == [language] * len(HELD_OUT[language])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12 + 30 = 42 !?",
        "Oh!",
        "xqz wvrt plok nnbb tyyqx zzkjh qwrt plmk vbxc",
        "Naapurin kissa on maannut portaillamme koko aamun ja odottanut, että joku avaisi oven.",  # Finnish
        "A szomszéd macskája egész reggel a lépcsőnkön feküdt, és várta, hogy valaki kinyissa.",  # Hungarian
        "Con mèo của hàng xóm nằm trên bậc thềm nhà tôi suốt buổi sáng.",  # Vietnamese
        "Сусідський кіт цілий ранок лежав на наших сходах і чекав, коли його впустять.",  # Ukrainian
        "گربهٔ همسایه تمام صبح روی پله‌های ما خوابیده بود.",  # Persian
        "Das ist gut. Это хорошо. これはいい。 هذا جيد",
    ],
)
def test_unsure(text: str) -> None:
    assert guess_language(text) == "und"


def test_the_main_script_decides() -> None:
    assert guess_language("Он сказал: «good morning» и ушёл, не дожидаясь ответа.") == "ru"
    assert guess_language("这部电影的日文名字是「の」,很短但是很好记住。") == "zh"


def test_a_long_text_costs_no_more_than_its_beginning() -> None:
    text = HELD_OUT["fr"][0] * 20
    assert guess_language(text + HELD_OUT["ru"][0] * 10_000) == "fr"
