"""Turns models, trajectories and steps into the API's responses, and every kind of error into one line of JSON."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from anyorder.app import schemas
from anyorder.app.choices import (
    REVISION_CHOICES,
    describe_revision,
    describe_schedule,
    schedule_choices,
)
from anyorder.app.middleware import RefusedError
from anyorder.app.served_models import ServedModel, ServedPuzzles, ServedTranslator
from anyorder.decoding.config import AUTO
from anyorder.decoding.stepper import StepState
from anyorder.decoding.trajectory import INFILL, Trajectory
from anyorder.errors import InputError
from anyorder.evaluation.accuracy import answers_of
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
    names = dict.fromkeys(name for orders in served.orders.values() for name in orders)
    learned = served.learned_orders
    choices = schedule_choices(served.kind, served.usual_schedule())
    info: dict[str, Any] = {"directions": [], "orders_of": {}, "lengths": [], "grid": None}
    if isinstance(served, ServedTranslator):
        orders_of = {direction: list(orders) for direction, orders in served.orders.items()}
        info |= {"directions": list(orders_of), "orders_of": orders_of, "lengths": served.lengths}
    if isinstance(served, ServedPuzzles):
        task = served.task
        info["grid"] = schemas.Grid(columns=task.columns, rows=task.rows, box=task.box, symbols=list(task.symbols))
    return schemas.ModelInfo(
        name=served.name,
        kind=served.kind,
        orders=[*learned, *(name for name in names if name not in learned)],
        schedules=[schemas.ScheduleChoice.model_validate(choice) for choice in choices],
        revisions=[
            schemas.RevisionChoice(
                name=choice.name, label=choice.label, usual_schedule=served.usual_schedule(choice.name)
            )
            for choice in REVISION_CHOICES
        ],
        longest=served.model.max_length,
        **info,
    )


def check_response(served: ServedModel, schedule: str | int | None, revision: str | None) -> schemas.CheckResponse:
    """What this schedule and revision do; an `InputError` if the model cannot be decoded with them."""
    usual = served.usual_schedule() if revision is None else served.usual_schedule(served.revision(revision))
    name = None if schedule is None else served.schedule(schedule)
    return schemas.CheckResponse(
        schedule=None if name is None else describe_schedule(usual if name == AUTO else name),
        revision=None if revision is None else describe_revision(revision.strip()),
        usual_schedule=None if revision is None else usual,
    )


def translate_response(runs: Sequence[Trajectory], reference: str | None) -> schemas.TranslateResponse:
    return schemas.TranslateResponse(
        runs=[schemas.Translation(**_fields(schemas.Run, run), bleu=_bleu(run.text, reference)) for run in runs]
    )


def infill_response(runs: Sequence[Trajectory]) -> schemas.InfillResponse:
    return schemas.InfillResponse(runs=[schemas.Infilling(**_fields(schemas.Infilling, run)) for run in runs])


def solve_response(
    runs: Sequence[Trajectory], served: ServedPuzzles, text: str, solution: np.ndarray | None
) -> schemas.SolveResponse:
    answers = []
    for run in runs:
        verdict = served.judge(text, answers_of(served.task, [run]), solution)
        fields = _fields(schemas.Infilling, run)
        answers.append(schemas.Answer(**fields, solved=verdict.solved, wrong=verdict.wrong))
    return schemas.SolveResponse(runs=answers)


def _fields(schema: type[BaseModel], run: Trajectory) -> dict[str, Any]:
    return {name: getattr(run, name) for name in schema.model_fields}


def step_response(
    state: StepState, served: ServedModel, direction: str | None, text: str, reference: str | None
) -> schemas.StepResponse:
    finished = None if None in state.tokens else served.model.to_text(state.ids, direction or INFILL)
    verdict = None
    if isinstance(served, ServedPuzzles) and finished is not None:
        verdict = served.judge(text, served.answer(state.ids), served.read_solution(reference))
    return schemas.StepResponse(
        tokens=state.tokens,
        steps=state.steps,
        logprobs=[None if logprob is None else round(logprob, 6) for logprob in state.logprobs],
        given=state.given,
        text=finished,
        bleu=None if finished is None or direction is None else _bleu(finished, reference),
        solved=None if verdict is None else verdict.solved,
        wrong=None if verdict is None else verdict.wrong,
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
