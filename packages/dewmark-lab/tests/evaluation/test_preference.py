"""Net Preference Score: known judges give known scores, and showing both orders cancels position bias."""

from __future__ import annotations

import numpy as np
import pytest

from dewmark.errors import InputError
from dewmark_lab.chat.settings import ChatSettings
from dewmark_lab.evaluation.preference import (
    Pair,
    judge_conversations,
    judge_estimate,
    judge_pairs,
    pair_rows,
    verdict,
    weigh_pairs,
)


class Judge:
    """Reads the two samples out of the query and asks ``choose(first, second)``."""

    def __init__(self, choose):
        self._choose = choose
        self.asked = 0

    def identity(self):
        return {"model": "judge"}

    def complete(self, conversations, *, seeds, max_new_tokens, on_answer=None):
        answers = []
        for index, conversation in enumerate(conversations):
            self.asked += 1
            query = conversation[1]["content"]
            samples = [
                query.split(f"=== Start of Sample {n} ===\n")[1].split(f"\n=== End of Sample {n} ===")[0]
                for n in (1, 2)
            ]
            answers.append(self._choose(*samples))
            if on_answer is not None:
                on_answer(index, answers[-1])
        return answers


def pairs(number: int, *, marked: str = "marked", unmarked: str = "unmarked") -> list[Pair]:
    return [Pair(str(i), 0, f"Prompt {i}", f"{marked} {i}", f"{unmarked} {i}") for i in range(number)]


def score(choose, *, number: int = 20) -> float:
    return nps(judge_pairs(Judge(choose), pairs(number), scheme="dew"))


def nps(rows) -> float:
    """Wins minus losses over all pairs."""
    return sum(row["outcome"] for row in rows) / len(rows)


class Weighing:
    """A host whose log-odds of 1 against 2 lean to a place by ``lean`` and to marked texts by ``likes``."""

    def __init__(self, *, lean: float, likes: float, noise: float = 0.0):
        self.chat = self
        self._lean, self._likes, self._noise = lean, likes, noise

    def render(self, conversation):
        return conversation[1]["content"]

    def log_likelihood(self, prompts, texts):
        rng = np.random.default_rng(3)
        drawn = {prompt: rng.normal(scale=self._noise) for prompt in dict.fromkeys(prompts)}
        found = []
        for prompt, text in zip(prompts, texts, strict=True):
            side = 1.0 if "Sample 1 ===\nmarked" in prompt else -1.0
            odds = self._lean + side * self._likes + drawn[prompt]
            found.append((odds / 2.0 if text == "1" else -odds / 2.0, 1))
        return found


def longer(first: str, second: str) -> str:
    return "1" if len(first) > len(second) else "2" if len(second) > len(first) else "TIE"


