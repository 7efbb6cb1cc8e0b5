"""Turns models, trajectories and steps into the API's responses, and every kind of error into one line of JSON."""

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from anyorder.app import schemas
from anyorder.app.choices import describe_revision, describe_schedule, revision_choices, schedule_choices
from anyorder.app.limits import RefusedError
from anyorder.app.security import error_response
from anyorder.app.served_model import ServedModel, judge
from anyorder.decoding.config import AUTO
from anyorder.decoding.stepper import StepState
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": schemas.ErrorResponse, "description": "The body is not JSON, or the Host is wrong."},
    401: {"model": schemas.ErrorResponse, "description": "The server has a token, and the request does not carry it."},
    413: {"model": schemas.ErrorResponse, "description": "The body is too large."},
    415: {"model": schemas.ErrorResponse, "description": "The Content-Type is not application/json."},
    422: {"model": schemas.ErrorResponse, "description": "A field is wrong; the error names it."},
    503: {"model": schemas.ErrorResponse, "description": "Too many requests are waiting; see Retry-After."},
}


def model_info(served: ServedModel) -> schemas.ModelInfo:
    puzzle, grid = served.puzzle, None
    if puzzle is not None:
        grid = schemas.Grid(columns=puzzle.columns, rows=puzzle.rows, box=puzzle.box, symbols=list(puzzle.symbols))
    return schemas.ModelInfo(
        name=served.name,
        kind=served.kind,
        orders={task: list(orders) for task, orders in served.orders.items()},
        lengths=served.lengths,
        schedules=schedule_choices(served.kind, served.usual_schedule()),
        revisions=revision_choices(served.usual_schedule),
        longest=served.model.max_length,
        grid=grid,
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


def decode_response(
    runs: Sequence[Trajectory], served: ServedModel, query: schemas.DecodeQuery
) -> schemas.DecodeResponse:
    task = served.decoder(query.task).task
    responses = []
    for run in runs:
        tokens = dict(zip(run.positions, run.tokens, strict=True))
        canvas = [tokens.get(i, given) for i, given in enumerate(run.canvas or [None] * run.length)]
        verdict = judge(task, query.text, run.text, canvas, query.reference)
        fields = schemas.Run.model_fields.keys() - schemas.Verdict.model_fields.keys()
        responses.append(schemas.Run(**verdict.model_dump(), **{name: getattr(run, name) for name in fields}))
    return schemas.DecodeResponse(runs=responses)


def step_response(state: StepState, served: ServedModel, query: schemas.StepQuery) -> schemas.StepResponse:
    task, text, verdict = served.decoder(query.task).task, None, schemas.Verdict()
    if None not in state.tokens:
        text = served.model.to_text(state.ids, task.mode)
        verdict = judge(task, query.text, text, state.tokens, query.reference)
    return schemas.StepResponse(
        **verdict.model_dump(),
        tokens=state.tokens,
        steps=state.steps,
        logprobs=[None if logprob is None else round(logprob, 6) for logprob in state.logprobs],
        given=state.given,
        text=text,
        next=schemas.NextPosition(position=state.next, scores=state.scores, policy=state.is_policy),
        candidates=[
            None
            if candidates is None
            else [schemas.Candidate(token=one.token, p=one.probability) for one in candidates]
            for candidates in state.candidates
        ],
    )


def add_error_handlers(app: FastAPI) -> None:
    """Every error becomes one line of JSON."""

    def handle(kind: type[Exception], to_refused: Callable[[Any], RefusedError]) -> None:
        async def respond(request: Request, error: Exception) -> Response:
            return error_response(to_refused(error))

        app.add_exception_handler(kind, respond)

    handle(RefusedError, lambda error: error)
    handle(InputError, lambda error: RefusedError(422, str(error)))
    handle(RequestValidationError, _validation_error)
    handle(HTTPException, lambda error: RefusedError(error.status_code, str(error.detail), error.headers))


def _validation_error(error: RequestValidationError) -> RefusedError:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return RefusedError(400, f"the body is not JSON: {first['ctx']['error']} (character {first['loc'][-1]})")
    field = ".".join(str(part) for part in first["loc"] if part != "body")
    return RefusedError(422, f"{field or 'the body'}: {first['msg']}")
