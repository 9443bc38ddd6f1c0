"""SimKey (Kodama et al. 2025): the seed of EXP's race is a SimHash of what the text said before.

The last tokens before a chunk of the text are decoded and embedded once; b keyed hyperplanes turn the vector
into b bits, k independent times. Each token is chosen by EXP's race under one of the k codes, picked anew:

    c_j = SimHash_j(e),    u_i = PRF(key, j, c_j, i),    next token = argmax_i u_i^(1/p_i).

A rewrite that keeps the meaning keeps most codes, and with them the numbers that chose its tokens.

Which code a token used is not known to the detector: it takes the largest u over the k of them (the least
cost −ln u). Over keys all numbers of different (j, c_j, token) are independent and uniform, also given the
hyperplanes. Only those that no earlier token of the text has shown count; of m such numbers the largest, to
the power m, is uniform again. So N tokens with something new give N independent uniforms v, for every text:
Σ −ln(1 − v) and Σ −ln v (the authors' cost) follow the Gamma law of shape N exactly.

Boundary: scoring, in numpy; `_simkey` marks.

Marking with SimKey: EXP's race under a code of the text before, which is embedded once per chunk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from scipy.special import gammainc

from dewmark.arrays import F64, I64
from dewmark.baselines.reweight.slots import Repeats, ReweightBound
from dewmark.baselines.sampling.race import RaceSession
from dewmark.baselines.token_schemes import TokenScheme, check, gamma_test, z_test
from dewmark.core.keys import KeyStream
from dewmark.encoders import load_encoder
from dewmark.encoders.base import Encoder
from dewmark.encoders.contexts import WindowContexts
from dewmark.sampling import RandomStreams, drawn_seeds
from dewmark.scheme import Needs, Session
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic
from dewmark.text.windows import windows_of
from dewmark.workspace import HostInfo, Tokenized, Tokenizer, Workspace

if TYPE_CHECKING:
    import torch

__all__ = ["BoundSimKey", "SimKey", "SimKeySession"]

_PURPOSE = 7  # sets the choice of codes apart from the rows' sampling noise


class SimKeySession(RaceSession):
    """Keeps the codes of the chunk that is being written, and the order in which its tokens use them."""

    def __init__(
        self,
        bound: BoundSimKey,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        seeds: Sequence[int] | None,
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._bound = bound
        self._choices = RandomStreams(
            drawn_seeds(len(prompt_ids), seeds), device=torch.device("cpu"), purpose=_PURPOSE
        )
        self._written = 0
        self._codes = self._order = torch.zeros((len(prompt_ids), bound.scheme.hashes), dtype=torch.int64)

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Windows (batch, h) and logits (batch, vocab) to logits with one finite entry per row."""
        hashes = self._bound.scheme.hashes
        chunk, place = divmod(self._written, self._bound.scheme.stride)
        self._written += 1
        if place == 0:
            self._codes = torch.from_numpy(self._bound.codes(windows.cpu().numpy()))
            # a random order: codes are picked evenly, and none twice before all were used
            self._order = self._choices.uniforms(chunk, hashes).argsort(dim=1)
        picked = self._order[:, place % hashes, None]
        contexts = torch.cat((picked, self._codes.gather(1, picked)), dim=1)
        return super().mark(contexts.to(windows.device), scores)


_MOST_BITS = 32


@dataclass(frozen=True)
class SimKey(TokenScheme):
    """EXP with seeds that follow the meaning of the text before."""

    name: ClassVar[str] = "simkey"
    summary: ClassVar[str] = "Gumbel-max sampling whose seed is a SimHash of the preceding text"
    needs: ClassVar[Needs] = Needs(final=True, encoder=True)

    hashes: int = 4
    """How many codes k a context has; each token uses one of them."""
    bits: int = 4
    """Hyperplanes b per code: fewer survive more rewriting, more repeat less often."""
    window: int = 8
    """How many tokens before a chunk are embedded."""
    stride: int = 4
    """Tokens per chunk: how many share one embedding."""
    repeats: Repeats = "keep"
    """Whether a code that occurred in the text before is keyed again (keep) or left to the host (skip)."""
    encoder: str = "use-m3"
    """The sentence encoder: use-m3, minilm, a folder or a hub id."""

    def validate(self) -> None:
        """Refuse values out of range."""
        check(
            (self.hashes >= 1, "hashes", "be at least 1", self.hashes),
            (1 <= self.bits <= _MOST_BITS, "bits", f"lie in 1 … {_MOST_BITS}", self.bits),
            (self.window >= 1, "window", "be at least 1", self.window),
            (self.stride >= 1, "stride", "be at least 1", self.stride),
        )

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundSimKey:
        """The scheme with its secret, a host's vocabulary and the encoder."""
        encoder = load_encoder(self.encoder, progress=workspace.progress)
        return BoundSimKey(self, host, fingerprint, secret=secret, encoder=encoder)


_shared: dict[tuple[str, str], WindowContexts] = {}


