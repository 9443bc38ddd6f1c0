"""Attacks: edits that people and programs make to a text before a detector sees it.

`load_attack` finds one by name; it applies to marked and unmarked texts alike. Importing this package
loads no heavy library: each attack imports what it needs when it runs.
"""

from dewmark_lab.attacks.base import ATTACKS, Attack, load_attack, run_option, text_seed

__all__ = ["ATTACKS", "Attack", "load_attack", "run_option", "text_seed"]
