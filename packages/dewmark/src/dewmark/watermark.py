"""The facade: one scheme on one host, to mark and to detect."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Unpack

from dewmark.config import cache_dir
from dewmark.core.keys import Key
from dewmark.decoding import Decoding, DecodingOptions
from dewmark.detector import Detector, DetectsMarks, Reads
from dewmark.errors import ConfigError
from dewmark.hosts import chat_format, host_info, info_from_model, load_host, wrap_model
from dewmark.hosts.base import ChatFormat, Conversation, Host, OnBatch, check_conversation
from dewmark.hosts.expectations import open_reader
from dewmark.hosts.streaming import stream_text
from dewmark.registry import SCHEMES
from dewmark.scheme import DEFAULT_FPR, BoundScheme, Scheme
from dewmark.stats.multiple_testing import sidak_min
from dewmark.text.languages import LanguagePolicy
from dewmark.types import Attribution, Detection, Generation, Verdict
from dewmark.workspace import Expectations, HostInfo, Progress, Workspace, no_host, silent

__all__ = ["DEFAULT_DECODING", "DEFAULT_HOST", "Watermark", "attribute", "identify", "load_scheme"]

_T = TypeVar("_T")

DEFAULT_HOST = "smollm2-135m"
DEFAULT_DECODING = Decoding()


class Watermark(DetectsMarks):
    """A scheme on a host: `generate` marks, `detect` finds the mark.

    Detection never runs the host, unless the scheme's needs say so (``host_at_detection``).
    """

    def __init__(
        self,
        model: object = DEFAULT_HOST,
        tokenizer: object = None,
        *,
        key: Key,
        scheme: str = "dew",
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        dtype: str = "auto",
        progress: Progress | None = None,
    ) -> None:
        """Bind a scheme, by name and ``settings``, to a key and a model.

        ``model`` is a host's name, a `Host`, or a transformers model in memory with its ``tokenizer``. The
        weights of a host given by name are loaded when they are first needed, with ``device`` and ``dtype``.
        """
        # cached: a scheme that runs the host to detect shares it with `generate`
        load = functools.cache(functools.partial(load_host, device=device, dtype=dtype, progress=progress))
        info, self._open_host = _find_host(model, tokenizer, load=load, progress=progress)
        self._named = info.name if isinstance(model, str | HostInfo) else None
        self._progress = progress
        workspace = _workspace(self._open_host, load=load, progress=progress)
        chosen = SCHEMES[scheme]().with_settings(settings or {})
        chosen.check_key(key)
        self.scheme: BoundScheme = chosen.bind(key, info, workspace)

    @classmethod
    def from_default(cls, key: Key, **settings: object) -> Watermark:
        """DEW on SmolLM2-135M with a multilingual encoder, all from packages: no hub, no GPU."""
        return cls(key=key, settings=settings)

    @functools.cached_property
    def host(self) -> Host:
        """The host, loaded on first use."""
        return self._open_host()

    @functools.cached_property
    def chat_format(self) -> ChatFormat:
        """The host's chat template and its own decoding options; no weights are loaded for a named host."""
        return self.host.chat if self._named is None else chat_format(self._named, progress=self._progress)

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Conversation | None = None,
        seed: int | None = None,
        member: int | None = None,
        payload: int | None = None,
        decoding: Decoding | None = None,
        **options: Unpack[DecodingOptions],
    ) -> Generation:
        """Continue one prompt or answer a conversation, marked.

        ``messages`` are dicts with ``role`` and ``content``, which the host's chat template makes a prompt.
        Without ``decoding``, a prompt is continued at temperature 1 and a conversation is answered as the
        host's generation_config says; ``options`` such as ``max_new_tokens`` override either. ``member`` of
        the key's ring marks the text, by default the one that the seed chooses, and it carries ``payload``.
        """
        (text,) = self._prompts(_one(prompt), _one(messages))
        return self.host.generate(
            [text],
            scheme=self._writing(member, payload),
            seeds=[_drawn_seed() if seed is None else seed],
            decoding=self._decoding(decoding, chat=messages is not None, options=options),
        )[0]

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Conversation | None = None,
        seed: int | None = None,
        member: int | None = None,
        payload: int | None = None,
        decoding: Decoding | None = None,
        **options: Unpack[DecodingOptions],
    ) -> Iterator[str]:
        """The text of `generate`, piece by piece as it is written."""
        (text,) = self._prompts(_one(prompt), _one(messages))
        return stream_text(
            self.host,
            text,
            scheme=self._writing(member, payload),
            seed=_drawn_seed() if seed is None else seed,
            decoding=self._decoding(decoding, chat=messages is not None, options=options),
        )

    def generate_batch(
        self,
        prompts: Sequence[str] | None = None,
        *,
        messages: Sequence[Conversation] | None = None,
        seeds: Sequence[int] | None = None,
        member: int | None = None,
        payload: int | None = None,
        decoding: Decoding | None = None,
        batch_size: int = 8,
        on_batch: OnBatch | None = None,
        **options: Unpack[DecodingOptions],
    ) -> list[Generation]:
        """Continue prompts, or answer conversations, as `generate` does.

        A text depends on its own prompt and seed, not on its batch.
        """
        texts = self._prompts(prompts, messages)
        return self.host.generate(
            texts,
            scheme=self._writing(member, payload),
            seeds=seeds if seeds is not None else [_drawn_seed() for _ in texts],
            decoding=self._decoding(decoding, chat=messages is not None, options=options),
            batch_size=batch_size,
            on_batch=on_batch,
        )

    def _writing(self, member: int | None, payload: int | None) -> BoundScheme:
        return self.scheme.marking_as(member=member, payload=payload)

    def _prompts(
        self, prompts: Sequence[str] | None, conversations: Sequence[Conversation] | None
    ) -> Sequence[str]:
        if (prompts is None) == (conversations is None):
            raise ConfigError("give either a prompt to continue or messages to answer")
        if conversations is None:
            return prompts or []
        return [
            self.chat_format.render(check_conversation(messages, f"conversation {i}"))
            for i, messages in enumerate(conversations)
        ]

    def _decoding(self, decoding: Decoding | None, *, chat: bool, options: DecodingOptions) -> Decoding:
        if decoding is None:
            decoding = self.chat_format.decoding if chat else DEFAULT_DECODING
        return dataclasses.replace(decoding, **options)

    def detector(self, *, reader: Reads = None) -> Detector:
        """The detector for these marks, which can be saved; it needs no host weights unless a host reads."""
        return Detector(self._read_by(reader))

    def _open_reader(self, reader: Reads) -> Expectations | None:
        return open_reader(self.host if reader == "host" else reader, progress=self._progress)