class TestJudging:
    def test_a_judge_that_always_prefers_one_side(self):
        assert score(lambda first, second: "1" if first.startswith("marked") else "2") == 1.0
        assert score(longer) == -1.0  # "unmarked" is the longer word

    @pytest.mark.parametrize("place", ["1", "2"])
    def test_position_bias_cancels_and_is_counted(self, place: str):
        for answer, by_place in ((place, True), ("TIE", False)):
            rows = judge_pairs(Judge(lambda first, second, said=answer: said), pairs(20), scheme="dew")
            assert {(row["outcome"], row["by_place"]) for row in rows} == {(0, by_place)}

    def test_position_bias_hides_no_real_preference(self):
        # prefers the first text unless the second is marked with a number below 6: those win in both orders,
        # the others only when they come first
        def choose(first: str, second: str) -> str:
            kind, number = second.split()
            return "2" if kind == "marked" and int(number) < 6 else "1"

        assert score(choose, number=20) == pytest.approx(6 / 20)

    @pytest.mark.parametrize("lean", [-9.0, 0.0, 9.0])
    def test_weighing_sees_a_preference_behind_any_lean_to_a_place(self, lean: float):
        rows = weigh_pairs(Weighing(lean=lean, likes=0.01), pairs(20), scheme="dew")
        assert [row["odds"] for row in rows] == pytest.approx([0.01] * 20)
        assert {(row["outcome"], row["by_place"]) for row in rows} == {(1, bool(lean))}

    def test_weighing_without_a_preference_is_even(self):
        # each pair is won with probability 1/2: the mean of 2,000 outcomes of ±1 has sd 0.022
        rows = weigh_pairs(Weighing(lean=3.0, likes=0.0, noise=0.1), pairs(2000), scheme="dew")
        assert nps(rows) == pytest.approx(0.0, abs=4 * 0.0224)

    def test_a_noisy_judge_is_unbiased(self):
        # each answer is right with probability 0.7, independently: a pair is won with 0.49 and lost with
        # 0.09, so NPS is 0.4; a pair's outcome has sd sqrt(0.58 − 0.16) = 0.65, the mean of 2,000 has 0.0145
        rng = np.random.default_rng(5)

        def choose(first: str, second: str) -> str:
            right = "1" if first.startswith("marked") else "2"
            return right if rng.random() < 0.7 else "21"[int(right) - 1]

        assert score(choose, number=2000) == pytest.approx(0.4, abs=4 * 0.0145)

    def test_the_estimate_counts_both_orders(self):
        settings = ChatSettings(model="m")
        estimate = judge_estimate(settings, pairs(10))
        assert (estimate.requests, estimate.tokens_out) == (20, 20)
        query = sum(len(message["content"]) for message in judge_conversations(pairs(1)[0])[0])
        assert estimate.tokens_in == pytest.approx(20 * (query / 4 + 2 * 4), rel=0.01)


class TestQuery:
    def test_the_whole_query_in_both_orders(self):
        pair = Pair("a", 0, "Once {upon}", "one {0}", "two")
        first, second = judge_conversations(pair)
        assert [message["role"] for message in first] == ["system", "user"]
        assert first[1]["content"] == (
            "Prompt: Once {upon}\n"
            "=== Start of Sample 1 ===\none {0}\n=== End of Sample 1 ===\n"
            "=== Start of Sample 2 ===\ntwo\n=== End of Sample 2 ===\n"
            "Please evaluate the answers based on the system prompt and return a single number.\n"
            "Return 1 if the first text is better, 2 if the second text is better, and 'TIE' if they are "
            "equal.\n"
            "Only return the number without any additional text."
        )
        assert "Sample 1 ===\ntwo\n" in second[1]["content"]
        assert first[0] == second[0]

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            ("1", 1),
            (" 2.\n", 2),
            ("TIE", 0),
            ("'tie'", 0),
            ("**1**", 1),
            ("2\n\nThe second text is better.", 2),
            ("12", None),
            ("", None),
            ("The first text is better", None),
            ("1 or 2", None),
            ("3", None),
        ],
    )
    def test_answers(self, answer: str, expected: int | None):
        assert verdict(answer) == expected


class TestPairs:
    def test_rows_are_paired_by_id(self):
        marked = [{"id": i, "prompt": f"p{i}", "text": f"m{i}"} for i in (2, 1)]
        unmarked = [{"id": i, "prompt": f"p{i}", "text": f"u{i}"} for i in (1, 2, 3)]
        assert pair_rows(marked, unmarked, seed=4) == [
            Pair("2", 4, "p2", "m2", "u2"),
            Pair("1", 4, "p1", "m1", "u1"),
        ]

    def test_rows_that_do_not_match_are_rejected(self):
        row = {"id": "a", "prompt": "p", "text": "t"}
        with pytest.raises(InputError, match="text a has no unmarked"):
            pair_rows([row], [], seed=0)
        with pytest.raises(InputError, match="different prompts"):
            pair_rows([row], [{**row, "prompt": "q"}], seed=0)
