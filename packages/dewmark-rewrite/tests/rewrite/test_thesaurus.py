"""Candidates of single words: inflected alike, and never inside what is protected."""

from __future__ import annotations

import pytest

from dewmark.errors import InputError
from dewmark_rewrite.protection import protected_spans
from dewmark_rewrite.sentences import TextSpan, sentences
from dewmark_rewrite.thesaurus import Candidate, Thesaurus, apply


def offered(text: str, *, terms: tuple[str, ...] = ()) -> set[tuple[str, str]]:
    found = Thesaurus.load().candidates(text, protected=protected_spans(text, terms=terms))
    return {(each.old, each.new) for each in found}


class TestInflection:
    @pytest.mark.parametrize(
        ("text", "pair"),
        [
            ("They chose the second plan without delay.", ("chose", "selected")),
            ("The engineers constructed a wooden bridge.", ("constructed", "erected")),
            ("Both firms are buying land near the coast.", ("buying", "purchasing")),
            ("The mistakes were found by the editor.", ("mistakes", "errors")),
        ],
    )
    def test_a_synonym_has_the_inflection_of_its_word(self, text, pair):
        assert pair in offered(text)

    def test_the_article_must_fit(self):
        assert ("huge", "enormous") not in offered("It was a huge surprise for the town.")
        assert ("huge", "massive") in offered("It was a huge surprise for the town.")

    def test_a_regular_past_form_never_becomes_an_irregular_participle(self):
        assert not {new for old, new in offered("The meeting started at noon.") if old == "started"} & {
            "begun"
        }

    def test_a_mass_noun_takes_no_article_and_no_plural(self):
        assert ("device", "gear") not in offered("He bought a small device for the kitchen.")
        assert not [new for old, new in offered("The staffs were sent home.") if new == "personnels"]

    def test_a_verb_with_a_particle_stays(self):
        found = offered("She started out from the village at dawn.")
        assert all(new.endswith("started") for old, new in found if old == "started")

    def test_a_capital_stays_a_capital(self):
        assert ("However", "Nevertheless") in offered("However, the river rose again.")


class TestAddedWords:
    def test_words_are_added_where_the_grammar_has_a_place_for_them(self):
        found = offered("It rained. The manager will explain the new plan to the old members.")
        assert {("explain", "also explain"), ("new", "very new"), ("The", "Indeed, the")} <= found
        assert ("The", "And the") in found
        assert not {new for _, new in found} & {"also the", "very plan", "also manager"}

    def test_nothing_refers_back_where_a_paragraph_begins(self):
        assert not {new for _, new in offered("The plan is old.\n\nThe new one is good.")} & {"Indeed, the"}

    def test_an_added_word_can_be_left_out_again(self):
        found = offered("The manager will also explain the very old plan to us.")
        assert {("also explain", "explain"), ("very old", "old")} <= found

    def test_the_article_must_fit_what_is_added_or_left(self):
        found = offered("So be it. It is an old plan of theirs, but a truly easy one.")
        assert {("old", "especially old"), ("It", "Indeed, it")} <= found
        assert ("old", "very old") not in found
        assert ("truly easy", "easy") not in found

    @pytest.mark.parametrize(
        ("text", "pair"),
        [
            ("They painted the legal bridge of their own town.", ("legal", "very legal")),
            ("They painted the bridge of their own town and told their friends.", ("friends", "own friends")),
            ("The old laws plagued the town for years.", ("plagued", "now plagued")),
            ("The old bridges were trapped in the cold ice.", ("trapped", "now trapped")),
            ("They turn the data into useful information for us.", ("information", "data")),
        ],
    )
    def test_no_degree_of_what_has_none_no_now_in_the_past_no_word_twice(self, text, pair):
        assert pair not in offered(text)

    @pytest.mark.parametrize(
        "text",
        [
            "Our new plans",
            "Then Anna Miller saw the old bridge over the river.",
            "It rained. Israel saw the old bridge.",
        ],
    )
    def test_headings_and_names_get_nothing(self, text):
        assert not {
            (old, new) for old, new in offered(text) if new.endswith((" new", " Anna", " Miller", " israel"))
        }


