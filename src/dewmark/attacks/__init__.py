"""Attacks: what people and programs do to a text before a detector sees it.

An attack is found by name (`load_attack`) and applied to marked and unmarked texts alike. Importing this
package loads no heavy library; the attack that needs one does.
"""

from __future__ import annotations

from dewmark.attacks.base import ATTACKS, Attack, load_attack, text_seed

__all__ = ["ATTACKS", "Attack", "load_attack", "text_seed"]
