"""Turns models, trajectories and steps into the API's responses, and every kind of error into one line of JSON."""

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from anyorder.app import schemas
from anyorder.app.middleware import RefusedError
from anyorder.app.model_registry import ServedModel
from anyorder.decoding.stepper import StepState
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.evaluation.bleu import sentence_bleu

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": schemas.ErrorResponse, "description": "The body is not JSON, or the Host is wrong."},
    401: {"model": schemas.ErrorResponse, "description": "The server has a token, and the request does not carry it."},
    413: {"model": schemas.ErrorResponse, "description": "The body is too large."},
    415: {"model": schemas.ErrorResponse, "description": "The Content-Type is not application/json."},
    422: {"model": schemas.ErrorResponse, "description": "A field is wrong; the error names it."},
    503: {"model": schemas.ErrorResponse, "description": "Too many requests are waiting; see Retry-After."},
}


def model_info(served: ServedModel) -> schemas.ModelInfo:
    by_direction = {direction: list(orders) for direction, orders in served.orders.items()}
    names = dict.fromkeys(name for orders in by_direction.values() for name in orders)
    learned = served.learned_orders
    return schemas.ModelInfo(
        name=served.name,
        directions=list(by_direction),
        orders=[*learned, *(name for name in names if name not in learned)],
        orders_of=by_direction,
        lengths=served.lengths,
        longest=served.model.max_length,
    )


def translate_response(runs: Sequence[Trajectory], reference: str | None) -> schemas.TranslateResponse:
    fields = [name for name in schemas.Run.model_fields if name != "bleu"]
    return schemas.TranslateResponse(
        runs=[
            schemas.Run(**{name: getattr(run, name) for name in fields}, bleu=_bleu(run.text, reference))
            for run in runs
        ]
    )


def step_response(state: StepState, served: ServedModel, direction: str, reference: str | None) -> schemas.StepResponse:
    text = None if None in state.tokens else served.model.to_text(state.ids, direction)
    return schemas.StepResponse(
        tokens=state.tokens,
        steps=state.steps,
        logprobs=[None if logprob is None else round(logprob, 6) for logprob in state.logprobs],
        given=state.given,
        text=text,
        bleu=None if text is None else _bleu(text, reference),
        next=schemas.NextPosition(position=state.next, scores=state.scores, policy=state.is_policy),
        candidates=[
            None
            if candidates is None
            else [schemas.Candidate(token=candidate.token, p=candidate.probability) for candidate in candidates]
            for candidates in state.candidates
        ],
    )


def _bleu(text: str, reference: str | None) -> float | None:
    return round(sentence_bleu(text, reference), 2) if reference and reference.strip() else None


def add_error_handlers(app: FastAPI) -> None:
    """Every error becomes one line of JSON."""

    def handle(kind: type[Exception], to_refused: Callable[[Any], RefusedError]) -> None:
        async def respond(request: Request, error: Exception) -> Response:
            return to_refused(error).response()

        app.add_exception_handler(kind, respond)

    handle(RefusedError, lambda error: error)
    handle(InputError, lambda error: RefusedError(422, str(error)))
    handle(RequestValidationError, _validation_error)
    handle(HTTPException, lambda error: RefusedError(error.status_code, str(error.detail), error.headers))


def _validation_error(error: RequestValidationError) -> RefusedError:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if part != "body")
    return RefusedError(422, f"{field or 'the body'}: {first['msg']}")
