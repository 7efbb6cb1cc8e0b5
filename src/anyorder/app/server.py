"""The explorer's server: the page and its JSON API.

Routes only: `served_models` says what may be requested, `batching` runs it, `middleware` guards it, and `responses`
turns results and errors into JSON.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response

from anyorder import __version__
from anyorder.app.api_docs import api_docs_page
from anyorder.app.auth import AccessToken
from anyorder.app.batching import BatchQueue, QueuedCall
from anyorder.app.csp import page_policy
from anyorder.app.hosts import allowed_hosts
from anyorder.app.limits import MAX_CHARACTERS, MAX_ORDERS, Limits
from anyorder.app.middleware import RefusedError, RequestGuard
from anyorder.app.model_registry import ModelRegistry
from anyorder.app.responses import (
    ERROR_RESPONSES,
    add_error_handlers,
    check_response,
    infill_response,
    model_info,
    solve_response,
    step_response,
    translate_response,
)
from anyorder.app.schemas import (
    CheckQuery,
    CheckResponse,
    DecodingQuery,
    InfillQuery,
    InfillResponse,
    ModelList,
    Puzzle,
    PuzzleQuery,
    SolveQuery,
    SolveResponse,
    StepQuery,
    StepResponse,
    TranslateQuery,
    TranslateResponse,
)
from anyorder.app.served_models import ServedFiller, ServedModel, ServedPuzzles, ServedTranslator, Settings
from anyorder.decoding.stepper import Fill, StepState, check_fills, step
from anyorder.web.bundle import page

Result = TypeVar("Result")

# FastAPI can report requests, including their texts, to a server that the environment names. This one never does.
NO_TELEMETRY: Any = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)


def create_app(
    models: Sequence[str],
    host: str = "127.0.0.1",
    device: str = "auto",
    limits: Limits | None = None,
    token: AccessToken | None = None,
) -> FastAPI:
    """The app that serves some models.

    Args:
        models: Bundled names, folders or hub ids.
        host: The address that the server is bound to; it answers only to the names of that address.
        device: The device to run on.
        limits: The server's limits.
        token: The token that every request must carry; None serves everyone.
    """
    limits = limits or Limits()
    registry, queue = ModelRegistry(models, device), BatchQueue(limits)

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
    )
    app.add_middleware(RequestGuard, hosts=allowed_hosts(host), limits=limits, token=token)
    add_error_handlers(app)

    @app.get("/api/models")
    async def list_models() -> ModelList:
        """The models, and what may be requested of each."""
        infos = [model_info(served) for served in registry.models.values()]
        return ModelList(models=infos, characters=MAX_CHARACTERS, most_orders=MAX_ORDERS)

    @app.post("/api/check", responses=ERROR_RESPONSES)
    async def check(query: CheckQuery) -> CheckResponse:
        """Whether a schedule or a revision may be requested of a model, and what it does."""
        return check_response(registry[query.model], query.schedule, query.revision)

    async def decode(request: Request, prepare: Callable[[], list[QueuedCall[Any, Result]]]) -> list[Result]:
        """Prepare a request's calls off the event loop, and return their results."""
        return await _unless_disconnected(request, queue.run(await asyncio.to_thread(prepare)))

    @app.post("/api/translate", responses=ERROR_RESPONSES)
    async def translate(query: TranslateQuery, request: Request) -> TranslateResponse:
        """Translate a sentence in several orders."""
        with queue.admit():
            served = registry.find(query.model, ServedTranslator)
            settings = query.direction, _settings(query), query.length, limits.batch_tokens
            runs = await decode(request, partial(served.calls, query.text, *settings))
            return await asyncio.to_thread(translate_response, runs, query.reference)

    @app.post("/api/infill", responses=ERROR_RESPONSES)
    async def infill(query: InfillQuery, request: Request) -> InfillResponse:
        """Fill the masks of a text in several orders."""
        with queue.admit():
            served = registry.find(query.model, ServedFiller)
            prepare = partial(served.calls, query.text, _settings(query), limits.batch_tokens)
            return infill_response(await decode(request, prepare))

    @app.post("/api/solve", responses=ERROR_RESPONSES)
    async def solve(query: SolveQuery, request: Request) -> SolveResponse:
        """Solve a puzzle in several orders."""
        with queue.admit():
            served = registry.find(query.model, ServedPuzzles)
            solution = served.read_solution(query.reference)
            runs = await decode(request, partial(served.calls, query.text, _settings(query), limits.batch_tokens))
            return solve_response(runs, served, query.text, solution)

    @app.post("/api/puzzle", responses=ERROR_RESPONSES)
    async def new_puzzle(query: PuzzleQuery, request: Request) -> Puzzle:
        """A new puzzle and its solution."""
        with queue.admit():
            served = registry.find(query.model, ServedPuzzles)
            make = partial(served.new_puzzle, query.seed)
            [(text, solution)] = await decode(request, lambda: [QueuedCall(_run_each, make)])
            return Puzzle(text=text, reference=solution)

    @app.post("/api/step", responses=ERROR_RESPONSES)
    async def fill_by_hand(query: StepQuery, request: Request) -> StepResponse:
        """Fill positions one after another, with the model's best token or a chosen one, and show what could follow.

        Filling the positions that an order chose (schedule one) reproduces what it wrote, so this is also the state at
        any step of a run.
        """
        with queue.admit():
            served = registry[query.model]
            [state] = await decode(request, lambda: [_step_call(served, query)])
            return await asyncio.to_thread(step_response, state, served, query.direction, query.text, query.reference)

    @app.get("/api/docs", include_in_schema=False)
    async def api_docs() -> HTMLResponse:
        return HTMLResponse(api_docs_page(app.openapi()))

    @app.get("/", include_in_schema=False)
    def index() -> HTMLResponse:
        text = explorer_page()
        headers = {"Content-Security-Policy": page_policy(text), "Cache-Control": "no-cache"}
        return HTMLResponse(text, headers=headers)

    @app.get("/favicon.ico", include_in_schema=False)
    async def no_icon() -> Response:
        return Response(status_code=204)

    return app


def explorer_page() -> str:
    """The page; its sentences come from the API of the server that sends it."""
    return page("anyorder explore", entry="explorer.js", live=True)


def _settings(query: DecodingQuery) -> Settings:
    return Settings(query.orders, query.schedule, query.revision)


def _step_call(served: ServedModel, query: StepQuery) -> QueuedCall[Callable[[], StepState], StepState]:
    """A wrong query is an error here, before it waits in the queue."""
    canvas = served.canvas(query.text, query.direction, query.length)
    if isinstance(served, ServedPuzzles):
        served.read_solution(query.reference)
    fills = [Fill(fill.position, fill.token) for fill in query.filled]
    check_fills(served.model, canvas, fills)
    order = None if query.order is None else served.order(query.order, canvas.task)
    return QueuedCall(_run_each, partial(step, served.model, canvas, fills, order, query.top_k, served.step_cache))


def _run_each(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    return [call() for call in calls]


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of the work. If the client disconnects first, the work is cancelled and leaves the queue."""
    task = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((task, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RefusedError(499, "the client disconnected")
        return task.result()
    finally:
        task.cancel()
        disconnected.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
