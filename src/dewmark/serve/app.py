"""The application of one worker process: routes, gate and refusals around a `Service`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from anyio import to_thread
from fastapi import FastAPI

from dewmark.serve.http_errors import add_handlers
from dewmark.serve.middleware import Gate
from dewmark.serve.routes import audits, detection, openai, pages
from dewmark.serve.service import Service
from dewmark.version import __version__

__all__ = ["create_app"]

_ABOUT = (
    "Is a text marked by one of these keys, how sure is that, and where is the mark? A p-value is the share "
    "of unmarked texts that score as high. It is evidence, not proof, and says nothing of who wrote a text."
)


def create_app(service: Service) -> FastAPI:
    """The ASGI application; the service starts and closes with it."""

    @contextlib.asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await to_thread.run_sync(service.close)

    app = FastAPI(
        title="dewmark",
        version=__version__,
        description=_ABOUT,
        docs_url=None,  # the page that comes with it loads scripts from elsewhere
        redoc_url=None,
        lifespan=life,
        redirect_slashes=False,
    )
    app.state.service = service
    for module in (pages, detection, audits):
        app.include_router(module.router)
    if service.writer is not None:
        app.include_router(openai.router)
    add_handlers(app)
    app.add_middleware(Gate, service=service)
    return app
