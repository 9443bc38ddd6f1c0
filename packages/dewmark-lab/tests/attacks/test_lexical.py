"""Deletion, truncation and copy-paste."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

from dewmark.errors import ConfigError, InputError
from dewmark_lab.attacks.base import load_attack
from dewmark_lab.attacks.lexical import random_partition

TEXT = "  The old house,\n\nby the river – it is 200 years old. "
WORDS = " ".join(f"own{i}" for i in range(100))


class TestDelete:
    def test_share_of_deleted_words_is_r(self):
        words, r = 200, 0.3
        texts = [" ".join(f"w{i}" for i in range(words))] * 100
        made = load_attack("delete", r=r).apply(texts, seeds=range(100))
        deleted = 1 - sum(len(text.split()) for text in made) / (words * len(texts))
        # binomial with 20,000 words: five standard deviations of √(r(1−r)/20000) = 0.0032
        assert abs(deleted - r) < 5 * math.sqrt(r * (1 - r) / (words * len(texts)))

    def test_kept_words_keep_order_and_space(self):
        made = load_attack("delete", r=0.4).apply([TEXT] * 50, seeds=range(50))
        assert len(set(made)) > 40
        for text in made:
            left = iter(TEXT.split())
            assert all(word in left for word in text.split())  # a subsequence
            assert text.startswith("  ")
            assert text.endswith(" ")
        assert any("\n\n" in text for text in made)

    def test_extreme_probabilities(self):
        assert load_attack("delete", r=0).apply([TEXT], seeds=[1]) == [TEXT]
        made = load_attack("delete", r=1).apply([TEXT] * 20, seeds=range(20))
        assert all(len(text.split()) == 1 for text in made)
        assert len(set(made)) > 5  # the seed picks the word that stays


class TestTruncate:
    def test_truncation_by_words(self):
        cut = load_attack("truncate", n=3).apply([TEXT, "one two"], seeds=[0, 0])
        assert cut == ["  The old house,", "one two"]


@pytest.fixture
def human(tmp_path: Path) -> Path:
    path = tmp_path / "human.jsonl"
    texts = [" ".join(f"h{t}_{i}" for i in range(length)) for t, length in enumerate((300, 10, 150))]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


class TestCopyPaste:
    @pytest.mark.parametrize(("share", "segments"), [(0.25, 1), (0.5, 3), (0.1, 10), (0.01, 5)])
    def test_share_segments_and_length(self, human, share, segments):
        attack = load_attack("copy-paste", human=str(human), share=share, segments=segments)
        for text in attack.apply([WORDS] * 30, seeds=range(30)):
            words = text.split()
            own = [word for word in words if word.startswith("own")]
            assert len(words) == 100  # the length is kept
            assert len(own) == round(share * 100)
            numbers = [int(word[3:]) for word in own]
            assert numbers == sorted(numbers)  # the order of the segments is kept
            runs = sum(mine for mine, _ in groupby(word.startswith("own") for word in words))
            assert 1 <= runs <= segments  # segments may touch

    def test_share_one_returns_the_text(self, human):
        odd = " a\n b  c "
        assert load_attack("copy-paste", human=str(human), share=1).apply([odd], seeds=[0]) == [odd]

    def test_plain_text_file_is_one_human_text(self, tmp_path):
        path = tmp_path / "letter.txt"
        path.write_text("human words only", encoding="utf-8")
        made = load_attack("copy-paste", human=str(path), share=0.1).apply([WORDS], seeds=[1])[0].split()
        assert len(made) == 100  # repeated as often as needed
        assert set(made) - {word for word in made if word.startswith("own")} == {"human", "words", "only"}

    def test_invalid_settings_and_files_are_rejected(self, tmp_path):
        with pytest.raises(ConfigError, match="set human=FILE.jsonl"):
            load_attack("copy-paste")
        with pytest.raises(InputError, match="cannot read"):
            load_attack("copy-paste", human=str(tmp_path / "none.jsonl")).apply(["a b c d"], seeds=[0])
        empty = tmp_path / "empty.jsonl"
        empty.write_text('{"text": " "}\n', encoding="utf-8")
        with pytest.raises(InputError, match="contains no words"):
            load_attack("copy-paste", human=str(empty)).apply(["a b c d"], seeds=[0])
        empty.write_text('{"prompt": "a"}\n', encoding="utf-8")
        with pytest.raises(InputError, match='line 1 has no "text"'):
            load_attack("copy-paste", human=str(empty)).apply(["a b c d"], seeds=[0])


def test_random_partitions_are_uniform():
    rng, draws = random.Random(0), 6000
    counts = Counter(tuple(random_partition(rng, 5, 3, least=1)) for _ in range(draws))
    assert all(sum(parts) == 5 and min(parts) >= 1 for parts in counts)
    assert len(counts) == 6  # (4 choose 2)
    # each has probability 1/6, so a standard deviation of 28.9
    assert all(abs(count - draws / 6) < 5 * 28.9 for count in counts.values())
    assert random_partition(rng, 4, 1, least=0) == [4]
