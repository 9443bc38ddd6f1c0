"""Training of schemes' artifacts: one module per scheme, found through `dewmark.registry.TRAINERS`."""
