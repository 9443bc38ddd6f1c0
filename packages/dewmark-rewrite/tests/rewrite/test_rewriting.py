"""A rewritten text carries the mark that the ordinary detector reads, and nothing else changes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.fakes import BagEncoder

from dewmark import ConfigError, Detector, Key, Watermark
from dewmark.detect import score_text
from dewmark.errors import InputError, ModelError, UnknownNameError
from dewmark.registry import Registry
from dewmark_lab.testing.fake_host import FakeHost
from dewmark_rewrite import Options, RewritableDocument, Rewriter, rewrite
from dewmark_rewrite.fluency import Loss
from dewmark_rewrite.paraphrase import ChatEndpoint, drafts, local_writer
from dewmark_rewrite.protection import MeaningCheck, same_facts
from dewmark_rewrite.rewriting import readable
from dewmark_rewrite.search import SearchLimits, Step, pruned, search, size
from dewmark_rewrite.thesaurus import Candidate, Thesaurus, apply

TEXT = """The committee decided to purchase a large building near the river because the old office was very
small. Many employees believe they need a quiet place to work, and the manager often says that she
wants to improve the conditions. The construction will begin soon, and it should finish before the
winter. However, some customers fear that the prices might increase rapidly. The firm therefore
promised to provide regular reports and to explain every important choice. It also wants to show
that the project is useful and affordable for the whole region. Several experts examined the plan
carefully and found few mistakes, but they recommend additional tests. The town obtained a loan to
construct a new road, which allows visitors to reach the area quickly."""
KEY = Key(bytes(range(32)))
FEW = Path(__file__).with_name("few.txt")


def plain(**options: object) -> Options:
    """Options without models, and with a short list."""
    return Options(judge=None, encoder=BagEncoder(), similarity=-1.0, synonyms=FEW, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector.from_key(KEY)


@pytest.fixture(scope="module")
def far(detector):
    """The text with as many changes as help."""
    return Rewriter(detector, plain(target_p=1e-12, budget=0.3)).rewrite(TEXT)


class TestRewriting:
    def test_the_ordinary_detector_s_z_rises_and_the_wrong_key_s_does_not_follow(self, detector, far):
        made = far
        assert made.after.z - made.before.z > 1.5
        assert made.after.p_value == detector.detect(made.text).p_value
        others = [Detector.from_key(Key(bytes([i] * 32))) for i in range(1, 7)]
        moved = [each.detect(made.text).z - each.detect(TEXT).z for each in others]
        # the difference of two unit normals that share most of their text has a deviation below √2
        assert abs(np.mean(moved)) < 3 * math.sqrt(2 / len(others))

    def test_the_budget_is_kept_and_every_change_is_reported(self, detector):
        made = Rewriter(detector, plain(target_p=1e-12, budget=0.05)).rewrite(TEXT)
        assert 0 < made.changed <= 0.05 * made.words
        assert made.changed == sum(size(step.change) for step in made.steps)
        assert apply(TEXT, [step.change for step in made.steps]) == made.text
        assert not made.reached

    def test_it_stops_at_the_p_value_asked_for_and_edit_needs_no_more(self, detector, far):
        made = {
            engine: Rewriter(detector, plain(engine=engine, target_p=0.2, budget=0.3)).rewrite(TEXT)
            for engine in ("substitution", "edit")
        }
        assert made["edit"].reached
        assert made["edit"].changed <= made["substitution"].changed < far.changed

    def test_a_reviewer_decides(self, detector):
        asked, shown = [], set()

        def refuse(change: Candidate, p: float) -> bool:
            asked.append(change)
            shown.add(p)
            return False

        made = Rewriter(detector, plain()).rewrite(TEXT, review=refuse)
        assert made.text == TEXT
        assert shown == {made.before.p_value}
        assert len(asked) == len(set(asked)) > 5

    def test_a_sentence_that_would_lose_its_meaning_stays(self, detector):
        strict = replace(plain(), similarity=1.0)
        assert Rewriter(detector, strict).rewrite(TEXT).text == TEXT

    def test_a_member_and_a_payload_are_found(self):
        key = Key(bytes(range(32)), members=4, payload_bits=2)
        made = rewrite(TEXT, key, judge=None, synonyms=FEW, similarity=-1.0, member=2, payload=3,
                       budget=0.2, target_p=1e-12)  # fmt: skip
        alone = Rewriter(key, plain(member=2, payload=3))
        other = Rewriter(key, plain(member=1, payload=3))
        assert alone._score([made.text])[0] - alone._score([TEXT])[0] > 1.5
        assert other._score([made.text])[0] - other._score([TEXT])[0] < 1.5

    def test_a_ring_marks_as_the_member_to_which_the_text_leans_unless_one_is_named(self):
        key = Key(bytes(range(32)), members=32, payload_bits=2)
        free, named = Rewriter(key, plain(payload=3)), Rewriter(key, plain(payload=3, member=5))
        untouched = [each.rewrite(TEXT, review=lambda change, p: False) for each in (free, named)]
        z = [Rewriter(key, plain(payload=3, member=i))._score([TEXT])[0] for i in range(32)]
        assert (free._member, named._member) == (np.argmax(z), 5)
        assert free._score([TEXT])[0] == pytest.approx(max(z), abs=1e-4)
        p = Detector.from_key(key).detect(TEXT).p_value
        assert all(made.text == TEXT and made.before.p_value == made.after.p_value == p for made in untouched)
        free.rewrite(TEXT[: len(TEXT) // 2], review=lambda change, p: False)
        assert free._member not in (np.argmax(z), 5)  # each text has its own

    def test_the_member_to_which_a_text_leans_needs_fewer_changes_than_others(self):
        def spent(member: int | None, seed: int) -> int:
            key = Key(bytes([seed] * 32), members=16)
            made = Rewriter(key, plain(target_p=0.1, budget=0.1, member=member)).rewrite(TEXT)
            return made.changed if made.reached else math.floor(0.1 * made.words)

        chosen, others = ([spent(member, seed) for seed in range(3)] for member in (None, 0))
        assert np.mean(chosen) < np.mean(others) - 3

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("Too short a text.", "has 4 words"),
            ("Der alte Mann ging langsam über die Brücke und sah den Fluss hinunter. " * 4, "in German"),
        ],
    )
    def test_texts_that_cannot_be_marked_are_refused(self, detector, text, said):
        with pytest.raises(InputError, match=said):
            Rewriter(detector, plain()).rewrite(text)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"engine": "magic"}, "engine must be"),
            ({"target_p": 0.0}, "target_p must lie"),
            ({"budget": 2.0}, "budget is a share"),
            ({"similarity": 2.0}, "similarity is a cosine"),
            ({"drafts": 0}, "drafts must be"),
        ],
    )
    def test_mistakes_are_reported_at_once(self, options, said):
        with pytest.raises(ConfigError, match=said):
            Options(**options)


class TestSearch:
    """On a score that is a sum over words, greedy choice is the best one."""

    WORTH = {"b": 1.0, "d": 0.5, "f": 0.25, "h": -1.0}  # noqa: RUF012
    CANDIDATES = [Candidate(2 * i, 2 * i + 1, old, new) for i, (old, new) in enumerate(zip("aceg", "bdfh"))]  # noqa: RUF012, B905

    def score(self, texts):
        return [sum(self.WORTH.get(word, 0.0) for word in text.split()) for text in texts]

    def limits(self, *, words=10, z=99.0, **more):
        return SearchLimits(words=words, enough=lambda _, found: found >= z, **more)

    def made(self, limits):
        return [step.change.new for step in search("a c e g", self.CANDIDATES, self.score, limits)]

    def test_the_most_valuable_changes_come_first_and_losses_never(self):
        assert self.made(self.limits()) == ["b", "d", "f"]

    def test_it_ends_with_the_words_or_the_score(self):
        assert self.made(self.limits(words=2)) == ["b", "d"]
        assert self.made(self.limits(z=1.0)) == ["b"]

    def test_a_change_that_reads_badly_pays_for_it(self):
        costly = [Candidate(0, 1, "a", "b", cost=10.0), *self.CANDIDATES[1:]]
        found = search("a c e g", costly, self.score, self.limits(price=0.2))
        assert [step.change.new for step in found] == ["d", "f"]

    def test_what_is_not_needed_is_taken_back(self):
        steps = [Step(self.CANDIDATES[i], z) for i, z in ((2, 0.25), (1, 0.75), (0, 1.75))]
        kept = pruned("a c e g", steps, self.score, self.limits(z=1.5))
        assert [step.change.new for step in kept] == ["d", "b"]

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("big", "large", 1),
            ("wind and rain", "rain and wind", 2),
            ("has also been", "also has been", 1),
            ("say", "say that", 1),
            ("as well as", "and", 3),
        ],
    )
    def test_changed_words_are_counted(self, old, new, words):
        assert size(Candidate(0, len(old), old, new)) == words


class TestMeaning:
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("It cost 30 dollars.", "It cost 3 dollars."),
            ("He did not go.", "He did go."),
            ("Then Anna left.", "Then Ann left."),
        ],
    )
    def test_numbers_names_and_negations_must_be_equal(self, old, new):
        assert same_facts(old, old)
        assert not same_facts(old, new)

    def test_similarity_is_checked_by_the_encoder(self):
        check = MeaningCheck(BagEncoder(), 0.99)
        assert check.keeps("the old bridge", "the old bridge")
        assert not check.keeps("the old bridge", "completely different words")


class Stern:
    """A judge by a table of openings and losses of the new words."""

    def __init__(self, openings=None, losses=None):
        self._openings, self._losses, self.judged = openings or {}, losses or {}, []

    def __call__(self, text):
        return self

    def openings(self, candidates):
        return [self._openings.get(each.new, -1.0) for each in candidates]

    def losses(self, candidates):
        self.judged += candidates
        return [self._losses.get(each.new, Loss(0.0, 0.0)) for each in candidates]


def test_a_judge_s_limits():
    candidates = [Candidate(0, 1, "a", new) for new in "bcd"]
    stern = Stern(losses={"b": Loss(10.0, 0.0), "c": Loss(1.0, 3.0), "d": Loss(1.0, 0.5)})
    assert [(each.new, each.cost) for each in readable(candidates, stern)] == [("d", 1.5)]


def test_only_likely_changes_that_would_be_taken_are_read(detector):
    listed, _ = Rewriter(detector, plain()).candidates(RewritableDocument(TEXT))
    unlikely = {each.new: -20.0 for each in listed[::2]}
    judge = Stern(openings=unlikely)
    made = Rewriter(detector, replace(plain(budget=0.03), judge=judge)).rewrite(TEXT)
    assert {step.change for step in made.steps} <= set(judge.judged)
    assert len(judge.judged) == 16 < len(listed) / 2
    z = score_text(detector.scheme, TEXT).z
    for each in judge.judged:
        assert each.new not in unlikely
        assert score_text(detector.scheme, apply(TEXT, [each])).z > z


def test_no_change_comes_more_than_three_times(far):
    brought = Counter(frozenset(s.change.new.lower().split()) - frozenset(s.change.old.lower().split())
                      for s in far.steps)  # fmt: skip
    del brought[frozenset()]
    assert 1 < max(brought.values()) <= 3


def test_a_watermark_rewrites(monkeypatch):
    mark = Watermark(KEY, host=FakeHost(kind="bytes", vocab_size=400))
    made = mark.rewrite(TEXT, judge=None, similarity=-1.0, budget=0.1, synonyms=FEW)
    assert mark.detect(made.text).z > mark.detect(TEXT).z + 1.0
    monkeypatch.setattr("dewmark.watermark._REWRITERS", Registry("way", {}, companion="nothing-of-this-name"))
    with pytest.raises(UnknownNameError, match="pip install nothing-of-this-name"):
        mark.rewrite(TEXT)


class TestParaphrase:
    def test_drafts_become_candidates_unless_facts_change(self):
        text = 'The old man walked to the town in 1990. She said "the old man walked to town".'
        answers = ['"In 1990 the old man went to the town."', "In 1991 the old man went to the town.", ""]
        found = drafts(
            text,
            lambda requests, number: [answers[:number] for _ in requests],
            MeaningCheck(BagEncoder(), -1.0),
            number=3,
            protected=[],
            progress=lambda *_: None,
        )
        assert [each.new for each in found][:1] == ["In 1990 the old man went to the town."]
        assert "1991" not in "".join(each.new for each in found)

    def test_a_host_writes_the_drafts_of_many_sentences_at_once(self):
        class Echo:
            def generate_batch(self, *, messages, seeds, batch_size, **_):
                assert batch_size == len(messages) == len(seeds)
                answers = zip(messages, seeds, strict=True)
                return [SimpleNamespace(text=f"{each['content']}{seed}") for (each,), seed in answers]

        made = local_writer(Echo(), seed=1)(list("ab") * 10, 2)
        assert list(made) == [["a1", "a2"], ["b1", "b2"]] * 10

    def test_an_endpoint_that_does_not_answer_is_named(self):
        with pytest.raises(ModelError, match="no answer from the endpoint"):
            ChatEndpoint("http://127.0.0.1:9/v1", "m").answer("x", seed=1)

    def test_an_endpoint_needs_an_address_and_a_model(self):
        with pytest.raises(ConfigError, match="http address"):
            ChatEndpoint("localhost", "m")
        with pytest.raises(ConfigError, match="name of its model"):
            ChatEndpoint("http://localhost", "")


def test_the_packaged_list_says_nothing_twice_and_nothing_of_itself():
    groups = Thesaurus.load()._groups
    for table in groups.values():
        for word, others in table.items():
            assert word not in others
            assert len(set(others)) == len(others)
