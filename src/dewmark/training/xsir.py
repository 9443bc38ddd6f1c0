"""Training of X-SIR: SIR's network for a multilingual encoder, and clusters of tokens that mean the same."""

from __future__ import annotations

import numpy as np

from dewmark import config
from dewmark.baselines._sir_network import HIDDEN, OUTPUTS
from dewmark.embeddings.contexts import token_vectors
from dewmark.embeddings.streams import Spelling
from dewmark.training import clusters
from dewmark.training.job import Job, Trained
from dewmark.training.loop import device_of
from dewmark.training.sir import fit
from dewmark.workspace import Workspace

__all__ = ["train"]


def train(job: Job) -> Trained:
    """Cut the host's vocabulary into clusters, and train the network."""
    pieces = Spelling(job.info.tokenizer, job.info.vocab_size).pieces
    forms = clusters.forms_of(pieces)
    edges = _from_lexicon(job, forms) if job.lexicon is not None else _from_encoder(job, forms)
    labels = clusters.cluster(forms, edges, vocab_size=job.info.vocab_size, seed=job.seed)
    sizes = np.bincount(labels)
    arrays, report = fit(job)
    return Trained(
        parameters={
            "outputs": OUTPUTS,
            "hidden": HIDDEN,
            "clusters_from": "a lexicon" if job.lexicon is not None else "nearest neighbours",
        },
        arrays={**arrays, "labels": labels.astype(np.int32)},
        report={
            **report,
            "clusters": int(np.count_nonzero(sizes > 1)),
            "clustered_tokens": int(sizes[sizes > 1].sum()),
            "largest_cluster": int(sizes.max()),
        },
    )


def _from_lexicon(job: Job, forms: dict[str, list[int]]) -> dict[clusters.Edge, float]:
    assert job.lexicon is not None
    place = {form: i for i, form in enumerate(forms)}
    edges = {}
    for one, other in clusters.read_lexicon(job.lexicon):
        if one != other and one in place and other in place:
            i, j = sorted((place[one], place[other]))
            edges[i, j] = 1.0
    return edges


def _from_encoder(job: Job, forms: dict[str, list[int]]) -> dict[clusters.Edge, float]:
    """Nearest neighbours among the forms, by the mean vector of each form's tokens."""
    workspace = Workspace(cache=config.cache_dir(), progress=job.progress)
    table = token_vectors(job.encoder, job.info, whitening=None, workspace=workspace)
    vectors = np.stack([table[ids].astype(np.float32).mean(axis=0) for ids in forms.values()])
    return clusters.near_pairs(vectors, device=device_of(job))
