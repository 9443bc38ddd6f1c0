"""DEW's parameters."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

from dewmark.config import check_rules
from dewmark.core.projections import Kind
from dewmark.encoders.lexicon import lexicon_languages
from dewmark.errors import ConfigError
from dewmark.scheme import Needs, Scheme

DEFAULT_ENCODER = "use-m3"
Mode = Literal["both", "context_only", "token_only", "neither"]


@dataclass(frozen=True)
class DewSettings(Scheme):
    """DEW's parameters. Names and defaults are the paper's where it has them."""

    name: ClassVar[str] = "dew"
    summary: ClassVar[str] = "dual-embedding watermark: keyed alignment of token and context meaning"
    needs: ClassVar[Needs] = Needs(embeddings=True, encoder=True)

    units: Literal["token", "word"] = "word"
    """What is scored: the host's tokens (the paper), or words, which are detected without the host."""
    sampler: Literal["bias", "gumbel"] = "gumbel"
    """How the mark is embedded: a bias on the logits (the paper), or keyed noise in Gumbel sampling (ours).
    """
    vocabulary: Literal["lexicon", "open"] | None = None
    """Which words carry a mark: those of a fixed lexicon, whose vectors are a table, or any word, which is
    encoded when it first occurs. By default the lexicon where there is one for the encoder."""
    lexicon: str = "default"
    """The lexicon: ``default``, which has the default encoder's vectors, or a folder written by
    ``dewmark models lexicon build``."""
    form_share: float = 0.0
    """Share β of a word's vector that comes from its spelling instead of its meaning (with a lexicon)."""
    decorrelate: int = 32
    """How many of the likeliest candidates of the Gumbel sampler get independent noise, so that averaged over
    keys the next word follows the host's distribution exactly; 0 for none (with a lexicon)."""
    lambda_: float | None = None
    """Strength λ of the bias: the most that a logit can gain. The Gumbel sampler adds it to its keyed noise.
    By default 2 with the bias or on words of a lexicon, else 0."""
    alpha: float | None = None
    """Share of the Gumbel sampler's randomness that comes from the key; by default 0.95 on words of a
    lexicon, 0.8 where other words carry the mark only once, else 0.5."""
    fresh_on_repeat: bool = True
    """Whether the Gumbel sampler ignores the key where a text repeats a context word for word."""
    gamma: float = 0.5
    """Saturation γ: how fast tanh(γu) reaches its limits."""
    k: int = 3
    """Context width: how many tokens (or words) before the scored one."""
    m: int | None = None
    """How many of the likeliest candidates are scored; by default 32 with a bias, 256 with Gumbel."""
    nucleus: float | None = None
    """If set, bias the smallest set of candidates with this much probability instead of the top m."""
    n: int | None = None
    """Projection dimensionality; by default max(d_T, d_C), for orthogonal projections lcm(d_T, d_C)."""
    projection: Literal["gaussian", "orthogonal", "full"] | None = None
    """The key's matrices: Gaussian R_T and R_C (section 3.1 of the paper, the default for tokens), the
    isometric blocks of its appendix B, or one full matrix W (the default for words), an exact law."""
    mode: Mode = "both"
    """Which meanings are used: both, or one of the paper's ablations."""
    context_encoding: Literal["composed", "window"] = "composed"
    """How a context is embedded: the mean of its tokens' vectors, or the encoder run on its text (the paper).
    """
    whiten_contexts: bool = True
    """Whether context vectors are whitened (ours) or used as they come (the paper)."""
    encoder: str = DEFAULT_ENCODER
    """The context encoder M_C: a packaged name, a folder, or a hub id of a sentence-transformers model."""
    statistics: str = "default"
    """Whitening statistics of the contexts: ``default``, or a folder written by ``dewmark models fit``."""
    whiten_tokens: bool = True
    """Whether token embeddings are whitened (the paper does)."""
    word_centre: Literal["running", "rare"] = "running"
    """The mean subtracted from word vectors: that of running text, for the stronger mark, or of rare words.
    """
    subtract_text_mean: bool = True
    """Whether the key test subtracts the text's mean unit from each: what all texts of a language share."""
    count_once: bool | None = None
    """Whether a word carries the mark only at its first occurrence in a text (a frequent word at its first
    four); by default for words with the Gumbel sampler."""
    flatten: float | None = 1.75
    """With a full key matrix, how many times the root mean square of all directions one direction of the
    text's evidence may have before the key test cuts it; None for no limit."""
    score: Literal["tanh", "linear"] | None = None
    """What the key test sums: tanh(γu), the default with a bias, or u itself, the default with Gumbel."""
    donor: str | None = None
    """Another model whose input embeddings replace the host's (appendix C.2)."""

    def validate(self) -> None:
        """Reject values out of range."""
        check_rules(
            (self.lambda_ is None or self.lambda_ >= 0.0, "lambda", "be at least 0", self.lambda_),
            (self.sampler == "gumbel" or self.strength > 0.0, "lambda", "be positive", self.lambda_),
            (0.0 <= self.form_share < 1.0, "form_share", "lie in [0, 1)", self.form_share),
            (0 <= self.decorrelate <= 64, "decorrelate", "lie between 0 and 64", self.decorrelate),
            (self.gamma > 0.0, "gamma", "be positive", self.gamma),
            (self.k >= 1, "k", "be at least 1", self.k),
            (self.alpha is None or 0.0 < self.alpha <= 1.0, "alpha", "lie in (0, 1]", self.alpha),
            (self.m is None or self.m >= 1, "m", "be at least 1", self.m),
            (self.nucleus is None or 0.0 < self.nucleus <= 1.0, "nucleus", "lie in (0, 1]", self.nucleus),
            (self.n is None or self.n >= 2, "n", "be at least 2", self.n),
            (self.flatten is None or self.flatten >= 1.0, "flatten", "be at least 1", self.flatten),
        )
        if self.units == "word" and (self.mode != "both" or self.donor is not None):
            what = f"mode={self.mode}" if self.mode != "both" else f"donor={self.donor}"
            raise ConfigError(f"{what} concerns the host's token table, which units=word does not use")
        if self.vocabulary == "lexicon" and self.units == "word" and not self._listed:
            raise ConfigError(
                f"the default lexicon has the vectors of {DEFAULT_ENCODER} and its default statistics: name "
                "another (dewmark models lexicon build), or set vocabulary=open"
            )
        if self.form_share and not self.uses_lexicon:
            raise ConfigError(
                "form_share concerns the words of a lexicon; set units=word, vocabulary=lexicon"
            )
        if self.units == "token" and self.count_once:
            raise ConfigError("count_once=true concerns words; set units=word")
        if self.units == "token" and self.projection == "full":
            raise ConfigError("projection=full is for units=word; tokens take gaussian or orthogonal")

    @property
    def needs_as_set(self) -> Needs:
        """The Gumbel sampler draws the token, so it must see the final distribution."""
        return dataclasses.replace(self.needs, final_distribution=self.sampler == "gumbel")

    @property
    def host_free(self) -> bool:
        """Words are found without the host's tokenizer."""
        return self.units == "word"

    @property
    def candidates(self) -> int:
        """How many of the likeliest candidates are scored."""
        return self.m if self.m is not None else 256 if self.sampler == "gumbel" else 32

    @property
    def language_free(self) -> bool:
        """Whether unrelated texts of any language are nearly uncorrelated under one key.

        Measured for the whole of the default only: docs/results/one-key.md.
        """
        return self.counts_once and self.flattens and self.subtract_text_mean

    @property
    def uses_lexicon(self) -> bool:
        """Whether units are words of a lexicon."""
        return self.units == "word" and self.vocabulary != "open" and self._listed

    @property
    def _listed(self) -> bool:
        """Whether there is a lexicon with the vectors of this encoder and these statistics."""
        shipped = self.encoder == DEFAULT_ENCODER and self.statistics == "default"
        return shipped or self.lexicon != "default"

    @property
    def languages(self) -> frozenset[str] | None:
        """The languages of the lexicon's words, or else those of the encoder."""
        return lexicon_languages(self.lexicon) if self.uses_lexicon else super().languages

    @property
    def strength(self) -> float:
        """λ of the bias."""
        if self.lambda_ is not None:
            return self.lambda_
        return 2.0 if self.sampler == "bias" or self.uses_lexicon else 0.0

    @property
    def keyed_share(self) -> float:
        """The share of the Gumbel sampler's randomness that comes from the key."""
        if self.alpha is not None:
            return self.alpha
        return 0.95 if self.uses_lexicon else 0.8 if self.counts_once else 0.5

    @property
    def scores_linearly(self) -> bool:
        """Whether the key test sums u itself."""
        return self.score == "linear" or (self.score is None and self.sampler == "gumbel")

    @property
    def key_matrix(self) -> Kind:
        """How the key's matrices are drawn."""
        return self.projection or ("full" if self.units == "word" else "gaussian")

    @property
    def counts_once(self) -> bool:
        """Whether a word carries the mark only where it is new."""
        if self.count_once is not None:
            return self.count_once
        return self.units == "word" and self.sampler == "gumbel"

    @property
    def flattens(self) -> bool:
        """Whether the key test limits the directions of a text's evidence."""
        return self.flatten is not None and self.key_matrix == "full" and self.scores_linearly

    @property
    def by_matrix(self) -> bool:
        """Whether a text's evidence under any key is a product with one matrix, `text_matrix`."""
        return self.key_matrix == "full" and self.scores_linearly and self.mode == "both"

    @property
    def attributes(self) -> bool:
        """Whether coordinates are ordered by how soon a forger learns them, as those of a lexicon are."""
        return self.by_matrix and self.uses_lexicon

    @property
    def reads_rings(self) -> bool:
        """Whether the key may have members, payloads and epochs."""
        return self.by_matrix

    @property
    def takes_reader(self) -> bool:
        """Whether μ, what a language model expected in each place, can replace the text's mean unit.

        It must be mapped by the key like the units, so their rows must be neither normalised nor saturated.
        """
        return self.units == "word" and self.by_matrix and self.subtract_text_mean

    @property
    def token_semantics(self) -> bool:
        """Whether similar tokens get similar scores."""
        return self.mode in ("both", "token_only")

    @property
    def context_semantics(self) -> bool:
        """Whether similar contexts give similar scores."""
        return self.mode in ("both", "context_only")
