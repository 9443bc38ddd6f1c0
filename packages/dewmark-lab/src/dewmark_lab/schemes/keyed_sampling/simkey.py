"""SimKey (Kodama et al. 2025): EXP's keyed race, seeded by a SimHash of the preceding text.

The last tokens before each chunk of text are decoded and embedded once. Keyed hyperplanes turn the vector
into k codes of b bits, and each token is chosen by EXP's race under one of them, picked anew.

The detector does not know which, so it takes the largest u over the k codes. Over keys, the numbers of
different (j, c_j, token) are independent and uniform, also given the hyperplanes. Only numbers that no
earlier token of the text has shown count; of m such numbers the largest, to the power m, is uniform again.
So N tokens with something new give N independent uniforms v, for every text: Σ −ln(1 − v) and Σ −ln v (the
authors' cost) follow Gamma(N) exactly.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from scipy.special import gammainc

from dewmark.arrays import F64, I64
from dewmark.core.keys import KeyStream
from dewmark.encoders import load_encoder
from dewmark.encoders.base import Encoder
from dewmark.encoders.contexts import WindowContexts
from dewmark.sampling import RandomStreams
from dewmark.scheme import Needs
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import Texts, Tokenized, Tokenizer, Workspace
from dewmark_lab.schemes.distortion_free import DistortionFreeBound, Repeats
from dewmark_lab.schemes.independent_sums import gamma_test, z_test
from dewmark_lab.schemes.keyed_sampling.exp import RaceSession
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenScheme

_MAX_BITS = 32
_PURPOSE = 7  # separates the choice of codes from the rows' sampling noise

_window_contexts: dict[tuple[str, str], WindowContexts] = {}


class BoundSimKey(DistortionFreeBound):
    """SimKey for one key and one vocabulary. A token that shows a new number scores −ln(1 − v) − 1."""

    tests = ("gamma", "cost")
    scheme: SimKey

    def prepare(self, workspace: Workspace) -> None:
        """The codes of contexts, for which the encoder is loaded."""
        scheme, encoder = self.scheme, load_encoder(self.scheme.encoder, progress=workspace.progress)
        self.width, self.repeats = scheme.window, scheme.repeats
        self.contexts = _shared_contexts(encoder, self.host.tokenizer)
        seed = hashlib.blake2b(key=self._secret, person=b"planes", digest_size=32).digest()
        # (dim, k·b): the bits of one code are adjacent
        self._planes = KeyStream(seed).normals(scheme.hashes * scheme.bits, encoder.dim).T

    def codes(self, windows: I64) -> I64:
        """The SimHash of windows of ids (N, h): the codes (N, k) of the texts in them."""
        digits = (self.contexts.vectors(windows) @ self._planes > 0.0).astype(np.int64)
        places = 1 << np.arange(self.scheme.bits)
        codes: I64 = digits.reshape(len(windows), self.scheme.hashes, self.scheme.bits) @ places
        return codes

    def start_session(self, prompts: PromptBatch) -> SimKeySession:
        return SimKeySession(prompts, self)

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """−ln(1 − u) − 1 for contexts (N, 2), a code's index and value, and tokens (N,)."""
        return -np.log1p(-self.pair_hash.uniforms(contexts, tokens)) - 1.0

    def evidence_of(self, texts: Texts, prompts: Texts, test: str | None) -> list[Evidence]:
        """1 + ln v for ``cost``, else −ln(1 − v) − 1, of each token that shows a new number."""
        codes, cuts = self._all_codes(texts, prompts)
        found = []
        for text, prompt, mine in zip(texts, prompts, np.split(codes, cuts), strict=True):
            log_v, positions = self._uniforms(text, prompt, mine)
            scores = 1.0 + log_v if test == "cost" else -np.log(-np.expm1(log_v)) - 1.0
            found.append(Evidence.independent(scores, np.ones(len(scores)), positions))
        return found

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """The exact distribution of the sum: its upper tail, or for ``cost`` the lower tail of Σ −ln v."""
        if test != "cost":
            return gamma_test(evidence)
        n = len(evidence)
        if n == 0:
            return NOTHING
        p_value = float(gammainc(n, max(n - evidence.total, 0.0)))
        return Statistic(z_test(evidence).z, p_value, float(n))

    def _all_codes(self, texts: Texts, prompts: Texts) -> tuple[I64, I64]:
        """The codes of all texts' chunks, embedded in one call, and where each text but the first begins."""
        windows = [
            self.windows(text, prompt)[:: self.scheme.stride]
            for text, prompt in zip(texts, prompts, strict=True)
        ]
        if not windows:
            return np.zeros((0, self.scheme.hashes), dtype=np.int64), np.zeros(0, dtype=np.int64)
        return self.codes(np.concatenate(windows)), np.cumsum([len(mine) for mine in windows])[:-1]

    def _uniforms(self, text: Tokenized, prompt: Tokenized, codes: I64) -> tuple[F64, I64]:
        """ln v of the N tokens that count, and for each token (L,) which of them it is, or -1.

        ``codes`` (chunks, k) are those of the text's chunks.
        """
        k = self.scheme.hashes
        tokens = np.array(text.ids, dtype=np.int64)
        scored = self.scorable(tokens)
        starts = np.arange(len(tokens)) // self.scheme.stride * self.scheme.stride
        if not prompt.ids:
            scored &= starts >= self.width  # earlier windows began in the prompt
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
        u[new] = self.pair_hash.uniforms(rows[new, :2], rows[new, 2])
        m = new.reshape(-1, k).sum(axis=1)
        counts = m > 0
        positions[at[counts]] = np.arange(int(counts.sum()))
        return m[counts] * np.log(u.reshape(-1, k).max(axis=1)[counts]), positions


