"""Keys, keyed projections and whitening: the parts of DEW that know neither models nor text."""
