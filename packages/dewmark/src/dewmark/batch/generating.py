"""Completions for a file of prompts or conversations, marked or not: `generate_file`.

Row i of the output is prompt i's completion, drawn with seed S + i in batches that the order of the prompts
fixes. A run that was stopped at any byte resumes to the same file (`dewmark.storage.ResumableRows`).
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import secrets
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark import hosts
from dewmark.batch.inputs import Prompt, read_prompts
from dewmark.decoding import Decoding, DecodingOptions
from dewmark.errors import ConfigError
from dewmark.hosts.base import ChatFormat, Host, check_decoding, generation_hash, stream_text
from dewmark.manifests import Signs, append_manifest, with_manifest
from dewmark.opening import DEFAULT_HOST
from dewmark.scheme import BoundScheme
from dewmark.storage import ResumableRows, first_row
from dewmark.types import DraftCount, Generation
from dewmark.watermark import DEFAULT_DECODING, Watermark
from dewmark.workspace import HostInfo, Progress, silent

_SEEDS = 2**31  # a drawn seed stays readable


@dataclass(frozen=True)
class TextWriter:
    """A host that writes, marked by ``scheme`` or, if that is None, unmarked.

    ``open_host`` loads the host's weights; it is called when the first text is written. ``open_chat`` finds
    the host's chat format without them. ``provider`` signs the texts.
    """

    scheme: BoundScheme | None
    info: HostInfo
    open_host: Callable[[], Host]
    open_chat: Callable[[], ChatFormat]
    provider: Signs | None = None

    @classmethod
    def marked(
        cls, watermark: Watermark, *, member: int | None = None, payload: int | None = None
    ) -> TextWriter:
        """A writer of marked text, by a member of the key's ring and with a payload."""
        scheme = watermark.marking(member=member, payload=payload)
        open_host, open_chat = (lambda: watermark.host), (lambda: watermark.chat_format)
        return cls(scheme, scheme.host, open_host, open_chat, watermark.provider)

    @classmethod
    def unmarked(
        cls,
        host: str | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        provider: Signs | None = None,
        progress: Progress | None = None,
    ) -> TextWriter:
        """A writer of unmarked text: a host by name."""
        name = host or DEFAULT_HOST
        open_host = functools.partial(hosts.load_host, name, device=device, dtype=dtype, progress=progress)
        open_chat = functools.partial(hosts.chat_format, name, progress=progress)
        return cls(None, hosts.host_info(name, progress=progress), open_host, open_chat, provider)

    @functools.cached_property
    def host(self) -> Host:
        """The host, with its weights loaded."""
        return self.open_host()

    @functools.cached_property
    def chat(self) -> ChatFormat:
        """The host's chat format; raises `ConfigError` if it has none."""
        return self.open_chat()

    def decoding(self, options: DecodingOptions, *, chat: bool = False) -> Decoding:
        """``options`` on top of the host's own ones in chat, and of `DEFAULT_DECODING` otherwise."""
        return dataclasses.replace(self.chat.decoding if chat else DEFAULT_DECODING, **options)

    def prompt(self, prompt: Prompt) -> str:
        """The text that the host continues: the prompt, or its conversation in the host's template."""
        return prompt.text if prompt.messages is None else self.chat.render(prompt.messages)

    def stream(self, prompt: str, *, seed: int, decoding: Decoding) -> Generator[str, None, str | None]:
        """The text of `write`, piece by piece; returns why it counts as unmarked."""
        pieces = stream_text(self.host, prompt, scheme=self.scheme, seed=seed, decoding=decoding)
        return with_manifest(pieces, self.provider, self.host.name, self.scheme)

    def write(
        self, prompts: Sequence[str], *, seeds: Sequence[int], decoding: Decoding, batch_size: int = 8
    ) -> list[Generation]:
        """Continue prompts."""
        made = self.host.generate(
            prompts, scheme=self.scheme, seeds=seeds, batch_size=batch_size, decoding=decoding
        )
        return [append_manifest(each, self.provider, self.host.name, self.scheme) for each in made]


