"""Answers to texts that are examined together."""

from __future__ import annotations

from tests.desk.live import bound, marked_text

from dewmark.verdict import MIN_SEARCHED
from dewmark_desk.tenants import Tenant
from dewmark_desk.verdicts import Examination, Query, detect


def test_an_answer_explains_where_the_mark_is_whoever_else_asks() -> None:
    """Only the public is not told; a short text is searched for that alone."""
    how = Examination([Tenant("acme", bound("acme"))], keys=1, fpr=1e-3)
    words = marked_text().split()[: MIN_SEARCHED // 2]
    owner, public = Query(" ".join(words)), Query(" ".join(words), public=True)
    (alone,) = detect([owner], how)
    assert alone.said["coverage"]["passages"]
    for queries in ([owner, public], [public, owner, public]):
        found = {query: answer.said for query, answer in zip(queries, detect(queries, how), strict=True)}
        assert found[owner] == alone.said
        assert found[public] == detect([public], how)[0].said
