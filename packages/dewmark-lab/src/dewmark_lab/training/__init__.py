"""Training of schemes' artifacts: one module per scheme, found through `TRAINERS`."""

from __future__ import annotations

from dewmark.registry import Registry

TRAINERS = Registry(
    "trainable scheme",
    {
        "atw": "dewmark_lab.training.atw:train",
        "ksemstamp": "dewmark_lab.training.semstamp:train_clusters",
        "semstamp": "dewmark_lab.training.semstamp:train",
        "sir": "dewmark_lab.training.sir:train",
        "ts": "dewmark_lab.training.ts:train",
        "xsir": "dewmark_lab.training.xsir:train",
    },
    group="dewmark.trainers",
)
"""The ``train(job)`` function of every scheme that ``dewmark train`` can train."""