@dataclass(frozen=True)
class GenerateResult:
    """What a run wrote: ``rows`` in all, of which ``resumed_from`` were there before.

    ``seed`` is row 0's seed. ``drafts`` adds up the new rows' counts, if the scheme chooses between drafts,
    and ``unmarked`` is how many new rows left no room to their mark.
    """

    out: Path
    rows: int
    resumed_from: int
    seed: int
    config_hash: str
    drafts: DraftCount | None = None
    unmarked: int = 0


def generate_file(
    prompts: str | Path | Sequence[Prompt],
    out: str | Path,
    writer: TextWriter | Watermark,
    *,
    decoding: Decoding | None = None,
    chat: bool | None = None,
    seed: int | None = None,
    batch_size: int = 8,
    progress: Progress = silent,
) -> GenerateResult:
    """Continue the prompts, or answer the conversations, of a JSONL file into a JSONL file.

    A stopped run is resumed. ``chat`` is as in `read_prompts`. Without ``decoding``, prompts are continued as
    in `Watermark.generate`, and conversations are answered as the host's generation_config says. Without a
    ``seed`` a resumed run takes the file's own and a new one draws it. A file that was written with another
    configuration is rejected, and left untouched.
    """
    writer = TextWriter.marked(writer) if isinstance(writer, Watermark) else writer
    out = Path(out)
    if isinstance(prompts, str | Path):
        if out.exists() and out.samefile(prompts):
            raise ConfigError(f"the output is the prompts file {prompts} itself: choose another name")
        prompts = read_prompts(Path(prompts), chat=chat)
    if decoding is None:
        decoding = writer.decoding({}, chat=any(prompt.messages is not None for prompt in prompts))
    check_decoding(decoding, writer.scheme)
    rendered = [writer.prompt(prompt) for prompt in prompts]
    config_hash = generation_hash(decoding, writer.scheme, writer.info)
    if seed is None:
        found = (first_row(out) or {}).get("seed")
        seed = found if isinstance(found, int) else secrets.randbelow(_SEEDS)
    scheme = "none" if writer.scheme is None else writer.scheme.scheme.name
    drafts = {"drafts": ...} if writer.scheme is not None and writer.scheme.needs.drafts else {}

    def expected(i: int) -> dict[str, Any]:
        measured = {"marked": ..., "unmarked": ..., "room": ...}
        known = {"seed": seed + i, "scheme": scheme, "config_hash": config_hash, **measured, **drafts}
        return {**_asked(prompts[i]), "prompt": rendered[i], "text": ..., "tokens": ..., **known}

    file = ResumableRows(out, len(prompts), batch_size=batch_size, expected=expected)
    resumed_from = file.done
    if file.done < file.total:
        # all of them now: a prompt that is too long must not stop a run half-way
        writer.host.check_prompts(rendered, decoding.max_new_tokens)
    description = f"writing {out.name}"
    progress(description, file.done, file.total)
    counts: list[DraftCount] = []
    unmarked = 0
    for batch in file.pending():
        texts, seeds = [rendered[i] for i in batch], [seed + i for i in batch]
        made = writer.write(texts, seeds=seeds, decoding=decoding, batch_size=batch_size)
        file.append([completion_row(prompts[i], each) for i, each in zip(batch, made, strict=True)])
        counts += [each.drafts for each in made if each.drafts is not None]
        unmarked += sum(each.unmarked is not None for each in made)
        progress(description, file.done, file.total)
    total = functools.reduce(operator.add, counts) if counts else None
    return GenerateResult(out, file.total, resumed_from, seed, config_hash, total, unmarked)


def completion_row(prompt: Prompt, generation: Generation) -> dict[str, Any]:
    """A completion as a row of JSON; it never contains the key.

    The answer to a conversation has its messages, and as ``prompt`` the text that the host continued.
    """
    drafts = {} if generation.drafts is None else {"drafts": generation.drafts.to_dict()}
    return {
        **_asked(prompt),
        "prompt": generation.prompt,
        "text": generation.text,
        "tokens": generation.tokens,
        "seed": generation.seed,
        "scheme": generation.scheme,
        "config_hash": generation.config_hash,
        "marked": generation.marked,
        "unmarked": generation.unmarked,
        "room": None if generation.room is None else round(generation.room, 1),
        **drafts,
    }


def _asked(prompt: Prompt) -> dict[str, Any]:
    if prompt.messages is None:
        return {"id": prompt.id}
    return {"id": prompt.id, "messages": [dict(message) for message in prompt.messages]}
