"""The Gumbel sampler: right over keys, seeded, unmarked as α vanishes, safe at extreme numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from tests.fakes import COMPOSED

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.dew.paper.scheme import DewPaper
from dewmark.dew.paper.texts import TokenTexts
from dewmark.errors import ConfigError
from dewmark.hosts.fake import FakeHost
from dewmark.sampling import warp
from dewmark.workspace import Workspace

GUMBEL = {**COMPOSED, "sampler": "gumbel"}
PROMPT = "the old bridge over the river"


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(400)


def bind(host: FakeHost, tmp_path, number: int = 0, **settings):
    key = Key(number.to_bytes(32, "big"))
    chosen = DewPaper().with_settings({**GUMBEL, **settings})
    return chosen.bind(key, host.info, Workspace(cache=tmp_path))


def chosen_token(session, ids: torch.Tensor, logits: torch.Tensor) -> list[int]:
    marked = session(ids, logits)
    assert (torch.isfinite(marked).sum(dim=1) == 1).all()
    return marked.argmax(dim=1).tolist()


@pytest.mark.parametrize("alpha", [0.25, 1.0])
def test_over_keys_the_choice_follows_the_model(host, bag_encoder, tmp_path, alpha) -> None:
    """Chi-square of 400 choices, each under a fresh key, against the model's own distribution.

    The tiny host's embeddings have 32 dimensions for 400 tokens, so candidates are correlated: three of
    them, mutually nearly orthogonal, hold all the probability here, as the exact statement needs.
    """
    ids = torch.tensor([host.info.tokenizer.encode([PROMPT])[0].ids])
    rows = np.asarray(bind(host, tmp_path).reader.token_rows, dtype=np.float32)
    gram = np.abs(rows[4:] @ rows[4:].T)
    first = 10
    second = int(gram[first].argmin())
    third = int((gram[first] + gram[second]).argmin())
    tokens = [4 + first, 4 + second, 4 + third]
    p = np.array([0.5, 0.3, 0.2])
    logits = torch.full((1, 400), -math.inf)
    logits[0, tokens] = torch.tensor(np.log(p), dtype=torch.float32)
    counts = np.zeros(3)
    for number in range(400):
        bound = bind(host, tmp_path, number, alpha=alpha)
        session = bound.session(ids, seeds=[number])
        counts[tokens.index(chosen_token(session, ids, logits)[0])] += 1
    assert stats.chisquare(counts, 400 * p).pvalue > 1e-3


def test_without_a_key_s_share_the_text_is_the_unmarked_one(host, bag_encoder, tmp_path) -> None:
    bound = bind(host, tmp_path, alpha=1e-12)
    options = {"seeds": [1, 2], "decoding": Decoding(max_new_tokens=40, temperature=0.9, top_p=0.95)}
    marked = host.generate([PROMPT] * 2, scheme=bound, **options)
    plain = host.generate([PROMPT] * 2, scheme=None, **options)
    assert [g.token_ids for g in marked] == [g.token_ids for g in plain]


def test_extreme_alignments_keep_their_order(host, bag_encoder, tmp_path, monkeypatch) -> None:
    """u = ±8 and α = 1: the race number −log Φ(u) must neither vanish nor overflow."""
    bound = bind(host, tmp_path, alpha=1.0)
    ids = torch.tensor([host.info.tokenizer.encode([PROMPT])[0].ids])
    u = torch.zeros(1, 256)
    u[0, :4] = torch.tensor([8.0, 7.5, -8.0, 3.0])

    def extreme(*_):
        return u

    monkeypatch.setattr(TokenTexts, "alignments", extreme)
    logits = torch.full((1, 400), -50.0)
    logits[0, 50:54] = torch.tensor([0.03, 0.02, 0.01, 0.0])  # the four likeliest, nearly equal
    assert chosen_token(bound.session(ids, seeds=[3]), ids, logits) == [50]
    u[0, :4] = torch.tensor([-8.0, 8.0, 7.5, 3.0])
    assert chosen_token(bound.session(ids, seeds=[3]), ids, logits) == [51]


def test_a_context_that_recurs_gets_fresh_noise(host, bag_encoder, tmp_path) -> None:
    """With α = 1 the same context always gives the same choice; fresh noise lets it vary."""
    loop = "the old bridge of the old bridge of the old bridge"
    ids = torch.tensor([host.info.tokenizer.encode([loop])[0].ids])
    logits = torch.zeros(1, 400)
    logits[0, :4] = -math.inf
    bound = bind(host, tmp_path, alpha=1.0, m=400)
    for text, distinct in ((ids[:, :5], 1), (ids, 20)):
        found = {chosen_token(bound.session(text, seeds=[s]), text, logits)[0] for s in range(40)}
        assert (len(found) >= distinct) if distinct > 1 else (len(found) == distinct)


def test_a_processor_warps_and_chooses(host, bag_encoder, tmp_path) -> None:
    bound = bind(host, tmp_path, alpha=0.5)
    ids = torch.tensor([host.info.tokenizer.encode([PROMPT])[0].ids])
    logits = torch.randn(1, 400, generator=torch.Generator().manual_seed(2)) * 3
    allowed = torch.isfinite(warp(logits, Decoding(temperature=0.7, top_k=5)))[0]
    for seed in range(20):
        processor = bound.processor(ids, seeds=[seed], decoding=Decoding(temperature=0.7, top_k=5))
        out = processor(ids, logits)
        assert torch.isfinite(out).sum() == 1
        assert allowed[int(out.argmax())]
    with pytest.raises(ConfigError, match="temperature"):
        bound.processor(ids, decoding=Decoding(temperature=0.0))
    with pytest.raises(ConfigError, match="temperature 0"):
        host.generate([PROMPT], scheme=bound, seeds=[1], decoding=Decoding(temperature=0.0))


@pytest.mark.parametrize("settings", [{"alpha": 0.0}, {"alpha": 1.5}, {"sampler": "greedy"}])
def test_settings_out_of_range_are_refused(settings) -> None:
    with pytest.raises(ConfigError):
        DewPaper().with_settings({**GUMBEL, **settings})
