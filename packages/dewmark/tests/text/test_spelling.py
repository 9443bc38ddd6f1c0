"""The text of each id, whatever the sizes of the tokenizer and of the host."""

from __future__ import annotations

import pytest

from dewmark.text.spelling import Spelling
from dewmark_lab.testing.fake_host import FakeHost


@pytest.mark.parametrize("kind", ["words", "bytes"])
@pytest.mark.parametrize("beyond", [-9, 0, 9])
def test_each_id_of_the_host_has_one_text(kind: str, beyond: int) -> None:
    """A host may have ids that its tokenizer does not know, and a tokenizer ids that its host does not."""
    tokenizer = FakeHost(400, kind=kind).info.tokenizer
    size = tokenizer.size + beyond
    pieces = Spelling(tokenizer, size).pieces
    assert len(pieces) == size
    assert pieces[tokenizer.size :] == [""] * max(beyond, 0)
    assert {pieces[id_] for id_ in tokenizer.special_ids} == {""}
    (text,) = tokenizer.encode([" the old bridge over the river"])
    known = [pieces[id_] for id_ in text.ids if id_ < size]
    assert "".join(known) == " the old bridge over the river"
