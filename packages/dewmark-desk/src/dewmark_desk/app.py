"""The ASGI application of one worker process: routes, error handlers and middleware around a `Service`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from anyio import to_thread
from fastapi import FastAPI

from dewmark.version import __version__
from dewmark_desk import rewriting
from dewmark_desk.http_errors import add_handlers
from dewmark_desk.middleware import AccessMiddleware
from dewmark_desk.routes import detect, jobs, operation, reports, rewrite
from dewmark_desk.service import Service

_ABOUT = (
    "Is a text marked with one of these keys, how certain is that, and where is the mark? A p-value is the "
    "share of keys that would score the text so high by chance: evidence, not proof of who wrote it."
)


def create_app(service: Service) -> FastAPI:
    """The application, which starts and closes the service."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await to_thread.run_sync(service.close)

    app = FastAPI(
        title="dewmark",
        version=__version__,
        description=_ABOUT,
        docs_url=None,  # FastAPI's own page loads third-party scripts
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.service = service
    for module in (operation, detect, reports, jobs):
        app.include_router(module.router)
    if service.generator is not None:
        from dewmark_desk.routes import openai  # needs torch

        app.include_router(openai.router)
    if rewriting.installed():
        app.include_router(rewrite.router)
    add_handlers(app)
    app.add_middleware(AccessMiddleware, service=service)
    return app
