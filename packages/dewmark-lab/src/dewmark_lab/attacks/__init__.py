"""Attacks: edits that people and programs make to a text before a detector sees it.

`dewmark.load_attack` finds one by name; it applies to marked and unmarked texts alike. Importing this package
loads no heavy library: each attack imports what it needs when it runs.
"""