def _reading(encoder: Encoder, tokenizer: Tokenizer) -> WindowContexts:
    """No key enters a window's vector: all keys of a process read each window once."""
    name = (encoder.identity, tokenizer.identity)
    return _shared.setdefault(name, WindowContexts(encoder, tokenizer, None))


class BoundSimKey(ReweightBound):
    """SimKey for one key and one vocabulary. A token with something new scores −ln(1 − v) − 1."""

    tests = ("gamma", "cost")
    scheme: SimKey

    def __init__(
        self, scheme: SimKey, host: HostInfo, fingerprint: str, *, secret: bytes, encoder: Encoder
    ) -> None:
        super().__init__(
            scheme, host, fingerprint, secret=secret, prefix=scheme.window, repeats=scheme.repeats
        )
        self._contexts = _reading(encoder, host.tokenizer)
        seed = hashlib.blake2b(key=secret, person=b"planes", digest_size=32).digest()
        # (dim, k·b): the bits of one code lie side by side
        self._planes = KeyStream(seed).normals(scheme.hashes * scheme.bits, encoder.dim).T
        self._places = 1 << np.arange(scheme.bits, dtype=np.int64)

    def codes(self, windows: I64) -> I64:
        """Windows (N, h) of ids to their codes (N, k)."""
        signs = (self._contexts.vectors(windows) @ self._planes) > 0.0
        codes: I64 = signs.reshape(len(windows), self.scheme.hashes, self.scheme.bits) @ self._places
        return codes

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length); ``seeds`` decide which code a token uses."""
        return SimKeySession(self, prompt_ids, attention_mask, seeds=seeds)

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """−ln(1 − u) − 1 of pairs of contexts (N, 2), a code's number and its value, and tokens (N,)."""
        return -np.log1p(-self.hash.uniforms(contexts, tokens)) - 1.0

    def evidence(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Evidence]:
        """−ln(1 − v) − 1 for each token of the texts that shows a number no earlier token did."""
        return self.evidence_for("gamma", texts, prompts)

    def evidence_for(
        self, test: str, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]
    ) -> list[Evidence]:
        """For ``cost`` the scores 1 + ln v, for the others −ln(1 − v) − 1."""
        codes, cuts = self._all_codes(texts, prompts)
        found = []
        for text, prompt, mine in zip(texts, prompts, np.split(codes, cuts), strict=True):
            log_v, positions = self._uniforms(text, prompt, mine)
            scores = 1.0 + log_v if test == "cost" else -np.log(-np.expm1(log_v)) - 1.0
            found.append(Evidence.independent(scores, np.ones(len(scores)), positions))
        return found

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """The exact law of the sum: its upper tail, or for ``cost`` the lower tail of Σ −ln v."""
        if test != "cost":
            return gamma_test(evidence)
        n = len(evidence)
        if n == 0:
            return NOTHING
        p_value = float(gammainc(n, max(n - evidence.total, 0.0)))
        return Statistic(z_test(evidence).z, p_value, float(n))

    def _all_codes(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> tuple[I64, I64]:
        """The codes of all texts' chunks, embedded at once, and where each text but the first begins."""
        windows = []
        for text, prompt in zip(texts, prompts, strict=True):
            before = prompt.ids[-self.width :]
            mine = windows_of(before + text.ids, k=self.width, host=self.host)[len(before) :]
            windows.append(mine[:: self.scheme.stride])
        if not windows:
            return np.zeros((0, self.scheme.hashes), dtype=np.int64), np.zeros(0, dtype=np.int64)
        return self.codes(np.concatenate(windows)), np.cumsum([len(mine) for mine in windows])[:-1]

    def _uniforms(self, text: Tokenized, prompt: Tokenized, codes: I64) -> tuple[F64, I64]:
        """ln v of the N tokens that count, and for each token (L,) which of them it is, or -1.

        ``codes`` (chunks, k) are those of the text's chunks.
        """
        k = self.scheme.hashes
        tokens = np.array(text.ids, dtype=np.int64)
        scored = np.append(self.markable, False)[np.minimum(tokens, len(self.markable))]
        starts = np.arange(len(tokens)) // self.scheme.stride * self.scheme.stride
        if not prompt.ids:
            scored &= starts >= self.width  # other windows began in the prompt
        at = np.flatnonzero(scored)
        positions = np.full(len(tokens), -1, dtype=np.int64)
        if not len(at):
            return np.zeros(0), positions
        # one row (j, c_j, token) per number that a token may have used, in the order of the text
        mine = codes[at // self.scheme.stride]
        rows = np.stack(
            (np.broadcast_to(np.arange(k), mine.shape), mine, np.repeat(tokens[at, None], k, 1)), 2
        )
        rows = rows.reshape(-1, 3)
        new = np.zeros(len(rows), dtype=bool)
        new[np.unique(rows, axis=0, return_index=True)[1]] = True
        u = np.zeros(len(rows))
        u[new] = self.hash.uniforms(rows[new, :2], rows[new, 2])
        m = new.reshape(-1, k).sum(axis=1)
        counts = m > 0
        positions[at[counts]] = np.arange(int(counts.sum()))
        return m[counts] * np.log(u.reshape(-1, k).max(axis=1)[counts]), positions
