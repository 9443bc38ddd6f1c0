"""Copy-paste: how much of the text stays, in how many pieces, and in what."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

from dewmark.attacks import load_attack
from dewmark.attacks.lexical import _random_partition
from dewmark.errors import ConfigError, InputError

TEXT = " ".join(f"own{i}" for i in range(100))


@pytest.fixture
def human(tmp_path: Path) -> Path:
    path = tmp_path / "human.jsonl"
    texts = [" ".join(f"h{t}_{i}" for i in range(length)) for t, length in enumerate((300, 10, 150))]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


class TestCopyPaste:
    @pytest.mark.parametrize(("share", "segments"), [(0.25, 1), (0.5, 3), (0.1, 10), (0.01, 5)])
    def test_share_pieces_and_length(self, human, share, segments):
        attack = load_attack("copy-paste", human=str(human), share=share, segments=segments)
        for text in attack.apply([TEXT] * 30, seeds=range(30)):
            words = text.split()
            own = [word for word in words if word.startswith("own")]
            assert len(words) == 100  # the length stays
            assert len(own) == round(share * 100)
            numbers = [int(word[3:]) for word in own]
            assert numbers == sorted(numbers)  # the order of the pieces stays
            runs = sum(mine for mine, _ in groupby(word.startswith("own") for word in words))
            assert 1 <= runs <= segments  # pieces may touch

    def test_one_piece_and_its_surroundings_run_on(self, human):
        attack = load_attack("copy-paste", human=str(human), share=0.5)
        starts = set()
        for text in attack.apply([TEXT] * 40, seeds=range(40)):
            own = [int(word[3:]) for word in text.split() if word.startswith("own")]
            assert own == list(range(own[0], own[0] + 50))
            starts.add(own[0])
        assert len(starts) > 15  # drawn from 51 places

    def test_all_of_it_is_the_text_itself(self, human):
        odd = " a\n b  c "
        assert load_attack("copy-paste", human=str(human), share=1).apply([odd], seeds=[0]) == [odd]

    def test_plain_text_is_one_human_text(self, tmp_path):
        path = tmp_path / "letter.txt"
        path.write_text("human words only", encoding="utf-8")
        made = load_attack("copy-paste", human=str(path), share=0.1).apply([TEXT], seeds=[1])[0].split()
        assert len(made) == 100  # repeated as often as needed
        assert set(made) - {word for word in made if word.startswith("own")} == {"human", "words", "only"}

    def test_human_texts_count_by_what_they_say(self, human, tmp_path):
        copy = tmp_path / "copy.jsonl"
        copy.write_bytes(human.read_bytes())
        first, second = (load_attack("copy-paste", human=str(path)).identity() for path in (human, copy))
        assert first == second
        copy.write_bytes(human.read_bytes() * 2)
        assert load_attack("copy-paste", human=str(copy)).identity() != first

    def test_what_cannot_be_used(self, tmp_path):
        with pytest.raises(ConfigError, match="set human=FILE.jsonl"):
            load_attack("copy-paste")
        with pytest.raises(ConfigError, match="share must lie in"):
            load_attack("copy-paste", human="x", share=2)
        with pytest.raises(InputError, match="cannot read"):
            load_attack("copy-paste", human=str(tmp_path / "none.jsonl")).apply(["a b c d"], seeds=[0])
        empty = tmp_path / "empty.jsonl"
        empty.write_text('{"text": " "}\n', encoding="utf-8")
        with pytest.raises(InputError, match="contains no words"):
            load_attack("copy-paste", human=str(empty)).apply(["a b c d"], seeds=[0])
        empty.write_text('{"prompt": "a"}\n', encoding="utf-8")
        with pytest.raises(InputError, match='line 1 has no "text"'):
            load_attack("copy-paste", human=str(empty)).apply(["a b c d"], seeds=[0])


def test_parts_are_uniform_over_all_ways_to_cut():
    rng, draws = random.Random(0), 6000
    counts = Counter(tuple(_random_partition(rng, 5, 3, least=1)) for _ in range(draws))
    assert all(sum(parts) == 5 and min(parts) >= 1 for parts in counts)
    assert len(counts) == 6  # (4 choose 2)
    # each is drawn with probability 1/6: a standard deviation of 28.9
    assert all(abs(count - draws / 6) < 5 * 28.9 for count in counts.values())
    assert _random_partition(rng, 4, 1, least=0) == [4]
