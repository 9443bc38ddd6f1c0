"""The contract of a host: prompts in, completions and log-likelihoods out.

`Host` validates the request, splits the work into batches and labels the result. An engine implements `info`
and `complete` (token ids of one batch), and where it can `complete_steps` (streaming), `complete_drafts`
(schemes that choose between sentences) and `next_logits` (schemes that run the host to detect, perplexity).
Boundary: no engine is imported here.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dewmark import config as cfg
from dewmark.capabilities import ChoosesDrafts, Drafts, capability, record
from dewmark.decoding import Decoding, check_int
from dewmark.errors import ConfigError, InputError, VocabularyError
from dewmark.room import Room, Written
from dewmark.scheme import BoundScheme, check_text
from dewmark.types import DraftCount, Generation
from dewmark.workspace import HostInfo

if TYPE_CHECKING:
    import torch

__all__ = [
    "ChatFormat",
    "Conversation",
    "Host",
    "Message",
    "check_conversation",
    "check_decoding",
    "generation_hash",
]

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # the decoding of an incomplete character

OnBatch = Callable[[list[Generation]], None]
OnStep = Callable[[list[int | None], Sequence[Room | None]], bool]

Message = Mapping[str, str]
"""``{"role": "system" | "user" | "assistant", "content": text}``"""

Conversation = Sequence[Message]


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a host is talked to: ``render`` makes a conversation its prompt, ``decoding`` is the host's own."""

    render: Callable[[Conversation], str]
    decoding: Decoding


