"""Completions for a file of prompts, marked or not: `generate_file`.

Row i of the output is prompt i's completion, drawn with seed S + i in batches that the order of the prompts
fixes. A run that was stopped at any byte resumes to the same file (`dewmark.storage.ResumableRows`).
"""

from __future__ import annotations

import functools
import operator
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark import hosts
from dewmark.batch.inputs import Prompt, read_prompts
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.hosts.base import Host, check_decoding, generation_hash
from dewmark.scheme import BoundScheme
from dewmark.storage import ResumableRows, first_row
from dewmark.types import DraftCount, Generation
from dewmark.watermark import DEFAULT_DECODING, DEFAULT_HOST, Watermark
from dewmark.workspace import HostInfo, Progress, silent

__all__ = ["GenerateResult", "TextWriter", "completion_row", "generate_file"]

_SEEDS = 2**31  # a drawn seed stays readable


class TextWriter:
    """A host that writes, marked by ``scheme`` or, if that is None, unmarked.

    ``open_host`` loads the host's weights; it is called when the first text is written.
    """

    def __init__(self, scheme: BoundScheme | None, info: HostInfo, open_host: Callable[[], Host]) -> None:
        self.scheme = scheme
        self.info = info
        self._open_host = open_host

    @classmethod
    def marked(cls, watermark: Watermark) -> TextWriter:
        """A writer of marked text."""
        return cls(watermark.scheme, watermark.scheme.host, lambda: watermark.host)

    @classmethod
    def unmarked(
        cls,
        host: str | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        progress: Progress | None = None,
    ) -> TextWriter:
        """A writer of unmarked text: a host by name."""
        name = host or DEFAULT_HOST
        open_host = functools.partial(hosts.load_host, name, device=device, dtype=dtype, progress=progress)
        return cls(None, hosts.host_info(name, progress=progress), open_host)

    @functools.cached_property
    def host(self) -> Host:
        """The host, with its weights loaded."""
        return self._open_host()

    def write(
        self, prompts: Sequence[str], *, seeds: Sequence[int], decoding: Decoding, batch_size: int = 8
    ) -> list[Generation]:
        """Continue prompts."""
        return self.host.generate(
            prompts, scheme=self.scheme, seeds=seeds, batch_size=batch_size, decoding=decoding
        )


@dataclass(frozen=True)
class GenerateResult:
    """What a run wrote: ``rows`` in all, of which ``resumed_from`` were there before.

    ``seed`` is row 0's seed. ``drafts`` adds up the new rows' counts, if the scheme chooses between drafts.
    """

    out: Path
    rows: int
    resumed_from: int
    seed: int
    config_hash: str
    drafts: DraftCount | None = None


def generate_file(
    prompts: str | Path | Sequence[Prompt],
    out: str | Path,
    writer: TextWriter | Watermark,
    *,
    decoding: Decoding = DEFAULT_DECODING,
    seed: int | None = None,
    batch_size: int = 8,
    progress: Progress = silent,
) -> GenerateResult:
    """Continue the prompts of a JSONL file into a JSONL file; a stopped run is resumed.

    Without a ``seed`` a resumed run takes the file's own and a new one draws it. A file that was written with
    another configuration is rejected, and left untouched.
    """
    writer = TextWriter.marked(writer) if isinstance(writer, Watermark) else writer
    check_decoding(decoding, writer.scheme)
    out = Path(out)
    if isinstance(prompts, str | Path):
        if out.exists() and out.samefile(prompts):
            raise ConfigError(f"the output is the prompts file {prompts} itself: choose another name")
        prompts = read_prompts(Path(prompts))
    config_hash = generation_hash(decoding, writer.scheme, writer.info)
    if seed is None:
        found = (first_row(out) or {}).get("seed")
        seed = found if isinstance(found, int) else secrets.randbelow(_SEEDS)
    scheme = "none" if writer.scheme is None else writer.scheme.scheme.name
    drafts = {"drafts": ...} if writer.scheme is not None and writer.scheme.needs.drafts else {}

    def expected(i: int) -> dict[str, Any]:
        known = {"seed": seed + i, "scheme": scheme, "config_hash": config_hash, **drafts}
        return {"id": prompts[i].id, "prompt": prompts[i].text, "text": ..., "tokens": ..., **known}

    file = ResumableRows(out, len(prompts), batch_size=batch_size, expected=expected)
    resumed_from = file.done
    if file.done < file.total:
        # all of them now: a prompt that is too long must not stop a run half-way
        writer.host.check_prompts([prompt.text for prompt in prompts], decoding.max_new_tokens)
    description = f"writing {out.name}"
    progress(description, file.done, file.total)
    counts: list[DraftCount] = []
    for batch in file.pending():
        texts, seeds = [prompts[i].text for i in batch], [seed + i for i in batch]
        made = writer.write(texts, seeds=seeds, decoding=decoding, batch_size=batch_size)
        file.append([completion_row(prompts[i].id, each) for i, each in zip(batch, made, strict=True)])
        counts += [each.drafts for each in made if each.drafts is not None]
        progress(description, file.done, file.total)
    total = functools.reduce(operator.add, counts) if counts else None
    return GenerateResult(out, file.total, resumed_from, seed, config_hash, total)


def completion_row(name: str | int, generation: Generation) -> dict[str, Any]:
    """A completion as a row of JSON; it never contains the key."""
    drafts = {} if generation.drafts is None else {"drafts": generation.drafts.to_dict()}
    return {
        "id": name,
        "prompt": generation.prompt,
        "text": generation.text,
        "tokens": generation.tokens,
        "seed": generation.seed,
        "scheme": generation.scheme,
        "config_hash": generation.config_hash,
        **drafts,
    }
