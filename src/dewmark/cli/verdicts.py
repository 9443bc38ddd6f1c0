"""How ``detect`` shows its results: a line or a JSON object each, coloured tokens, and a sum at the end.

A Benjamini-Hochberg value needs all p-values, so lines that carry one wait for the last text; others are
printed as they come, and only their p-values are kept, for the sum.
"""

from __future__ import annotations

import dataclasses
import sys
from array import array
from typing import TYPE_CHECKING

from dewmark.cli.console import emit, results, say, write
from dewmark.types import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dewmark.cli.scoring import Scored

__all__ = ["Verdicts"]


class Verdicts:
    """Prints results; ``adjust`` holds them until `close` and gives each its value after the correction."""

    def __init__(
        self, *, json_: bool, tokens: bool, total: int, adjust: bool, fpr: float, quiet: bool
    ) -> None:
        self._json, self._tokens, self._total = json_, tokens, total
        self._adjust, self._fpr, self._quiet = adjust, fpr, quiet
        self._console = results()
        self._held: list[Scored] = []
        self._p_values = array("d")  # of the texts that are long enough for a verdict
        self._marked = 0
        self.count = 0
        self.on_terminal = sys.stdout.isatty()

    @property
    def prints_at_once(self) -> bool:
        """Whether lines appear on a terminal while texts are still being scored."""
        return self.on_terminal and not self._adjust

    def add(self, scored: Scored) -> None:
        """Take one result."""
        self.count += 1
        self._marked += scored.detection.is_marked
        if scored.detection.verdict is not Verdict.TOO_SHORT:
            self._p_values.append(scored.detection.p_value)
        if not self._adjust:
            self._print(scored)
        elif self._tokens or self._total == 1:
            self._held.append(scored)
        else:  # neither tokens nor text will be shown: memory stays small
            detection = dataclasses.replace(scored.detection, tokens=())
            self._held.append(dataclasses.replace(scored, text="", detection=detection))

    def close(self) -> None:
        """Print what was held, and sum up if there was more than one text."""
        adjusted = self._adjusted()
        values = iter(adjusted)
        for scored in self._held:
            q = None if scored.detection.verdict is Verdict.TOO_SHORT else next(values)
            if self._json:
                scored.row["p_adjusted"] = q
            self._print(scored, q)
        if self.count > 1:
            self._sum_up(sum(q <= self._fpr for q in adjusted))

    def _sum_up(self, rejected: int) -> None:
        line = (
            f"{self._marked} of {self.count} texts marked at level {self._fpr:g}; "
            f"{rejected} with q ≤ {self._fpr:g} (Benjamini-Hochberg over {len(self._p_values)} texts)"
        )
        if not self._json:
            write(line + "\n")
        elif not self._adjust:  # stdout is rows only, and these do not say it
            say(line, quiet=self._quiet)

    def _adjusted(self) -> Sequence[float]:
        if not self._p_values:
            return []
        from dewmark.stats.multiple import benjamini_hochberg

        adjusted: list[float] = benjamini_hochberg(self._p_values).tolist()
        return adjusted

    def _print(self, scored: Scored, q: float | None = None) -> None:
        if self._json:
            emit(scored.row)
            return
        from dewmark.cli.render import colour_tokens, legend, token_table, verdict_line

        line = verdict_line(str(scored.id), scored.detection).append(scored.note)
        if q is not None and self.count > 1:
            line.append(f", q = {q:.2g}")
        self._console.print(line)
        if self.on_terminal and (self._tokens or self._total == 1):
            self._console.print(
                colour_tokens(self._console, scored.text, scored.detection),
                legend(self._console),
                sep="\n\n",
                end="\n\n",
            )
        elif self._tokens:
            write(token_table(scored.detection))
