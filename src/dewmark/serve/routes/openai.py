"""``/v1/completions``, ``/v1/chat/completions``, ``/v1/models``: marked text for OpenAI's clients."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response, StreamingResponse

from dewmark.errors import DewmarkError
from dewmark.scheme import check_text
from dewmark.serve.api_tokens import Caller, Scope
from dewmark.serve.generation import Stream, Wish, Writer
from dewmark.serve.http_errors import ApiError, error_body
from dewmark.serve.openai_format import (
    ChatRequest,
    Choice,
    CompletionRequest,
    Head,
    Kind,
    body,
    chunk,
    event,
    models,
)
from dewmark.serve.routes.dependencies import CallerOf, RequestId, ServiceOf, refusals, token
from dewmark.serve.service import Service, require

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["generation"], dependencies=[Depends(token)])

_COMPLETION_TOKENS = 16  # OpenAI's default
_CHAT_TOKENS = 256
_STARTED = int(time.time())
_REFUSALS = refusals(404, 408, 413, 422, 429)


@router.get("/models", responses=refusals(404), summary="The model that writes")
async def list_models(service: ServiceOf, caller: CallerOf) -> JSONResponse:
    """OpenAI's list of models."""
    require(caller, Scope.GENERATE)
    return JSONResponse(models([_writer(service).name], created=_STARTED))


@router.post("/completions", responses=_REFUSALS, summary="Continue texts, marked")
async def completions(
    wanted: CompletionRequest, service: ServiceOf, caller: CallerOf, request_id: RequestId
) -> Response:
    """OpenAI's completions; every text carries the mark."""
    prompts = [wanted.prompt] if isinstance(wanted.prompt, str) else wanted.prompt
    return await _answer(
        wanted, prompts, wanted.max_tokens or _COMPLETION_TOKENS, "text", service, caller, request_id
    )


@router.post("/chat/completions", responses=_REFUSALS, summary="Answer in a conversation, marked")
async def chat_completions(
    wanted: ChatRequest, service: ServiceOf, caller: CallerOf, request_id: RequestId
) -> Response:
    """OpenAI's chat completions; every answer carries the mark."""
    require(caller, Scope.GENERATE)
    writer = _writer(service)
    messages = [message.to_dict() for message in wanted.messages]
    for i, message in enumerate(messages):
        if message["content"].strip():
            check_text(message["content"], f"message {i}")
    prompt = await service.in_thread(writer.render, messages)
    tokens = wanted.max_completion_tokens or wanted.max_tokens or _CHAT_TOKENS
    return await _answer(wanted, [prompt], tokens, "chat", service, caller, request_id)


async def _answer(
    wanted: CompletionRequest | ChatRequest,
    prompts: list[str],
    tokens: int,
    kind: Kind,
    service: Service,
    caller: Caller | None,
    request_id: str,
) -> Response:
    caller = require(caller, Scope.GENERATE)
    writer = _writer(service)
    if tokens > service.settings.new_tokens:
        raise ApiError(422, "invalid_request", f"max_tokens is at most {service.settings.new_tokens}")
    seed = secrets.randbits(31) if wanted.seed is None else wanted.seed
    wishes = [
        Wish(
            prompt,
            seed=seed + i,
            max_new_tokens=tokens,
            temperature=1.0 if wanted.temperature is None else wanted.temperature,
            top_p=1.0 if wanted.top_p is None else wanted.top_p,
            stop=wanted.stops,
        )
        for prompt in prompts
        for i in range(wanted.n or 1)
    ]

    def check() -> int:
        for i, prompt in enumerate(prompts):
            if prompt.strip():
                check_text(prompt, f"prompt {i}")
        for wish in wishes:
            writer.check(wish)
        return sum(map(writer.count, prompts))

    read = await service.in_thread(check)
    await service.spend(caller, len(wishes))
    head = Head(
        id=f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{request_id}",
        created=int(time.time()),
        model=writer.name,
        kind=kind,
        fingerprint=writer.watermark.scheme.config_hash,
    )
    streams = writer.submit(wishes)
    if wanted.stream:
        pieces = _events(head, streams, service, read=read, usage=wanted.wants_usage)
        return StreamingResponse(pieces, media_type="text/event-stream")
    try:
        texts = await asyncio.gather(*map(_whole, streams))
    finally:
        _finish(streams, service)
    choices = [
        Choice.model_construct(text=text, reason=stream.reason)
        for text, stream in zip(texts, streams, strict=True)
    ]
    return JSONResponse(body(head, choices, _usage(read, streams)))


async def _events(
    head: Head, streams: list[Stream], service: Service, *, read: int, usage: bool
) -> AsyncIterator[bytes]:
    """The pieces of all texts as server-sent events, in the order in which they are written."""
    arrived: asyncio.Queue[dict[str, Any] | BaseException | None] = asyncio.Queue()

    async def follow(index: int, stream: Stream) -> None:
        try:
            await arrived.put(chunk(head, index, "", first=True))
            async for piece in stream:
                await arrived.put(chunk(head, index, piece))
            await arrived.put(chunk(head, index, None, reason=stream.reason))
            await arrived.put(None)
        except Exception as error:  # noqa: BLE001 - told to the reader below
            await arrived.put(error)

    followers = [asyncio.create_task(follow(i, stream)) for i, stream in enumerate(streams)]
    try:
        left = len(followers)
        while left:
            value = await arrived.get()
            if isinstance(value, BaseException):
                message = str(value) if isinstance(value, DewmarkError) else "the service failed"
                yield event(error_body(500, "internal", message, head.id.partition("-")[2]))
                return
            left -= value is None
            if value is not None:
                yield event(value)
        if usage:
            yield event({**head.to_dict(streamed=True), "choices": [], "usage": _usage(read, streams)})
        yield event("[DONE]")
    finally:
        for follower in followers:
            follower.cancel()
        _finish(streams, service)


async def _whole(stream: Stream) -> str:
    return "".join([piece async for piece in stream])


def _finish(streams: list[Stream], service: Service) -> None:
    service.metrics.written.inc(sum(stream.tokens for stream in streams))
    for stream in streams:
        stream.cancel()


def _usage(read: int, streams: list[Stream]) -> dict[str, int]:
    written = sum(stream.tokens for stream in streams)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _writer(service: Service) -> Writer:
    if service.writer is None:
        raise ApiError(404, "not_found", "this service does not write: start it with --host-model MODEL")
    return service.writer
