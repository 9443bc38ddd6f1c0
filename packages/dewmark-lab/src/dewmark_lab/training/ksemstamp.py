"""Training of k-SemStamp: SemStamp's linear map, then cosine k-means in the trained space.

The sentences' unit vectors are clustered by Lloyd's algorithm with unit centroids, from several seeded
k-means++ starts; the start with the largest mean cosine wins.
"""

from __future__ import annotations

import numpy as np

from dewmark.arrays import F32
from dewmark.errors import InputError
from dewmark_lab.training.job import Trained, TrainingJob
from dewmark_lab.training.loop import rng
from dewmark_lab.training.semstamp import MARGIN, train_space

CLUSTERS = 8
_STARTS = 8
_ITERATIONS = 100


def train(job: TrainingJob) -> Trained:
    """Train the map and cluster the sentences that it was trained on."""
    space = train_space(job)
    vectors = space.vectors()
    if len(vectors) < 10 * CLUSTERS:
        raise InputError(
            f"the texts have {len(vectors)} sentences, clustering needs {10 * CLUSTERS}: add more text"
        )
    found = [cosine_k_means(vectors, CLUSTERS, rng(job.seed, start)) for start in range(_STARTS)]
    centroids, cosine = max(found, key=lambda each: each[1])
    sizes = np.bincount((vectors @ centroids.T).argmax(axis=1), minlength=CLUSTERS)
    return Trained(
        parameters={"loss_margin": MARGIN, "clusters": CLUSTERS},
        arrays={"mean": space.mean, "matrix": space.matrix, "centroids": centroids.astype(np.float16)},
        report={**space.report, "centroid_cosine": cosine, "largest_cluster": sizes.max() / len(vectors)},
    )


def cosine_k_means(vectors: F32, k: int, draw: np.random.Generator) -> tuple[F32, float]:
    """Unit rows (N, r) to unit centroids (k, r), and the mean cosine of rows with their nearest centroid."""
    centroids = vectors[[int(draw.integers(len(vectors)))]]
    while len(centroids) < k:
        distance = np.maximum(1.0 - (vectors @ centroids.T).max(axis=1).astype(np.float64), 1e-9)
        chosen = int(draw.choice(len(vectors), p=distance / distance.sum()))
        centroids = np.concatenate((centroids, vectors[[chosen]]))
    labels = np.full(len(vectors), -1)
    for _ in range(_ITERATIONS):
        nearest = (vectors @ centroids.T).argmax(axis=1)
        if np.array_equal(nearest, labels):
            break
        labels = nearest
        sums = np.zeros_like(centroids)
        np.add.at(sums, labels, vectors)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        # an empty cluster keeps its centroid
        centroids = np.where(norms > 0.0, sums / np.maximum(norms, 1e-12), centroids).astype(np.float32)
    return centroids, float((vectors @ centroids.T).max(axis=1).mean())
