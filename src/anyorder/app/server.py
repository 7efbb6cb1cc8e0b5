"""The explorer's server: the page and its JSON API.

Routes only: `served_model` says what may be requested and what comes of it, `batching` runs it, `security` guards it.
"""

import asyncio
import html
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from anyorder import __version__
from anyorder.app import QUEUE, schemas
from anyorder.app.batching import BatchQueue, Result
from anyorder.app.security import AccessToken, RequestGuard, error_response
from anyorder.app.served_model import Answer, ServedModel, Work, load_models
from anyorder.errors import InputError, unknown
from anyorder.web.bundle import page

Query = TypeVar("Query", bound=schemas.Request)

HEAD_BYTES = 16 * 1024
"""Maximum size of the request line and the headers."""
SPARE_CONNECTIONS = 256
"""Connections beyond the queue until uvicorn refuses further ones. The queue refuses first, with a clearer message."""
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": schemas.ErrorResponse, "description": "The body is not JSON, or the Host is wrong."},
    401: {"model": schemas.ErrorResponse, "description": "The server has a token, and the request does not carry it."},
    413: {"model": schemas.ErrorResponse, "description": "The body is too large."},
    415: {"model": schemas.ErrorResponse, "description": "The Content-Type is not application/json."},
    422: {"model": schemas.ErrorResponse, "description": "A field is wrong; the error names it."},
    503: {"model": schemas.ErrorResponse, "description": "Too many requests are waiting; see Retry-After."},
}
"""What the description of the API says of errors."""

# FastAPI can report requests, including their texts, to a server that the environment names. This one never does.
NO_TELEMETRY: Any = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)


def create_app(
    models: Sequence[str],
    host: str = "127.0.0.1",
    device: str = "auto",
    queue_size: int = QUEUE,
    token: AccessToken | None = None,
) -> FastAPI:
    """The app that serves models: bundled names, folders or hub ids.

    It answers only to the names of the address that it is bound to, `host`, and without a token to everyone.
    """
    served_models, queue = load_models(models, device), BatchQueue(queue_size)

    def find(name: str) -> ServedModel:
        if name not in served_models:
            raise unknown("model", name, served_models)
        return served_models[name]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        queue.close()

    app = FastAPI(
        title="anyorder explore",
        version=__version__,
        description="Translate, fill masks and solve puzzles in any order, and fill positions by hand.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # FastAPI's own pages load scripts from other servers
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name the host that a proxy forwards to
        lifespan=lifespan,
        telemetry=NO_TELEMETRY,
        exception_handlers=dict.fromkeys((HTTPException, InputError, RequestValidationError), error_response),
    )
    app.add_middleware(RequestGuard, host=host, token=token)

    @app.get("/api/models")
    async def list_models() -> schemas.ModelList:
        """The models, and what may be requested of each."""
        infos = [served.info() for served in served_models.values()]
        return schemas.ModelList(models=infos, characters=schemas.MAX_CHARACTERS, most_orders=schemas.MAX_ORDERS)

    @app.post("/api/check", responses=ERROR_RESPONSES)
    async def check(query: schemas.CheckQuery) -> schemas.CheckResponse:
        """Whether a schedule or a revision may be requested of a model, and what it does."""
        return find(query.model).check(query)

    async def run(
        request: Request, query: Query, prepare: Callable[[ServedModel, Query], Work[Result, Answer]]
    ) -> Answer:
        """Run what a request asks for in the queue. What comes before and after it stays off the event loop."""
        with queue.admit():
            calls, respond = await asyncio.to_thread(prepare, find(query.model), query)
            results = await _unless_disconnected(request, queue.run(calls))
            return await asyncio.to_thread(respond, results)

    @app.post("/api/decode", responses=ERROR_RESPONSES)
    async def decode(query: schemas.DecodeQuery, request: Request) -> schemas.DecodeResponse:
        """Translate a sentence, fill the masks of a text, or solve a puzzle in several orders."""
        return await run(request, query, ServedModel.decode)

    @app.post("/api/puzzle", responses=ERROR_RESPONSES)
    async def new_puzzle(query: schemas.PuzzleQuery, request: Request) -> schemas.Puzzle:
        """A new puzzle and its solution."""
        return await run(request, query, ServedModel.new_puzzle)

    @app.post("/api/step", responses=ERROR_RESPONSES)
    async def fill_by_hand(query: schemas.StepQuery, request: Request) -> schemas.StepResponse:
        """Fill positions one after another, with the model's best token or a chosen one, and show what could follow.

        Filling the positions that an order chose (schedule one) reproduces what it wrote, so this is also the state at
        any step of a run.
        """
        return await run(request, query, ServedModel.fill_by_hand)

    @app.get("/api/docs", include_in_schema=False)
    async def api_docs() -> HTMLResponse:
        return HTMLResponse(_api_docs_page(app.openapi()))

    @app.get("/", include_in_schema=False)
    def index() -> HTMLResponse:
        # The page itself names its only script and style by their hashes; frames are refused only by a header.
        headers = {"Content-Security-Policy": "frame-ancestors 'none'", "Cache-Control": "no-cache"}
        return HTMLResponse(page("anyorder explore", entry="explorer.js", live=True), headers=headers)

    @app.get("/favicon.ico", include_in_schema=False)
    async def no_icon() -> Response:
        return Response(status_code=204)

    return app


def make_server(app: FastAPI, queue_size: int = QUEUE) -> uvicorn.Server:
    """A server for the app. uvicorn limits the heads and the number of requests; a proxy has to limit each client."""
    config = uvicorn.Config(
        app,
        http="h11",  # its limit on heads is the next line
        h11_max_incomplete_event_size=HEAD_BYTES,
        ws="none",
        limit_concurrency=queue_size + SPARE_CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=3,
        log_level="error",  # warnings are about what clients send
        access_log=False,
        server_header=False,
    )
    return uvicorn.Server(config)


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of the work. If the client disconnects first, the work is cancelled and leaves the queue."""
    task = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((task, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPException(499, "the client disconnected")
        return task.result()
    finally:
        task.cancel()
        disconnected.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _api_docs_page(schema: dict[str, Any]) -> str:
    """The paths of the API, and the fields of its requests and responses, without scripts."""
    parts = ['<p>Machine-readable: <a href="openapi.json">openapi.json</a>.</p>']
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2>{method.upper()} {html.escape(path)}</h2><p>{html.escape(operation['description'])}</p>")
    for name, component in schema["components"]["schemas"].items():
        fields = json.dumps(component.get("properties", {}), indent=1)
        parts.append(f"<h3>{html.escape(name)}</h3><pre>{html.escape(fields)}</pre>")
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    return f"{head}<title>anyorder API</title><h1>{html.escape(schema['info']['title'])}</h1>{''.join(parts)}"