class TestOrder:
    def test_joined_words_may_change_places(self):
        assert ("wind and rain", "rain and wind") in offered("They walked through wind and rain to the town.")

    def test_the_article_must_fit_the_word_that_comes_first(self):
        assert not [new for _, new in offered("It was a short and easy walk.") if new == "easy and short"]

    def test_a_list_may_change_its_order_if_its_items_are_alike(self):
        found = offered("They need love, acceptance, and encouragement in their lives.")
        assert ("love, acceptance, and encouragement", "acceptance, love, and encouragement") in found
        assert not [
            old for old, _ in offered("They study cell adhesion and migration here.") if " and " in old
        ]

    def test_that_after_a_verb_of_saying(self):
        assert ("believe", "believe that") in offered("People believe they can win.")
        assert ("believe that", "believe") in offered("People believe that they can win.")

    def test_that_before_a_clause_with_a_noun_but_not_before_an_object(self):
        assert ("said", "said that") in offered("He said the bridges were old and narrow.")
        assert ("said", "said that") not in offered("He said the names of all old bridges.")

    @pytest.mark.parametrize(
        ("text", "pair"),
        [
            ("The town has also been rebuilt by hand.", ("has also", "also has")),
            (
                "They spent years growing and selling old crops.",
                ("growing and selling", "selling and growing"),
            ),
            ("They began to paint the old bridge.", ("began to paint", "began painting")),
            ("They began painting the old bridge.", ("began painting", "began to paint")),
            ("We lost the book they wanted to read.", ("book", "book that")),
            ("He wrote to their families in the town.", ("families", "own families")),
            ("They walked through wind and rain to town.", ("wind and rain", "both wind and rain")),
            ("The editor discovers the mistakes later.", ("discovers", "finds out")),
        ],
    )
    def test_other_orders_and_words_of_grammar(self, text, pair):
        assert pair in offered(text)

    def test_these_stands_before_a_plural(self):
        found = offered("We saw the plan and the old bridges there.")
        assert {("the", "these"), ("the", "this")} <= found
        assert not {("the", "these"), ("the", "those")} & offered("We saw the old plan there.")
        assert ("the", "these") not in offered("We saw the company's plans there.")

    def test_this_refers_to_something_before_it(self):
        assert ("The", "This") in offered("It rained. The old plan of theirs was good.")
        assert ("The", "This") not in offered("The old plan of theirs was good.")


class TestProtection:
    @pytest.mark.parametrize(
        "text",
        [
            'He called it "a huge mistake" and left.',
            "He called it “a huge mistake” and left.",
            "Run `buy huge mistakes` and wait.",
            "```\nbuy huge mistakes\n```\n",
            "> They buy huge mistakes.\n",
            "<pre>They buy huge mistakes.</pre>",
            "See https://example.org/buy/huge/mistakes now.",
            "The Huge Mistakes were a band.",
            "Huge Mistakes were a band.",
            "HUGE MISTAKES OF THE PAST",
            "[a](http://huge.example/buy)",
        ],
    )
    def test_code_quotations_links_and_names_stay(self, text):
        assert not {old.lower() for old, _ in offered(text)} & {"buy", "huge", "mistake", "mistakes"}

    def test_listed_terms_stay(self):
        assert ("mistakes", "errors") in offered("The mistakes were found by the editor.")
        assert ("mistakes", "errors") not in offered("The mistakes were found by it.", terms=("Mistakes",))

    def test_numbers_stay(self):
        spans = protected_spans("It rose by 3.5% in 2019, the 12th year.")
        assert [span for span in spans if span.overlaps(TextSpan(11, 14))]


def test_applied_changes_do_not_move_each_other():
    text = "a big dog and a big cat"
    changes = [Candidate(16, 19, "big", "very large"), Candidate(2, 5, "big", "large")]
    assert apply(text, changes) == "a large dog and a very large cat"


def test_sentences_end_at_marks_and_lines_but_not_after_abbreviations():
    text = "Dr. King spoke. He left at 3.14 sharp!\nA line"
    assert [text[a:b] for a, b in sentences(text)] == ["Dr. King spoke.", "He left at 3.14 sharp!", "A line"]


class TestList:
    def test_a_file_of_one_s_own(self, tmp_path):
        file = tmp_path / "mine.txt"
        file.write_text("# mine\nn mistake > slip\n", encoding="utf-8")
        found = Thesaurus.load(file).candidates("The mistakes were few.", protected=[])
        assert [(each.old, each.new) for each in found] == [("mistakes", "slips")]

    def test_an_unreadable_line_is_named(self, tmp_path):
        file = tmp_path / "mine.txt"
        file.write_text("n mistake\n", encoding="utf-8")
        with pytest.raises(InputError, match="line 1: write a class"):
            Thesaurus.load(file)

    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(InputError, match="cannot read the synonyms"):
            Thesaurus.load(tmp_path / "none.txt")
