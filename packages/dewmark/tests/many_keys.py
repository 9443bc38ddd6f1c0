"""Texts as wholes under several keys of a scheme, in the way that is fastest for it."""

from __future__ import annotations

from collections.abc import Sequence

from dewmark.core.keys import Key
from dewmark.scheme import Scheme
from dewmark.types import Detection
from dewmark.workspace import HostInfo, Workspace


def score_under(
    scheme: Scheme,
    keys: Sequence[Key],
    texts: Sequence[str],
    host: HostInfo,
    workspace: Workspace,
    *,
    prompts: Sequence[str | None] | None = None,
    fpr: float = 0.01,
) -> list[list[Detection]]:
    """For each text one result per key; the workspace's reader reads, and each text is read once."""
    bounds = list(scheme.bind_keys(keys, host, workspace))
    if workspace.expectations is not None:
        bounds = [each.reading_with(workspace.expectations) for each in bounds]
    starts = [prompt or "" for prompt in prompts or [None] * len(texts)]
    readings = bounds[0].read(bounds[0].tokenize(texts), bounds[0].tokenize(starts))
    together = scheme.whole_under(keys, readings, fpr=fpr, workspace=workspace)
    if together is not None:
        return together
    columns = [each.whole(readings, test=each.tests[0], fpr=fpr) for each in bounds]
    return [list(row) for row in zip(*columns, strict=True)]