class Host(ABC):
    """A language model that writes, marked or unmarked."""

    @property
    @abstractmethod
    def info(self) -> HostInfo:
        """The host's description for schemes."""

    context: int | None = None
    """How many tokens the model can read at once; None if it names no limit."""
    writes_drafts = False
    """Whether it can write a stretch of text several times (`Decoding.drafts`)."""

    @property
    def name(self) -> str:
        """The name it was loaded by."""
        return self.info.name

    @property
    def chat(self) -> ChatFormat:
        """The chat format; raises `ConfigError` for hosts that only continue text."""
        raise no_template(self.name)

    @property
    def device(self) -> torch.device:
        """Where the model runs; the CPU unless a host says otherwise."""
        import torch

        return torch.device("cpu")

    @abstractmethod
    def complete(
        self, prompts: Sequence[str], *, scheme: BoundScheme | None, seeds: Sequence[int], decoding: Decoding
    ) -> list[list[int]]:
        """Token ids of one batch of completions, without the prompts and end-of-text tokens.

        Rows may be `dewmark.room.Written`, which say how much room they left to the mark.
        """

    def complete_steps(
        self,
        prompts: Sequence[str],
        *,
        scheme: BoundScheme | None,
        seeds: Sequence[int],
        decoding: Decoding,
        on_step: OnStep,
    ) -> list[list[int]]:
        """As `complete`, calling ``on_step`` in every step; by default only once all texts are finished."""
        rows = self.complete(prompts, scheme=scheme, seeds=seeds, decoding=decoding)
        _replay(rows, on_step)
        return rows

    def complete_drafts(
        self, prompts: Sequence[str], *, drafts: Drafts, seeds: Sequence[int], decoding: Decoding
    ) -> list[tuple[list[int], DraftCount]]:
        """As `complete`, for schemes that choose between drafts of sentences; hosts need not support it."""
        raise ConfigError(
            f"{self.name} runs in an engine that writes no drafts of sentences: run it in transformers, or "
            "use a scheme that marks token by token"
        )

    def next_logits(
        self, prompts: Sequence[str], completions: Sequence[Sequence[int]]
    ) -> Iterator[torch.Tensor]:
        """For each completion of L ids the logits (L, vocab), float32, in order; hosts need not support it.

        Row i predicts id i from the prompt and the ids before it.
        """
        raise ConfigError(
            f"{self.name} runs in an engine that gives no logits for existing text: run it in transformers"
        )

    def log_likelihood(self, prompts: Sequence[str], texts: Sequence[str]) -> list[tuple[float, int]]:
        """For each completion the sum of its tokens' log-probabilities (nats) and the number of tokens.

        exp(−sum/number) is the completion's perplexity; the prompt is only context.
        """
        completions = [tokenized.ids for tokenized in self.info.tokenizer.encode(texts)]
        if len(prompts) != len(texts):
            raise InputError(f"{len(prompts)} prompts but {len(texts)} texts: give one prompt per text")
        # rows of similar length share a batch, which keeps padding low
        order = sorted(range(len(texts)), key=lambda i: (-len(prompts[i]) - len(texts[i]), i))
        rows = self.next_logits([prompts[i] for i in order], [completions[i] for i in order])
        found: dict[int, float] = {}
        for i, logits in zip(order, rows, strict=True):
            chosen = logits.log_softmax(dim=-1)[range(len(completions[i])), list(completions[i])]
            found[i] = float(chosen.double().sum())
        return [(found[i], len(ids)) for i, ids in enumerate(completions)]

    def check_prompts(  # noqa: B027 - a host without limits has nothing to check
        self, prompts: Sequence[str], max_new_tokens: int
    ) -> None:
        """Raise `InputError` for a prompt that the host cannot complete, before anything runs."""

    def generate(
        self,
        prompts: Sequence[str],
        *,
        scheme: BoundScheme | None,
        seeds: Sequence[int],
        decoding: Decoding = Decoding(),
        batch_size: int = 8,
        on_batch: OnBatch | None = None,
    ) -> list[Generation]:
        """Complete prompts, in order; ``scheme=None`` writes unmarked text.

        Each row has its own random stream, determined by its seed, so its text does not depend on the other
        rows of the batch (up to the engine's rounding, which shows in low-precision weights). ``on_batch``
        gets every batch as soon as it is finished.
        """
        check_int("batch_size", batch_size, least=1)
        self._check_request(prompts, scheme, seeds, decoding)
        marked_by = "none" if scheme is None else scheme.scheme.name
        config_hash = generation_hash(decoding, scheme, self.info)
        special = self.info.tokenizer.special_ids
        done: list[Generation] = []
        for start in range(0, len(prompts), batch_size):
            batch, batch_seeds = prompts[start : start + batch_size], seeds[start : start + batch_size]
            written = self._complete_batch(batch, scheme=scheme, seeds=batch_seeds, decoding=decoding)
            rows = [[token for token in row if token not in special] for row, _ in written]
            texts = self.info.tokenizer.decode(rows)
            record(scheme, texts, seeds=batch_seeds)
            columns = zip(batch, texts, rows, batch_seeds, written, strict=True)
            finished = []
            for prompt, text, row, seed, (ids, count) in columns:
                made = Generation(prompt, text, tuple(row), seed, marked_by, config_hash, count)
                room = _room_of(ids)
                if scheme is not None and room is not None:
                    made = dataclasses.replace(made, room=room.z, unmarked=scheme.unmarked_reason(room))
                finished.append(made)
            done.extend(finished)
            if on_batch is not None:
                on_batch(finished)
        return done

    def _complete_batch(
        self, prompts: Sequence[str], *, scheme: BoundScheme | None, seeds: Sequence[int], decoding: Decoding
    ) -> Sequence[tuple[list[int], DraftCount | None]]:
        """The ids of one batch of texts, and how many drafts each took."""
        if scheme is not None and scheme.needs.drafts:
            drafts = capability(scheme, ChoosesDrafts).drafts(prompts)
            return self.complete_drafts(prompts, drafts=drafts, seeds=seeds, decoding=decoding)
        rows = self.complete(prompts, scheme=scheme, seeds=seeds, decoding=decoding)
        return [(row, None) for row in rows]

    def stream(
        self,
        prompts: Sequence[str],
        *,
        scheme: BoundScheme | None,
        seeds: Sequence[int],
        decoding: Decoding,
        on_step: OnStep,
    ) -> None:
        """Write the texts of `generate` as one batch, reporting their ids to ``on_step`` as they are chosen.

        ``on_step`` gets every row's next id, or None once the row has ended, and the room that each row has
        left to the mark so far, and stops the batch by returning False.
        """
        self._check_request(prompts, scheme, seeds, decoding)
        if scheme is not None and (scheme.needs.drafts or decoding.drafts > 1):
            # what is reported is not taken back
            written = self._complete_batch(prompts, scheme=scheme, seeds=seeds, decoding=decoding)
            rows = [row for row, _ in written]
            _replay(rows, on_step)
        else:
            rows = self.complete_steps(
                prompts, scheme=scheme, seeds=seeds, decoding=decoding, on_step=on_step
            )
        record(scheme, self.info.tokenizer.decode(rows), seeds=seeds)

    def _check_request(
        self, prompts: Sequence[str], scheme: BoundScheme | None, seeds: Sequence[int], decoding: Decoding
    ) -> None:
        check_decoding(decoding, scheme)
        if isinstance(prompts, str):  # a sequence of one-letter prompts, to Python
            raise InputError("prompts must be a list of texts, got one text: put it in a list")
        if len(prompts) != len(seeds):
            raise InputError(f"{len(prompts)} prompts but {len(seeds)} seeds: give one seed per prompt")
        for i, prompt in enumerate(prompts):
            if not isinstance(prompt, str):
                raise InputError(f"prompt {i} must be a string, got {type(prompt).__name__}")
        for i, seed in enumerate(seeds):
            check_int(f"seed {i}", seed, least=0)
        if decoding.drafts > 1 and scheme is not None and not self.writes_drafts:
            raise ConfigError(
                f"{self.name} runs in an engine that cannot write {decoding.drafts} drafts of a text: run "
                "it in transformers, or leave drafts at 1"
            )
        if scheme is not None:
            theirs, ours = scheme.host, self.info
            if theirs.vocab_size != ours.vocab_size or theirs.tokenizer.identity != ours.tokenizer.identity:
                raise VocabularyError(
                    f"the scheme was built for {theirs.name} ({theirs.vocab_size} ids) and {ours.name} has "
                    f"another vocabulary ({ours.vocab_size} ids): load the scheme for this host"
                )
        self.check_prompts(prompts, decoding.max_new_tokens)


