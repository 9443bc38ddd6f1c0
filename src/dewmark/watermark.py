"""The facade: one scheme on one host, to mark and to detect."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from dewmark.config import cache_dir
from dewmark.core.keys import Key
from dewmark.decoding import Decoding, DecodingOptions
from dewmark.errors import ConfigError
from dewmark.hosts import host_info, info_from_model, load_host, wrap_model
from dewmark.registry import SCHEMES
from dewmark.scheme import DEFAULT_FPR, BoundScheme, Scheme
from dewmark.stats.multiple_testing import sidak_min
from dewmark.types import Attribution, Detection, Generation, Verdict
from dewmark.workspace import HostInfo, LanguageModel, Progress, Workspace, no_host, silent

if TYPE_CHECKING:
    from dewmark.hosts.base import Host

__all__ = ["DEFAULT_HOST", "Watermark", "attribute", "bind_scheme", "identify", "load_scheme"]

DEFAULT_HOST = "smollm2-135m"
DEFAULT_DECODING = Decoding(no_repeat_ngram=4)


def load_scheme(
    name: str = "dew",
    *,
    key: Key,
    host: object = None,
    tokenizer: object = None,
    progress: Progress | None = None,
    **settings: object,
) -> BoundScheme:
    """Join a scheme to a key and a host.

    ``host`` is a model's name, folder or hub id, a `HostInfo`, or a transformers model that is in memory
    already (then ``tokenizer`` is needed too). Without it a scheme that detects without any host is bound to
    none, every other to the default host. ``settings`` are the scheme's parameters.
    """
    return bind_scheme(key, scheme=name, settings=settings, host=host, tokenizer=tokenizer, progress=progress)


def bind_scheme(
    key: Key,
    *,
    scheme: str,
    settings: Mapping[str, Any],
    host: object = None,
    tokenizer: object = None,
    progress: Progress | None = None,
) -> BoundScheme:
    """`load_scheme` with the settings in a mapping, whatever their names."""
    load = functools.partial(load_host, progress=progress)
    chosen = SCHEMES[scheme]().with_settings(settings)
    bound: BoundScheme = chosen.bind(
        key, *_surroundings(_default(host, chosen), tokenizer=tokenizer, load=load, progress=progress)
    )
    return bound


def identify(
    texts: Sequence[str],
    keys: Sequence[Key],
    *,
    host: object = None,
    tokenizer: object = None,
    scheme: str = "dew",
    settings: Mapping[str, Any] | None = None,
    prompts: Sequence[str | None] | None = None,
    fpr: float = DEFAULT_FPR,
    test: str | None = None,
    progress: Progress | None = None,
) -> list[Attribution]:
    """Say for each text which of several keys (models, tenants) marked it, if any.

    Unmarked text depends on none of the keys, so its results under K keys are independent and the smallest
    p-value is corrected exactly: 1 − (1 − p)^K. Texts are read once, whatever the number of keys.
    """
    if not keys:
        raise ConfigError("no key to compare with: give at least one")
    load = functools.partial(load_host, progress=progress)
    chosen = SCHEMES[scheme]().with_settings(settings or {})
    info, workspace = _surroundings(_default(host, chosen), tokenizer=tokenizer, load=load, progress=progress)
    rows = chosen.detect_keys(keys, texts, info, workspace, prompts=prompts, fpr=fpr, test=test)
    return [attribute(row, fpr=fpr) for row in rows]


def attribute(detections: Sequence[Detection], *, fpr: float) -> Attribution:
    """One text's results under several keys, corrected for their number as in `identify`."""
    index = min(range(len(detections)), key=lambda i: (detections[i].p_value, -detections[i].z))
    best = detections[index]
    p_value = sidak_min(best.p_value, tests=len(detections))
    verdict = Verdict.MARKED if p_value < fpr else Verdict.NOT_MARKED
    if best.verdict is Verdict.TOO_SHORT:  # in whatever units the scheme counts
        verdict = Verdict.TOO_SHORT
    return Attribution(tuple(detections), index=index, p_value=p_value, verdict=verdict)


def _default(host: object, scheme: Scheme) -> object:
    """The host to bind to where none was named."""
    if host is not None:
        return host
    return no_host() if scheme.host_free else DEFAULT_HOST


