"""An attack of your own: it swaps neighbouring words.

    python examples/own_attack.py

marks a text on a tiny host, attacks it more and more, and prints what detection still finds. To publish the
attack, put the class into a package with an entry point:

    [project.entry-points."dewmark.attacks"]
    swap = "my_package.own_attack:Swap"
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import dewmark
from dewmark.workspace import Progress
from dewmark_lab.attacks import ATTACKS, Attack, load_attack


@dataclass(frozen=True)
class Swap(Attack):
    """The settings are the fields; the output depends on the text, its seed and these settings only."""

    name: ClassVar[str] = "swap"
    summary: ClassVar[str] = "swaps a share r of the pairs of neighbouring words"

    r: Annotated[float, "in [0, 1]"] = 0.3
    """The share of pairs that are swapped."""

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        """One output per text."""
        return [self._swap(text, random.Random(seed)) for text, seed in zip(texts, seeds, strict=True)]

    def _swap(self, text: str, chance: random.Random) -> str:
        words = text.split()
        for i in range(0, len(words) - 1, 2):
            if chance.random() < self.r:
                words[i], words[i + 1] = words[i + 1], words[i]
        return " ".join(words)


if __name__ == "__main__":
    from dewmark_lab.testing.fake_host import FakeHost  # a tiny model with random weights

    ATTACKS.register("swap", Swap)
    wm = dewmark.Watermark(dewmark.Key.generate(), host=FakeHost(), scheme="kgw")
    text = wm.generate("the old bridge", max_new_tokens=200, min_new_tokens=200, seed=1).text
    for r in (0.0, 0.3, 1.0):
        (attacked,) = load_attack("swap", r=r).apply([text], seeds=[1])
        print(f"r = {r}: {wm.detect(attacked)}")