def stream_text(
    host: Host, prompt: str, *, scheme: BoundScheme | None, seed: int, decoding: Decoding
) -> Generator[str, None, str | None]:
    """The pieces of the text that `Host.generate` would return; closing the generator stops the host.

    No piece ends inside a character. Returns why the text counts as unmarked, None if it is marked.
    """
    pieces: queue.Queue[str | BaseException | None] = queue.Queue()
    stopped = threading.Event()
    decode, special = host.info.tokenizer.decode, host.info.tokenizer.special_ids
    ids: list[int] = []
    sent = 0
    room: Room | None = None

    def take(step: list[int | None], rooms: Sequence[Room | None]) -> bool:
        nonlocal room, sent
        (token,), (room,) = step, rooms
        if token is not None and token not in special:
            ids.append(token)
            text = decode([ids])[0]
            settled = len(text.rstrip(_UNFINISHED))
            if settled > sent:
                pieces.put(text[sent:settled])
                sent = settled
        return token is not None and not stopped.is_set()

    def run() -> None:
        try:
            host.stream([prompt], scheme=scheme, seeds=[seed], decoding=decoding, on_step=take)
            pieces.put(decode([ids])[0][sent:] or None)
            pieces.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again where the text is read
            pieces.put(error)

    thread = threading.Thread(target=run, name="streaming", daemon=True)
    thread.start()
    try:
        while (piece := pieces.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece
    finally:
        stopped.set()
        thread.join()
    return None if scheme is None else scheme.unmarked_reason(room)


def no_template(name: str) -> ConfigError:
    """The error for a host without a chat template."""
    return ConfigError(
        f"{name} has no chat template, so it takes no instructions: choose an instruction-tuned model, such "
        "as smollm2-135m or qwen2.5-coder-1.5b"
    )


def check_conversation(messages: object, what: str) -> Conversation:
    """Raise `InputError` unless ``messages`` is a conversation whose last message asks for an answer."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InputError(f'{what} must be a list of messages such as {{"role": "user", "content": "Hello"}}')
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(field), str) for field in ("role", "content")
        ):
            raise InputError(f"{what}: message {i} needs a role and a content, both strings")
        check_text(message["content"], f"{what}: message {i}")
    if messages[-1]["role"] == "assistant":
        raise InputError(f"{what} ends with the assistant's message: end with the user's")
    return messages


def check_decoding(decoding: Decoding, scheme: BoundScheme | None) -> None:
    """Raise `ConfigError` if the scheme cannot mark text that is decoded like this."""
    if scheme is not None and scheme.needs.sampling:
        decoding.check_samples(scheme.scheme.name)


def generation_hash(decoding: Decoding, scheme: BoundScheme | None, info: HostInfo) -> str:
    """Identifies what decides a text besides prompt and seed: scheme, key, policy, decoding, host."""
    marked = ["none"] if scheme is None else [scheme.config_hash]
    if scheme is not None and scheme.policy is not None:
        marked.append(scheme.policy.version)
    return cfg.config_hash(*marked, decoding.to_dict(), info.identity)


def _replay(rows: Sequence[Sequence[int]], on_step: OnStep) -> None:
    """Report finished rows step by step."""
    for step in range(max(map(len, rows), default=0) + 1):
        ids = [row[step] if step < len(row) else None for row in rows]
        if not on_step(ids, [_room_of(row) for row in rows]):
            return


def _room_of(row: Sequence[int]) -> Room | None:
    return row.room if isinstance(row, Written) else None