def load_scheme(
    name: str = "dew",
    *,
    key: Key,
    host: object = None,
    tokenizer: object = None,
    settings: Mapping[str, Any] | None = None,
    reader: Reads = None,
    progress: Progress | None = None,
    **more_settings: object,
) -> BoundScheme:
    """Bind a scheme to a key and a host.

    ``host`` is a host's name, a `HostInfo`, a `Host`, or a transformers model in memory with its
    ``tokenizer``. Without it, a scheme that detects without a host is bound to none, and any other to the
    default host. The scheme's parameters come as a mapping or as further keyword arguments. ``reader`` is a
    language model that reads the texts to be detected, by name (``host`` is the host) or as a `Host`.
    """
    chosen = SCHEMES[name]().with_settings({**(settings or {}), **more_settings})
    chosen.check_key(key)
    expectations = _open_reader(chosen, reader, host, tokenizer, progress)
    bound: BoundScheme = chosen.bind(key, *_surroundings(chosen, host, tokenizer, progress))
    return bound if expectations is None else bound.reading_with(expectations)


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
    languages: LanguagePolicy | None = None,
    reader: Reads = None,
    progress: Progress | None = None,
) -> list[Attribution]:
    """Say for each text which of several keys (models, tenants) marked it, if any.

    Unmarked text does not depend on any key, so its results under K keys are independent and the smallest
    p-value is corrected exactly: 1 − (1 − p)^K. Each text is read once, however many keys there are.
    ``languages`` says which languages get verdicts; by default those that the scheme's encoder knows.
    ``reader`` is as in `load_scheme`.
    """
    if not keys:
        raise ConfigError("no key to compare with: give at least one")
    chosen = SCHEMES[scheme]().with_settings(settings or {})
    for key in keys:
        chosen.check_key(key)
    expectations = _open_reader(chosen, reader, host, tokenizer, progress)
    info, workspace = _surroundings(chosen, host, tokenizer, progress)
    workspace = dataclasses.replace(workspace, expectations=expectations)
    rows = chosen.detect_keys(keys, texts, info, workspace, prompts=prompts, fpr=fpr, test=test)
    policy = languages or LanguagePolicy(known=chosen.languages, every=chosen.language_free)
    return [
        attribute([language.applied(detection) for detection in row], fpr=fpr)
        for language, row in zip(policy.read(texts), rows, strict=True)
    ]


