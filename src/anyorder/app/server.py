"""The explorer's server: the page and its JSON API.

Routes only: `model_registry` says what may be requested, `batching` runs it, `middleware` guards it, and `responses`
turns results and errors into JSON.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response

from anyorder import __version__
from anyorder.app.api_docs import api_docs_page
from anyorder.app.auth import AccessToken
from anyorder.app.batching import BatchQueue, Task
from anyorder.app.csp import page_policy
from anyorder.app.hosts import allowed_hosts
from anyorder.app.limits import MAX_CHARACTERS, MAX_ORDERS, Limits
from anyorder.app.middleware import RefusedError, RequestGuard
from anyorder.app.model_registry import SCHEDULES, ModelRegistry, ServedModel
from anyorder.app.responses import (
    ERROR_RESPONSES,
    add_error_handlers,
    model_info,
    step_response,
    translate_response,
)
from anyorder.app.schemas import (
    ModelList,
    SentenceQuery,
    StepQuery,
    StepResponse,
    TranslateQuery,
    TranslateResponse,
)
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.sentence import Sentence
from anyorder.decoding.stepper import Fill, StepState, check_fills, step
from anyorder.decoding.trajectory import Trajectory
from anyorder.translator import sentence_key
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
        host: The address that the server is bound to; it answers to the names that belong to it.
        device: Where to run.
        limits: What is refused.
        token: What every request must carry; None serves everyone.
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
        description="Translate in any order, and fill positions by hand.",
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
        return ModelList(models=infos, schedules=SCHEDULES, characters=MAX_CHARACTERS, most_orders=MAX_ORDERS)

    @app.post("/api/translate", responses=ERROR_RESPONSES)
    async def translate(query: TranslateQuery, request: Request) -> TranslateResponse:
        """Translate a sentence in several orders."""
        with queue.admit():
            served, sentence = await _read_sentence(registry, query)
            config = DecodingConfig(
                schedule=served.schedule(query.schedule),
                length=served.length(query.length),
                batch_tokens=limits.batch_tokens,
            )
            configs = [replace(config, order=served.order(name, query.direction)) for name in query.orders]
            tasks = [_translation_task(served, query.direction, sentence, config) for config in configs]
            trajectories = await _unless_disconnected(request, queue.run(tasks))
            return await asyncio.to_thread(translate_response, trajectories, query.reference)

    @app.post("/api/step", responses=ERROR_RESPONSES)
    async def fill_by_hand(query: StepQuery, request: Request) -> StepResponse:
        """Fill positions one after another, with the model's best token or a chosen one, and show what could follow.

        Filling the positions that an order chose (schedule one) reproduces what it wrote, so this is also the state at
        any step of a run.
        """
        with queue.admit():
            served, sentence = await _read_sentence(registry, query)
            served.length(query.length)
            model, direction = served.model, query.direction
            fills = [Fill(fill.position, fill.token) for fill in query.filled]
            key = sentence_key(DecodingConfig().seed, sentence.ids, query.length)
            canvas = model.blank_canvas(sentence.ids, query.length, direction, key)
            check_fills(model, canvas, fills)
            order = None if query.order is None else served.order(query.order, direction)
            run_step = partial(step, model, canvas, fills, order, query.top_k, served.step_cache)
            [state] = await _unless_disconnected(request, queue.run([Task(_run_each, run_step)]))
            return await asyncio.to_thread(step_response, state, served, direction, query.reference)

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


async def _read_sentence(registry: ModelRegistry, query: SentenceQuery) -> tuple[ServedModel, Sentence]:
    """The requested model, and the sentence with its ids."""
    served = registry[query.model]
    served.check_direction(query.direction)
    ids = await asyncio.to_thread(served.encode, query.text, query.direction)
    return served, Sentence(query.text, ids)


def _translation_task(
    served: ServedModel, direction: str, sentence: Sentence, config: DecodingConfig
) -> Task[Sentence, Trajectory]:
    """Sentences with the same model, direction and settings are decoded in one batch; none depends on the others."""
    bound = config.bind(served.model, direction)
    is_fixed = bound.length.kind == "fixed"
    return Task(
        partial(_translate_batch, served, direction, config),
        sentence,
        batch_key=(served.name, direction, str(bound.signature)),
        cost=bound.length.count + 2 if is_fixed else bound.length.count * (len(sentence.ids) + 2),
    )


def _translate_batch(
    served: ServedModel, direction: str, config: DecodingConfig, sentences: Sequence[Sentence]
) -> list[Trajectory]:
    return list(served.translator.decode(sentences, direction, config))


def _run_each(steps: Sequence[Callable[[], StepState]]) -> list[StepState]:
    return [run_step() for run_step in steps]


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
