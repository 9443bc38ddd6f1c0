"""Training of X-SIR: SIR's network for a multilingual encoder, and clusters of tokens with the same meaning.

A token that begins a word has a form, the word in lower case; tokens of the same form are always in one
cluster. Forms are joined if a bilingual lexicon has the pair or, without a lexicon, if each is among the
other's nearest neighbours in the encoder's space. Connected forms make a cluster; large ones are split into
communities (Louvain), since chains of near synonyms could otherwise connect half of the vocabulary.

A lexicon is a UTF-8 text file with two words per line, separated by a tab; empty lines and lines that begin
with # are ignored, and so are pairs with a word outside the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dewmark.arrays import F32, I64
from dewmark.core.whitening import normalize_rows
from dewmark.encoders.contexts import token_vectors
from dewmark.errors import InputError
from dewmark.models.devices import torch_device
from dewmark.text.spelling import Spelling
from dewmark_lab.prompt_sources import read_text
from dewmark_lab.schemes.learned.sir import HIDDEN, OUTPUTS
from dewmark_lab.training.job import Trained, TrainingJob
from dewmark_lab.training.sir import fit

if TYPE_CHECKING:
    import torch

Edge = tuple[int, int]

_LARGEST_CLUSTER = 20  # forms: larger clusters are split
_NEIGHBOURS, _MIN_COSINE = 3, 0.8
_ROWS = 1024  # per block of the matrix of cosines


def train(job: TrainingJob) -> Trained:
    """Cluster the host's vocabulary and train the network."""
    pieces = Spelling(job.info.tokenizer, job.info.vocab_size).pieces
    forms = forms_of(pieces)
    edges = _neighbour_edges(job, forms) if job.lexicon is None else _lexicon_edges(job.lexicon, forms)
    labels = cluster(forms, edges, vocab_size=job.info.vocab_size, seed=job.seed)
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


def forms_of(pieces: Sequence[str]) -> dict[str, list[int]]:
    """The ids of each form; tokens that do not begin a word, or are not a word, have none."""
    found: dict[str, list[int]] = {}
    for token, piece in enumerate(pieces):
        word = piece.strip()
        begins = piece[:1].isspace() or not word.isascii()  # many scripts don't put spaces between words
        if begins and len(word) > 1 - (not word.isascii()) and word.isalpha():
            found.setdefault(word.casefold(), []).append(token)
    return found


def read_lexicon(path: Path) -> list[tuple[str, str]]:
    """The word pairs of a lexicon file, in lower case."""
    pairs = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        words = [word.strip().casefold() for word in line.split("\t")]
        if len(words) != 2 or not all(words):
            raise InputError(f"{path}, line {number}: expected two words separated by a tab, got {line!r}")
        pairs.append((words[0], words[1]))
    if not pairs:
        raise InputError(f"{path} has no word pairs: put two words on a line, separated by a tab")
    return pairs


def near_pairs(vectors: F32, *, device: torch.device | str = "cpu") -> dict[Edge, float]:
    """Pairs of rows (N, d), i < j, that are among each other's nearest neighbours, with their cosine."""
    import torch

    unit = torch.from_numpy(normalize_rows(vectors)).to(device)
    number = min(_NEIGHBOURS, len(unit) - 1)
    directed: dict[Edge, float] = {}
    for i in range(0, len(unit), _ROWS):
        cosines = unit[i : i + _ROWS] @ unit.T
        cosines.diagonal(i).fill_(-1.0)
        best = cosines.topk(number, dim=1)
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        for row, (near, values) in enumerate(rows, start=i):
            directed |= {(row, j): v for j, v in zip(near, values, strict=True) if v >= _MIN_COSINE}
    return {(i, j): cosine for (i, j), cosine in directed.items() if i < j and (j, i) in directed}


def cluster(
    forms: Mapping[str, Sequence[int]], edges: Mapping[Edge, float], *, vocab_size: int, seed: int
) -> I64:
    """The label of every id (vocab,): the lowest id of its cluster; ``edges`` connect forms by index."""
    labels = np.arange(vocab_size)
    ids = list(forms.values())
    clusters = [[i] for i in range(len(ids))] if not edges else _communities(len(ids), edges, seed)
    for members in clusters:
        tokens = [token for member in members for token in ids[member]]
        labels[tokens] = min(tokens)
    return labels


def _communities(count: int, edges: Mapping[Edge, float], seed: int) -> Iterable[list[int]]:
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_weighted_edges_from((i, j, weight) for (i, j), weight in sorted(edges.items()))
    for component in sorted(map(sorted, nx.connected_components(graph))):
        if len(component) <= _LARGEST_CLUSTER:
            yield component
            continue
        # a new graph with sorted nodes, so that the communities depend on the seed alone
        part = nx.Graph()
        part.add_nodes_from(component)
        part.add_edges_from(
            sorted((min(i, j), max(i, j), data) for i, j, data in graph.edges(component, data=True))
        )
        yield from map(sorted, nx.community.louvain_communities(part, seed=seed))


def _lexicon_edges(lexicon: Path, forms: dict[str, list[int]]) -> dict[Edge, float]:
    index = {form: i for i, form in enumerate(forms)}
    edges = {}
    for one, other in read_lexicon(lexicon):
        if one != other and one in index and other in index:
            i, j = sorted((index[one], index[other]))
            edges[i, j] = 1.0
    return edges


def _neighbour_edges(job: TrainingJob, forms: dict[str, list[int]]) -> dict[Edge, float]:
    """Nearest neighbours among the forms, by the mean vector of each form's tokens."""
    table = token_vectors(job.encoder, job.info, whitening=None, workspace=job.workspace)
    vectors = np.stack([table[ids].astype(np.float32).mean(axis=0) for ids in forms.values()])
    return near_pairs(vectors, device=torch_device(job.device))