@dataclass(frozen=True)
class SimKey(TokenScheme):
    """EXP with seeds that follow the meaning of the preceding text."""

    name: ClassVar[str] = "simkey"
    summary: ClassVar[str] = "Gumbel-max sampling whose seed is a SimHash of the preceding text"
    needs: ClassVar[Needs] = Needs(final_distribution=True, encoder=True)
    bound = BoundSimKey

    hashes: Annotated[int, "at least 1"] = 4
    """Number of codes k per context; each token uses one of them."""
    bits: Annotated[int, f"in [1, {_MAX_BITS}]"] = 4
    """Hyperplanes b per code: fewer survive more rewriting, more repeat less often."""
    window: Annotated[int, "at least 1"] = 8
    """Number of tokens before a chunk that are embedded."""
    stride: Annotated[int, "at least 1"] = 4
    """Tokens per chunk, which share one embedding."""
    repeats: Repeats = "keep"
    """Whether a code seen before in the text is keyed again (keep) or left to the host (skip)."""
    encoder: str = "use-m3"
    """Sentence encoder: use-m3, minilm, a folder or a hub id."""


class SimKeySession(RaceSession):
    """Keeps the codes of the current chunk, and the order in which its tokens use them."""

    def __init__(self, prompts: PromptBatch, bound: BoundSimKey) -> None:
        super().__init__(prompts, bound)
        self._codes_of = bound.codes
        self._hashes, self._stride = bound.scheme.hashes, bound.scheme.stride
        self._choices = RandomStreams(self._seeds, device=torch.device("cpu"), purpose=_PURPOSE)
        self._written = 0
        self._codes = self._order = torch.zeros(0, dtype=torch.int64)

    def contexts(self, windows: torch.Tensor) -> torch.Tensor:
        """The index and value (batch, 2) of the code that keys each row's race."""
        chunk, place = divmod(self._written, self._stride)
        self._written += 1
        if place == 0:
            self._codes = torch.from_numpy(self._codes_of(windows.cpu().numpy()))
            # a random order: codes are picked evenly, none twice before all are used
            self._order = self._choices.uniforms(chunk, self._hashes).argsort(dim=1)
        picked = self._order[:, place % self._hashes, None]
        return torch.cat((picked, self._codes.gather(1, picked)), dim=1).to(windows.device)


def _shared_contexts(encoder: Encoder, tokenizer: Tokenizer) -> WindowContexts:
    """The vectors of windows depend on no key: all keys in a process share one cache."""
    name = (encoder.identity, tokenizer.identity)
    return _window_contexts.setdefault(name, WindowContexts(encoder, tokenizer, None))
