"""The explorer's server: a page, and the JSON API under it. Wrong requests get `{"error": "one clear line"}`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from anyorder import __version__
from anyorder.app import schemas
from anyorder.app.batching import BatchQueue, Task
from anyorder.app.csp import describe, inline_sources
from anyorder.app.middleware import CHARACTERS, ORDERS, POLICY, Limits, RefusedError, RequestGuard, hosts_of
from anyorder.app.model_registry import ModelRegistry, ServedModel
from anyorder.app.schemas import Models, Query, Runs, Stepped, StepQuery, TranslateQuery
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.stepper import Position, check_positions, step
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.report.html import live_page

Answer = TypeVar("Answer")

# FastAPI may report requests, texts included, to wherever the environment says; what is typed here stays here.
SILENT: Any = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": schemas.Problem, "description": "Not JSON, or a wrong Host."},
    413: {"model": schemas.Problem, "description": "The body is too large."},
    415: {"model": schemas.Problem, "description": "The body is not called application/json."},
    422: {"model": schemas.Problem, "description": "JSON, but not what is expected: the line says where."},
    503: {"model": schemas.Problem, "description": "Too many are waiting; Retry-After says when to come again."},
}


def create_app(
    models: Sequence[str], host: str = "127.0.0.1", device: str = "auto", limits: Limits | None = None
) -> FastAPI:
    """The app for some models: bundled names, folders or hub ids. It answers under the names that belong to `host`."""
    limits = limits or Limits()
    shelf, desk = ModelRegistry(models, device), BatchQueue(limits)

    @asynccontextmanager
    async def until_closed(app: FastAPI) -> AsyncIterator[None]:
        yield
        desk.close()

    app = FastAPI(
        title="anyorder explore",
        version=__version__,
        description="Translate in any order, and fill positions by hand.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere
        redoc_url=None,
        lifespan=until_closed,
        telemetry=SILENT,
    )
    app.add_middleware(RequestGuard, hosts=hosts_of(host), limits=limits)
    _tell_errors(app)

    @app.get("/api/models")
    async def list_models() -> Models:
        """The models, and what may be asked of each."""
        cards = [_card(offer) for offer in shelf.offers.values()]
        return Models(models=cards, characters=CHARACTERS, most_orders=ORDERS)

    @app.post("/api/translate", responses=PROBLEMS)
    async def translate(query: TranslateQuery, request: Request) -> Runs:
        """Translate a sentence in several orders."""
        with desk.place():
            offer, ids = await _read(shelf, query)
            length = offer.length(query.length)
            manners = [
                DecodingConfig.of(offer.order(name, query.direction), query.budget, length, batch_tokens=limits.tokens)
                for name in query.orders
            ]
            tasks = [_translation(offer, query, ids, how) for how in manners]
            return Runs(runs=[_run(one) for one in await _unless_gone(request, desk.ask(tasks))])

    @app.post("/api/step", responses=PROBLEMS)
    async def make_steps(query: StepQuery, request: Request) -> Stepped:
        """Fill positions one after another, each with the model's best token, and look at what is still masked.

        Positions that an order chose (budget one) give back what it wrote: so the state at any step of a run is found.
        """
        with desk.place():
            offer, ids = await _read(shelf, query)
            offer.length(query.length)
            positions = [place.position for place in query.filled]
            check_positions(positions, query.length)
            order = offer.order(query.order, query.direction) if query.order is not None else None
            work = partial(step, offer.model, ids, query.direction, query.length, positions, order, memory=offer.memory)
            [position] = await _unless_gone(request, desk.ask([Task(_each, work)]))
            return _stepped(position, offer, query.direction)

    @app.get("/api/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(describe(app.openapi()))

    @app.get("/", include_in_schema=False)
    def page() -> HTMLResponse:
        text = live_page()
        policy = f"{POLICY}; img-src 'self' data:{inline_sources(text)}"
        return HTMLResponse(text, headers={"Content-Security-ActorCritic": policy, "Cache-Control": "no-cache"})

    @app.get("/favicon.ico", include_in_schema=False)
    async def no_icon() -> Response:
        return Response(status_code=204)

    return app


async def _read(shelf: ModelRegistry, query: Query) -> tuple[ServedModel, np.ndarray]:
    """The model, and the sentence as it reads it."""
    offer = shelf[query.model]
    offer.check_direction(query.direction)
    return offer, await asyncio.to_thread(offer.encode, query.text, query.direction)


def _translation(
    offer: ServedModel, query: Query, ids: np.ndarray, how: DecodingConfig
) -> Task[tuple[str, np.ndarray], Trajectory]:
    """Sentences for the same model, direction and manner are decoded together: none depends on the others."""
    return Task(
        partial(_translations, offer, query.direction, how),
        (query.text, ids),
        alike=(offer.name, query.direction, how.signature),
        cost=how.length.count * (len(ids) + 2) if how.length.kind != "fixed" else how.length.count + 2,
    )


def _translations(
    offer: ServedModel, direction: str, how: DecodingConfig, items: Sequence[tuple[str, np.ndarray]]
) -> list[Trajectory]:
    texts, sources = zip(*items, strict=True)
    return offer.translator.decode(texts, sources, direction, how)


def _each(work: Sequence[Callable[[], Position]]) -> list[Position]:
    return [one() for one in work]


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """The work's result. If the client hangs up first the work is cancelled: nobody waits for it."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RefusedError(499, "the client left")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _card(offer: ServedModel) -> schemas.ModelCard:
    names = {direction: list(orders) for direction, orders in offer.orders.items()}
    everything = dict.fromkeys(name for orders in names.values() for name in orders)
    own = [name for name in everything if name.startswith("learned")]
    return schemas.ModelCard(
        name=offer.name,
        directions=list(names),
        orders=[*own, *(name for name in everything if name not in own)],
        orders_of=names,
        lengths=offer.lengths,
        longest=offer.longest,
    )


def _run(made: Trajectory) -> schemas.Run:
    return schemas.Run(**{name: getattr(made, name) for name in schemas.Run.model_fields})


def _stepped(made: Position, offer: ServedModel, direction: str) -> Stepped:
    filled = made.filled
    known = (filled.steps > 0).tolist()
    return Stepped(
        tokens=made.tokens,
        steps=[at if here else None for at, here in zip(filled.steps.tolist(), known, strict=True)],
        logprobs=[round(p, 6) if here else None for p, here in zip(filled.logprobs.tolist(), known, strict=True)],
        text=offer.translator.sentences([filled], direction)[0] if all(known) else None,
        next=schemas.Next(position=made.next, scores=made.scores, policy=made.policy),
        candidates=[
            None if here is None else [schemas.Candidate(token=one.token, p=one.p) for one in here]
            for here in made.candidates
        ],
    )


def _tell_errors(app: FastAPI) -> None:
    """Every error as one line of JSON."""

    def handle(kind: type[Exception], refusal: Callable[[Any], RefusedError]) -> None:
        async def answer(request: Request, error: Exception) -> Response:
            return refusal(error).response()

        app.add_exception_handler(kind, answer)

    handle(RefusedError, lambda error: error)
    handle(InputError, lambda error: RefusedError(422, str(error)))
    handle(RequestValidationError, _wrong_request)
    handle(HTTPException, lambda error: RefusedError(error.status_code, str(error.detail)))


def _wrong_request(error: RequestValidationError) -> RefusedError:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return RefusedError(400, f"the body is not JSON: {reason} (character {first['loc'][-1]})")
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    return RefusedError(422, f"{where or 'the body'}: {first['msg']}")
