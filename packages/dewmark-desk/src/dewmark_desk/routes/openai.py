"""``/v1/completions``, ``/v1/chat/completions`` and ``/v1/models``: marked text for OpenAI's clients.

Supports the fields of OpenAI's API that concern a marked completion, ``response_format`` and ``tools``: such
answers follow their grammar, and are marked where it leaves a choice. Fields that would change the text in a
way that this service does not offer (penalties, ``logit_bias``) are rejected unless they have their neutral
value, and so are unknown fields: nothing is ignored. A service with a certificate appends a signed manifest
to every text, except to JSON and tool calls. A token writes with its own tenant's key; members and
seeds follow from the whole request (`examining`). Every finished text says whether it is ``marked``, and if
not why (``unmarked``): at temperature 0, top_k 1 and the like there is no choice to put a mark into
(``greedy``; such requests can be refused), and others may leave too little (``no_room``, `dewmark.room`). A
policy (`dewmark.policy`) leaves parts of texts unmarked; its log says which, and holds no text.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import anyio
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from dewmark.decoding import Decoding
from dewmark.errors import DewmarkError, MissingExtraError
from dewmark.policy import Policy
from dewmark.scheme import check_text
from dewmark.storage import append_jsonl
from dewmark.watermark import DEFAULT_DECODING
from dewmark_desk import json_grammar
from dewmark_desk.api_tokens import Caller, Scope
from dewmark_desk.examining import seeds_of
from dewmark_desk.generation import GenerationRequest, TextGenerator, TextStream
from dewmark_desk.http_errors import INTERNAL, ApiError, error_body
from dewmark_desk.routes.dependencies import CallerOf, Desk, GuardedRoute, RequestId, guarded
from dewmark_desk.routes.tool_calls import (
    Function,
    Strict,
    Tool,
    ToolCall,
    ToolChoice,
    description,
    grammar_of_tools,
    offered,
    tool_call,
)
from dewmark_desk.service import Service
from dewmark_desk.text_manifest import SignedAnswers

router = APIRouter(prefix="/v1", tags=["generation"], route_class=GuardedRoute)

_COMPLETION_TOKENS = 16  # OpenAI's default
_CHAT_TOKENS = 256
_STARTED = int(time.time())
_CLIENT_GONE = 499  # nobody sees it; the log does

T = TypeVar("T")
Kind = Literal["text", "chat"]
Json = dict[str, Any]


def _not_tiny(temperature: float) -> float:
    """Dividing logits by a tiny temperature overflows."""
    if 0.0 < temperature < 0.01:
        raise ValueError("temperature must be 0 or at least 0.01")
    return temperature


Temperature = Annotated[float, Field(ge=0.0, le=2.0), AfterValidator(_not_tiny)]
Zero = Annotated[float, Field(ge=0.0, le=0.0)]
Stop = Annotated[str, Field(min_length=1, max_length=200)]


class _Schema(Strict):
    name: str | None = Field(None, max_length=64)
    description: str | None = Field(None, max_length=4000)
    strict: bool | None = None
    schema_: Json = Field(alias="schema")


class _Format(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None

    def grammar(self) -> str | None:
        """What an answer must look like, or None."""
        if self.type == "text":
            return None
        if self.type == "json_schema" and self.json_schema is None:
            raise ApiError(422, "invalid_request", "response_format.json_schema: give the schema")
        try:
            return json_grammar.grammar_of(
                {"type": "object"} if self.json_schema is None else self.json_schema.schema_
            )
        except MissingExtraError as error:
            raise ApiError(422, "invalid_request", f"response_format: {error}") from None


class _Request(Strict):
    model: str = Field(max_length=500)
    tenant: str | None = Field(
        None, max_length=64, description="Whose key marks; only for tokens of several tenants."
    )
    payload: int | None = Field(None, ge=0, lt=1 << 16, description="The message that the text carries.")
    user: str | None = Field(None, max_length=500)
    mark: bool | None = Field(None, description="false asks for an unmarked text, where that is allowed.")
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    logit_bias: Annotated[Json, Field(max_length=0)] | None = None
    response_format: _Format | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: Temperature | None = None
    top_p: float | None = Field(None, ge=1e-6, le=1.0)
    n: int | None = Field(None, ge=1, le=8)
    seed: int | None = Field(None, ge=0, lt=1 << 62)
    stop: Stop | Annotated[list[Stop], Field(max_length=4, fail_fast=True)] | None = None
    stream: bool | None = None
    stream_options: Json | None = None

    def decoding(self, max_new_tokens: int, default: Decoding) -> Decoding:
        """``default`` with the options that the request states."""
        return dataclasses.replace(
            default,
            max_new_tokens=max_new_tokens,
            temperature=default.temperature if self.temperature is None else self.temperature,
            top_p=default.top_p if self.top_p is None else self.top_p,
        )

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop sequences."""
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with token counts."""
        return bool((self.stream_options or {}).get("include_usage"))


class CompletionRequest(_Request):
    """Texts to continue."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=8, fail_fast=True)]
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    logprobs: Literal[0] | None = None
    suffix: None = None