def _surroundings(
    host: object, *, tokenizer: object, load: Callable[[str], LanguageModel], progress: Progress | None
) -> tuple[HostInfo, Workspace]:
    """What schemes see of a host; ``load`` opens weights by name, for schemes that run the host to detect."""
    if isinstance(host, HostInfo):
        info = host
    elif isinstance(host, str):
        info = host_info(host, progress=progress)
    elif tokenizer is None:
        raise ConfigError(f"a tokenizer is needed beside the {type(host).__name__} given as host")
    else:
        info = info_from_model(host, tokenizer)

    @functools.cache
    def open_host(other: str | None) -> LanguageModel:
        if other is None and not isinstance(host, (str, HostInfo)):
            return wrap_model(host, tokenizer, info)
        return load(other or info.name)

    return info, Workspace(
        cache=cache_dir(),
        progress=progress or silent,
        find_host=functools.partial(host_info, progress=progress),
        open_host=open_host,
    )


class Watermark:
    """A scheme on a host: `generate` marks, `detect` finds the mark.

    Detection never runs the host, unless the scheme's needs say so (``host_at_detection``).
    """

    def __init__(self, scheme: BoundScheme, open_host: Callable[[], Host]) -> None:
        """``open_host`` loads the host's weights; it is called when the first text is generated."""
        self.scheme = scheme
        self._open_host = open_host

    @classmethod
    def load(
        cls,
        key: Key,
        *,
        host: str = DEFAULT_HOST,
        scheme: str = "dew",
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        dtype: str = "auto",
        progress: Progress | None = None,
    ) -> Watermark:
        """A scheme by name on a host by name; the host's weights are loaded when they are first needed."""
        # cached: a scheme that runs the host to detect shares it with `generate`
        load = functools.cache(functools.partial(load_host, device=device, dtype=dtype, progress=progress))
        chosen = SCHEMES[scheme]().with_settings(settings or {})
        bound = chosen.bind(key, *_surroundings(host, tokenizer=None, load=load, progress=progress))
        return cls(bound, functools.partial(load, bound.host.name))

    @classmethod
    def from_default(cls, key: Key, **settings: object) -> Watermark:
        """DEW on SmolLM2-135M with a multilingual encoder, all from packages: no hub, no GPU."""
        return cls.load(key, settings=settings)

    @functools.cached_property
    def host(self) -> Host:
        """The host, loaded on first use."""
        return self._open_host()

    def generate(
        self,
        prompt: str,
        *,
        seed: int | None = None,
        decoding: Decoding = DEFAULT_DECODING,
        **options: Unpack[DecodingOptions],
    ) -> Generation:
        """Continue one prompt, marked; ``options`` (``max_new_tokens=…``) change fields of ``decoding``."""
        seeds = None if seed is None else [seed]
        return self.generate_batch([prompt], seeds=seeds, decoding=decoding, **options)[0]

    def generate_batch(
        self,
        prompts: Sequence[str],
        *,
        seeds: Sequence[int] | None = None,
        decoding: Decoding = DEFAULT_DECODING,
        batch_size: int = 8,
        on_batch: Callable[[list[Generation]], None] | None = None,
        **options: Unpack[DecodingOptions],
    ) -> list[Generation]:
        """Continue prompts, marked. A text depends on its own prompt and seed, not on the batch it is in."""
        return self.host.generate(
            prompts,
            scheme=self.scheme,
            seeds=seeds if seeds is not None else [secrets.randbits(31) for _ in prompts],
            decoding=dataclasses.replace(decoding, **options),
            batch_size=batch_size,
            on_batch=on_batch,
        )

    def detect(
        self, text: str, *, prompt: str | None = None, fpr: float = DEFAULT_FPR, test: str | None = None
    ) -> Detection:
        """Score one completion; a prompt, if known, serves as context only."""
        return self.scheme.detect(text, prompt=prompt, fpr=fpr, test=test)

    def detect_batch(
        self,
        texts: Sequence[str],
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[Detection]:
        """Score completions in one batch."""
        return self.scheme.detect_batch(texts, prompts=prompts, fpr=fpr, test=test)
