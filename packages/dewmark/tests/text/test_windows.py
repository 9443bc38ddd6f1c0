"""Windows of token ids."""

from __future__ import annotations

from types import SimpleNamespace

from dewmark.text.windows import ABSENT, window_texts, windows_of


def test_windows_end_before_their_position():
    host = SimpleNamespace(tokenizer=SimpleNamespace(special_ids={7}), vocab_size=10)
    found = windows_of([1, 7, 2, 30, 3], k=2, host=host).tolist()
    assert found == [[-1, -1], [-1, 1], [1, -1], [-1, 2], [2, -1]]


def test_the_text_of_a_window_has_no_absent_tokens():
    tokenizer = SimpleNamespace(decode=lambda batch: [" ".join(map(str, ids)) for ids in batch])
    assert window_texts(tokenizer, [(ABSENT, 4, 5), (ABSENT, ABSENT, ABSENT)]) == ["4 5", ""]
