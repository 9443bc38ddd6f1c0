"""The facade: one scheme on one host, to mark and to detect."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from dewmark.arguments import checked
from dewmark.capabilities import for_member
from dewmark.core.keys import Key
from dewmark.decoding import Decoding, DecodingOptions
from dewmark.detector import Detector, DetectsMarks
from dewmark.errors import ConfigError
from dewmark.hosts import chat_format, load_host
from dewmark.hosts.base import ChatFormat, Conversation, Host, OnBatch, check_conversation, stream_text
from dewmark.manifests import Signs, append_manifest, with_manifest
from dewmark.opening import DEFAULT_HOST, chosen_scheme, find_host, open_reader, open_workspace
from dewmark.policy import Policy
from dewmark.registry import Registry
from dewmark.scheme import BoundScheme
from dewmark.types import Generation, Seeds
from dewmark.workspace import HostInfo, Progress

if TYPE_CHECKING:
    from dewmark.opening import Reads

__all__ = ["DEFAULT_DECODING", "Watermark"]

_T = TypeVar("_T")

DEFAULT_DECODING = Decoding()
_REWRITERS = Registry(
    "way to mark existing texts", {}, group="dewmark.rewriters", companion="dewmark-rewrite"
)


@checked
class Watermark(DetectsMarks):
    """A scheme on a host: `generate` marks, `detect` finds the mark.

    Detection never runs the host, unless the scheme's needs say so (``host_at_detection``).
    """

    def __init__(
        self,
        key: Key,
        *,
        host: object = DEFAULT_HOST,
        tokenizer: object = None,
        scheme: str = "dew",
        settings: Mapping[str, Any] | None = None,
        reader: Reads = None,
        policy: Policy | None = None,
        provider: Signs | None = None,
        device: str = "auto",
        dtype: str = "auto",
        progress: Progress | None = None,
    ) -> None:
        """Bind a scheme, by name and ``settings``, to a key and a host; ``reader`` reads what is detected.

        ``policy`` says which parts of a text are left unmarked; without one, all is marked. ``provider``
        appends a signed manifest to every text. The weights of a host given by name are loaded when they are
        first needed.
        """
        # cached: a scheme that runs the host to detect shares it with `generate`
        load = functools.cache(functools.partial(load_host, device=device, dtype=dtype, progress=progress))
        info, self._open_host = find_host(host, tokenizer, load=load, progress=progress)
        self._named = info.name if isinstance(host, str | HostInfo) else None
        self._progress, self._reader, self.policy = progress, reader, policy
        self.provider = provider
        workspace = open_workspace(self._open_host, load=load, progress=progress)
        self.scheme: BoundScheme = chosen_scheme(scheme, settings, [key]).bind(key, info, workspace)

    @functools.cached_property
    def host(self) -> Host:
        """The host, loaded on first use."""
        return self._open_host()

    @functools.cached_property
    def chat_format(self) -> ChatFormat:
        """The host's chat template and its own decoding options; no weights are loaded for a named host."""
        return self.host.chat if self._named is None else chat_format(self._named, progress=self._progress)

    def marking(self, *, member: int | None = None, payload: int | None = None) -> BoundScheme:
        """The scheme as it marks: by a member of the key's ring, with a payload, under the policy."""
        return for_member(self.scheme, member=member, payload=payload).under_policy(self.policy)

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
        return self.generate_batch(
            _one(prompt),
            messages=_one(messages),
            seeds=None if seed is None else [seed],
            member=member,
            payload=payload,
            decoding=decoding,
            **options,
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
        pieces = stream_text(
            self.host,
            text,
            scheme=self.marking(member=member, payload=payload),
            seed=_drawn_seed() if seed is None else seed,
            decoding=self._decoding(decoding, chat=messages is not None, options=options),
        )
        return with_manifest(pieces, self.provider, self.host.name, self.scheme)

    def generate_batch(
        self,
        prompts: Sequence[str] | None = None,
        *,
        messages: Sequence[Conversation] | None = None,
        seeds: Seeds = None,
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
        made = self.host.generate(
            texts,
            scheme=self.marking(member=member, payload=payload),
            seeds=seeds if seeds is not None else [_drawn_seed() for _ in texts],
            decoding=self._decoding(decoding, chat=messages is not None, options=options),
            batch_size=batch_size,
            on_batch=on_batch,
        )
        return [append_manifest(each, self.provider, self.host.name, self.scheme) for each in made]

    def rewrite(self, text: str, **options: Any) -> Any:  # noqa: ANN401 - `dewmark_rewrite.Rewritten`
        """Mark a text that already exists, by changing few of its words (needs ``dewmark-rewrite``).

        ``options`` are those of `dewmark_rewrite.Options`, such as ``budget`` and ``target_p``.
        """
        return _REWRITERS["rewrite"](text, self, **options)

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

    @functools.cached_property
    def detecting(self) -> BoundScheme:
        """The scheme as it detects: with the reader, which is opened on first use."""
        return self.detector(reader=self._reader).scheme

    def detector(self, *, reader: Reads = None) -> Detector:
        """The detector for these marks, which can be saved; it needs no host weights unless a host reads.

        ``reader`` is a language model that predicts each word (a name, ``host`` for the one that writes, or
        ``none``), by default the watermark's own.
        """
        reader = self._reader if reader is None else reader
        if reader is None:
            return Detector(self.scheme)
        opened = open_reader(self.host if reader == "host" else reader, progress=self._progress)
        return Detector(self.scheme.reading_with(opened))


def _one(value: _T | None) -> list[_T] | None:
    return None if value is None else [value]


def _drawn_seed() -> int:
    return secrets.randbits(31)