class Part(BaseModel):
    """A part of a message; only text is supported."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Field(max_length=1000, fail_fast=True)] | None = None
    tool_calls: list[ToolCall] | None = Field(None, max_length=64, fail_fast=True)

    @property
    def text(self) -> str:
        """The text of all parts, and the calls that the assistant wrote."""
        parts = self.content or ""
        said = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return "\n".join([*filter(None, [said]), *(each.text for each in self.tool_calls or ())])


class ChatRequest(_Request):
    """A conversation to continue."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=1000, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: Literal[False] | None = None
    tools: Annotated[list[Tool], Field(max_length=64, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = Field(None, description="An answer has at most one call.")

    @property
    def functions(self) -> list[Function]:
        """The functions that may be called."""
        return offered(self.tools, self.tool_choice)


@router.get("/models", **guarded("The model that generates", None, Scope.GENERATE, errors=(404,)))
async def list_models(service: Desk) -> JSONResponse:
    """OpenAI's list of models."""
    name = _generator(service).name
    model = {"id": name, "object": "model", "created": _STARTED, "owned_by": "dewmark"}
    return JSONResponse({"object": "list", "data": [model]})


@router.post("/completions", **guarded("Continue texts, marked", None, Scope.GENERATE))
async def completions(
    body: CompletionRequest, request: Request, service: Desk, caller: CallerOf, request_id: RequestId
) -> Response:
    """OpenAI's completions; every text carries the mark of the token's tenant.

    This is for trying the mark out: a request waits until the batch before it has ended. Serve with vLLM.
    """
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    tokens = body.max_tokens or _COMPLETION_TOKENS
    return await _respond(body, request, prompts, tokens, "text", service, caller, request_id)


@router.post("/chat/completions", **guarded("Answer in a conversation, marked", None, Scope.GENERATE))
async def chat_completions(
    body: ChatRequest, request: Request, service: Desk, caller: CallerOf, request_id: RequestId
) -> Response:
    """OpenAI's chat completions; every answer carries the mark of the token's tenant.

    This is for trying the mark out: a request waits until the batch before it has ended. Serve with vLLM.
    """
    generator = _generator(service)
    messages = [
        {"role": "user" if message.role == "tool" else message.role, "content": message.text}
        for message in body.messages
    ]
    functions = body.functions
    told = await service.in_thread(description, functions) if functions else ""
    _check_size([*(message["content"] for message in messages), told], service)
    if told:
        if messages[0]["role"] == "system":
            told = f"{messages.pop(0)['content']}\n\n{told}"
        messages.insert(0, {"role": "system", "content": told})
    for i, message in enumerate(messages):
        if message["content"].strip():
            check_text(message["content"], f"message {i}")
    prompt = await service.in_thread(generator.chat.render, messages)
    tokens = body.max_completion_tokens or body.max_tokens or _CHAT_TOKENS
    return await _respond(body, request, [prompt], tokens, "chat", service, caller, request_id)


async def _respond(
    body: CompletionRequest | ChatRequest,
    request: Request,
    prompts: list[str],
    tokens: int,
    kind: Kind,
    service: Service,
    caller: Caller,
    request_id: str,
) -> Response:
    generator = _generator(service)
    if body.model != generator.name:
        raise ApiError(404, "model_not_found", "no such model: see /v1/models")
    tenant = _writer(generator, caller, body.tenant)
    _check_size(prompts, service)
    limit = service.settings.max_new_tokens
    if tokens > limit:
        raise ApiError(422, "invalid_request", f"max_tokens must be at most {limit}")
    decoding = body.decoding(tokens, generator.chat.decoding if kind == "chat" else DEFAULT_DECODING)
    said = {**body.model_dump(exclude={"stream", "stream_options", "user", "mark"}), "tenant": tenant}
    said["seed"] = secrets.token_hex(16) if body.seed is None else body.seed
    calls = isinstance(body, ChatRequest) and bool(body.functions)
    grammar = await _grammar(body, service, caller)
    exempt = _exempt(body, decoding, tenant, service)
    unsigned = body.response_format is not None and body.response_format.type != "text"
    manifests = [None if unsigned else _manifest(service, tenant, marked=each) for each in (True, False)]
    signed = SignedAnswers(*manifests)
    each = [prompt for prompt in prompts for _ in range(body.n or 1)]
    seeds = await service.in_thread(seeds_of, service.seed_secret, said, len(each))
    wanted = [
        GenerationRequest(
            prompt,
            tenant,
            seed=seed,
            decoding=decoding,
            stop=body.stops,
            payload=body.payload,
            owner=caller.id,
            marked=exempt is None,
            exempt=exempt,
            grammar=grammar,
        )
        for prompt, seed in zip(each, seeds, strict=True)
    ]
    request.state.marked = exempt is None

    def check() -> int:
        for i, prompt in enumerate(prompts):
            if prompt.strip():
                check_text(prompt, f"prompt {i}")
        for one in wanted:
            generator.check(one)
        return sum(map(generator.count_tokens, prompts))

    prompt_tokens = await service.in_thread(check)
    head = {
        "id": f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{request_id}",
        "object": "chat.completion" if kind == "chat" else "text_completion",
        "created": int(time.time()),
        "model": generator.name,
        "system_fingerprint": generator.writers[tenant].config_hash if exempt is None else None,
        "marked": exempt is None,
    }
    async with service.charged(caller, len(wanted), size=sum(len(prompt.encode()) for prompt in prompts)):
        streams = generator.submit(wanted)
    if body.stream:
        if kind == "chat":
            head["object"] = "chat.completion.chunk"
        prompt_count = prompt_tokens if body.wants_usage else None
        events = _events(
            head, kind, streams, service, request_id, signed, calls=calls, prompt_tokens=prompt_count
        )
        return StreamingResponse(events, media_type="text/event-stream")
    try:
        texts = await _while_connected(request, asyncio.gather(*map(_whole, streams)))
    finally:
        await _finish(streams, service, request_id)
    if texts is None:
        return Response(status_code=_CLIENT_GONE)
    choices = [
        {
            **_choice(
                kind, index, text, stream.reason, tool_call(text, _call_id(head, index)) if calls else None
            ),
            **_said_of_mark(generator, stream),
        }
        for index, (text, stream) in enumerate(zip(texts, streams, strict=True))
    ]
    head["marked"] = request.state.marked = all(choice["marked"] for choice in choices)
    answer = {**head, "choices": choices, "usage": _usage(prompt_tokens, streams)}
    return JSONResponse(await service.in_thread(signed.whole, answer))


async def _grammar(body: CompletionRequest | ChatRequest, service: Service, caller: Caller) -> str | None:
    """What the answers must look like, or None. A schema counts as a request, as it takes a process."""
    form = body.response_format
    make: list[Callable[[], str | None]] = []
    if form is not None and form.type != "text":
        make.append(form.grammar)
    if isinstance(body, ChatRequest) and body.functions:
        make.append(functools.partial(grammar_of_tools, body.functions, body.tool_choice))
    if not make:
        return None
    if len(make) > 1:
        raise ApiError(422, "invalid_request", "give either tools or a response_format")
    async with service.charged(caller, 0, requests=1):
        found: list[str | None] = await service.uploads.run(
            lambda some: [each() for each in some], make, owner=caller.id, cost=json_grammar.SECONDS
        )
    return found[0]


async def _events(
    head: Json,
    kind: Kind,
    streams: list[TextStream],
    service: Service,
    request_id: str,
    signed: SignedAnswers,
    *,
    calls: bool,
    prompt_tokens: int | None,
) -> AsyncIterator[bytes]:
    """The pieces of all texts as server-sent events; with ``prompt_tokens``, token counts come last.

    ``calls``: a text that begins with a brace is held back, and sent as one call.
    """
    arrived: asyncio.Queue[Json | BaseException | None] = asyncio.Queue()

    async def follow(index: int, stream: TextStream) -> None:
        try:
            await arrived.put(_chunk(kind, index, "", first=True))
            text, held = "", False
            async for piece in stream:
                text += piece
                held = calls and text.startswith("{")
                if not held:
                    await arrived.put(_chunk(kind, index, piece))
            reason, call = stream.reason, tool_call(text, _call_id(head, index)) if held else None
            if call is not None:
                reason = "tool_calls"
                delta = {"tool_calls": [{"index": 0, **call}]}
                await arrived.put({**_chunk(kind, index, None), "delta": delta})
            elif held:
                await arrived.put(_chunk(kind, index, text))
            said = _said_of_mark(_generator(service), stream)
            await arrived.put({**_chunk(kind, index, None, reason=reason), **said})
            await arrived.put(None)
        except Exception as error:  # noqa: BLE001 - reported to the reader below
            await arrived.put(error)

    followers = [asyncio.create_task(follow(i, stream)) for i, stream in enumerate(streams)]
    try:
        left = len(followers)
        while left:
            value = await arrived.get()
            if isinstance(value, BaseException):
                message = str(value) if isinstance(value, DewmarkError) else INTERNAL
                yield _event(error_body(500, "internal", message, request_id))
                return
            left -= value is None
            for piece in signed.piece({**head, "choices": [value]}) if value is not None else ():
                yield _event(piece)
        if prompt_tokens is not None:
            yield _event({**head, "choices": [], "usage": _usage(prompt_tokens, streams)})
        yield b"data: [DONE]\n\n"
    finally:
        for follower in followers:
            follower.cancel()
        await _finish(streams, service, request_id)


def _choice(kind: Kind, index: int, text: str, reason: str, call: Json | None) -> Json:
    """A finished text, or the call that it is."""
    row: Json = {"index": index, "finish_reason": reason, "logprobs": None}
    if kind == "text":
        return {**row, "text": text}
    message = {"role": "assistant", "content": text, "refusal": None}
    if call is None:
        return {**row, "message": message}
    said = {**message, "content": None, "tool_calls": [call]}
    return {**row, "finish_reason": "tool_calls", "message": said}


def _said_of_mark(generator: TextGenerator, stream: TextStream) -> Json:
    """Whether a finished text is marked, and why not."""
    reason = generator.unmarked_reason(stream)
    return {"marked": reason is None, "unmarked": reason}


def _call_id(head: Json, index: int) -> str:
    return f"call_{head['id'].partition('-')[2]}_{index}"


def _manifest(service: Service, tenant: str, *, marked: bool) -> Callable[[str], str] | None:
    """What makes a text's manifest, if the service signs; that of an unmarked text names no mark."""
    if service.provider is None:
        return None
    generator = _generator(service)
    bound = generator.writers[tenant] if marked else None
    return functools.partial(
        service.provider.manifest,
        model=generator.name,
        scheme=None if bound is None else bound.scheme.name,
        fingerprint=None if bound is None else bound.fingerprint,
    )


def _chunk(
    kind: Kind, index: int, piece: str | None, *, first: bool = False, reason: str | None = None
) -> Json:
    """A piece of a streamed text; None for the end, with its reason."""
    row: Json = {"index": index, "finish_reason": reason, "logprobs": None}
    if kind == "text":
        return {**row, "text": piece or ""}
    role = {"role": "assistant"} if first else {}
    content = {} if piece is None else {"content": piece}
    return {**row, "delta": {**role, **content}}


def _event(value: Json) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


async def _while_connected(request: Request, answer: Awaitable[T]) -> T | None:
    """Await an answer, or cancel it and return None when the client goes. The body must have been read."""
    working = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _whole(stream: TextStream) -> str:
    return "".join([piece async for piece in stream])


def _exempt(
    body: CompletionRequest | ChatRequest, decoding: Decoding, tenant: str, service: Service
) -> str | None:
    """Why the texts of a request carry no mark, or None."""
    if body.mark is False and not service.settings.opt_out:
        raise ApiError(422, "invalid_request", "mark: this service marks every text (see --opt-out)")
    generator = _generator(service)
    policy = generator.policy or Policy()
    exempt = policy.exempts(max_new_tokens=decoding.max_new_tokens, opted_out=body.mark is False)
    if exempt is None and service.settings.greedy != "refuse" and not generator.can_mark(tenant, decoding):
        return "greedy"
    return exempt


async def _finish(streams: list[TextStream], service: Service, request_id: str) -> None:
    for stream in streams:
        service.metrics.generated.labels(_generator(service).unmarked_reason(stream) or "marked").inc()
        stream.cancel()
    service.metrics.written.inc(sum(stream.tokens for stream in streams))
    if service.settings.policy_log is not None:
        file, generator = Path(service.settings.policy_log), _generator(service)

        def log() -> None:
            rows = [generator.log_row(stream, request_id=request_id) for stream in streams]
            append_jsonl(file, rows, private=True)

        with anyio.CancelScope(shield=True):  # also if the client has gone
            await service.in_thread(log)


def _usage(prompt_tokens: int, streams: list[TextStream]) -> dict[str, int]:
    read, wrote = prompt_tokens, sum(stream.tokens for stream in streams)
    return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


def _check_size(texts: Sequence[str], service: Service) -> None:
    """Refuse a prompt that no model would read to its end, before it is tokenized."""
    most = service.settings.generation_bytes
    if sum(len(text.encode("utf-8", "replace")) for text in texts) > most:
        raise ApiError(413, "text_too_large", f"prompts and messages may have {most:,} bytes together")


def _generator(service: Service) -> TextGenerator:
    assert service.generator is not None  # else the application has none of these routes
    return service.generator


def _writer(generator: TextGenerator, caller: Caller, named: str | None) -> str:
    """The tenant whose key marks: the caller's own."""
    own = [tenant for tenant in generator.writers if caller.may_use(tenant)]
    if named is not None:
        if named not in own:
            raise ApiError(404, "not_found", "no such tenant, or this token may not write with its key")
        return named
    if not own:
        raise ApiError(403, "forbidden", "the token's tenant has no key to write with")
    if len(own) > 1:
        raise ApiError(422, "invalid_request", "tenant: this token has several tenants, so name one")
    return own[0]