def attribute(detections: Sequence[Detection], *, fpr: float) -> Attribution:
    """One text's results under several keys, corrected for their number as in `identify`."""
    index = min(range(len(detections)), key=lambda i: (detections[i].p_value, -detections[i].z))
    best = detections[index]
    p_value = sidak_min(best.p_value, tests=len(detections))
    verdict = Verdict.MARKED if p_value <= fpr else Verdict.NOT_MARKED
    if not best.verdict.conclusive:  # too short, in whatever units the scheme counts, or refused
        verdict = best.verdict
    return Attribution(tuple(detections), index=index, p_value=p_value, verdict=verdict)


def _surroundings(
    scheme: Scheme, host: object, tokenizer: object, progress: Progress | None
) -> tuple[HostInfo, Workspace]:
    """The host and workspace to bind a scheme to."""
    if host is None:
        host = no_host() if scheme.host_free else DEFAULT_HOST
    load = functools.partial(load_host, progress=progress)
    info, open_own = _find_host(host, tokenizer, load=load, progress=progress)
    return info, _workspace(open_own, load=load, progress=progress)


def _open_reader(
    scheme: Scheme, reader: Reads, host: object, tokenizer: object, progress: Progress | None
) -> Expectations | None:
    """The reader for a scheme; an error before anything else is opened if it has no use for one."""
    if reader == "host" and host is not None and not isinstance(host, str):
        reader = _find_host(host, tokenizer, load=load_host, progress=progress)[1]()
    own = host if isinstance(host, str) else DEFAULT_HOST
    expectations = open_reader(reader, host=own, progress=progress)
    scheme.check_reader(expectations)
    return expectations


def _one(value: _T | None) -> list[_T] | None:
    return None if value is None else [value]


def _drawn_seed() -> int:
    return secrets.randbits(31)


def _find_host(
    host: object, tokenizer: object, *, load: Callable[[str], Host], progress: Progress | None
) -> tuple[HostInfo, Callable[[], Host]]:
    """A host's description, and a function that gives the host itself."""
    if isinstance(host, Host):
        return host.info, lambda: host
    if isinstance(host, HostInfo):
        return host, functools.partial(load, host.name)
    if isinstance(host, str):
        info = host_info(host, progress=progress)
        return info, functools.partial(load, info.name)
    if tokenizer is None:
        raise ConfigError(f"a {type(host).__name__} in memory needs its tokenizer: give that too")
    info = info_from_model(host, tokenizer)
    return info, functools.partial(wrap_model, host, tokenizer, info)


def _workspace(
    open_own: Callable[[], Host], *, load: Callable[[str], Host], progress: Progress | None
) -> Workspace:
    @functools.cache
    def open_host(name: str | None) -> Host:
        return open_own() if name is None else load(name)

    return Workspace(
        cache=cache_dir(),
        progress=progress or silent,
        find_host=functools.partial(host_info, progress=progress),
        open_host=open_host,
    )
