"""Turns models, trajectories and steps into the API's responses."""

from collections.abc import Sequence

from anyorder.app import schemas
from anyorder.app.served_model import ServedModel, judge
from anyorder.decoding.config import AUTO
from anyorder.decoding.revision import REVISIONS
from anyorder.decoding.schedules import SCHEDULES
from anyorder.decoding.stepper import StepState
from anyorder.decoding.trajectory import Trajectory
from anyorder.registry import summary


def model_info(served: ServedModel) -> schemas.ModelInfo:
    puzzle, grid = served.puzzle, None
    if puzzle is not None:
        grid = schemas.Grid(columns=puzzle.columns, rows=puzzle.rows, box=puzzle.box, symbols=list(puzzle.symbols))
    return schemas.ModelInfo(
        name=served.name,
        kind=served.kind,
        orders={task: list(orders) for task, orders in served.orders.items()},
        lengths=served.lengths,
        schedules=_schedule_choices(served.kind, served.usual_schedule()),
        revisions=_revision_choices(served),
        longest=served.model.max_length,
        grid=grid,
    )


def check_response(served: ServedModel, schedule: str | int | None, revision: str | None) -> schemas.CheckResponse:
    """What this schedule and revision do; an `InputError` if the model cannot be decoded with them."""
    usual = served.usual_schedule() if revision is None else served.usual_schedule(served.revision(revision))
    name = None if schedule is None else served.schedule(schedule)
    return schemas.CheckResponse(
        schedule=None if name is None else _describe_schedule(usual if name == AUTO else name),
        revision=None if revision is None else summary(REVISIONS[revision.partition(":")[0].strip()]),
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
        response = schemas.Run.model_validate(run, from_attributes=True)
        responses.append(response.model_copy(update=verdict.model_dump()))
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


def _schedule_choices(kind: schemas.Kind, default: str) -> list[schemas.ScheduleChoice]:
    """A short list, the default first. Texts with masks have few of them, so their steps and blocks are smaller."""
    size, word = (4, "four") if kind == "infill" else (8, "eight")
    groups = {
        "Positions per step": {
            "one": "one position per step",
            "2": "two positions per step",
            "4": "four positions per step",
        },
        "Number of steps": {
            "steps:1": "everything at once",
            f"steps:{size}": f"{word} steps of equal size",
            f"cosine:{size}": f"{word} steps, small ones first",
            "dilated": "increasingly fine grids, with the order dilated",
        },
        "Where the model is confident": {
            "threshold:0.7": "all tokens with a probability of 70 % or more",
            "threshold:0.9": "all tokens with a probability of 90 % or more",
            "factor:1": "the more tokens at once, the more probable they must be",
            "entropy-bound:1": "until the entropies add up to 1 nat",
            "klass": "tokens that are probable and no longer change",
        },
        "Block by block": {
            f"blocks:{size}": f"{word} positions from the left, then the next {word}",
            f"blocks:{size}+threshold:0.7": "in each block, all tokens with 70 % or more",
        },
    }
    choices = [
        schemas.ScheduleChoice(name=name, label=label, group=group)
        for group, names in groups.items()
        for name, label in names.items()
    ]
    if default == choices[0].name:
        return choices
    label = "one position per step, in the blocks of the model"
    first = schemas.ScheduleChoice(name=default, label=label, group=choices[0].group)
    return [first, *(choice for choice in choices if choice.name != default)]


def _revision_choices(served: ServedModel) -> list[schemas.RevisionChoice]:
    """A short list, none first."""
    labels = {
        "none": "filled tokens stay",
        "mask-predict:4": "four passes that rewrite the least probable tokens",
        "p2:4": "four passes that rewrite what the model now doubts",
        "gibbs": "rewrite every token once, one at a time",
    }
    return [
        schemas.RevisionChoice(name=name, label=label, usual_schedule=served.usual_schedule(name))
        for name, label in labels.items()
    ]


def _describe_schedule(name: str) -> str:
    """What a schedule does, in one line. name: one that `make_schedule` takes."""
    base = name.partition(":")[0].strip()
    if base not in SCHEDULES:
        return "One position per step." if base in ("one", "1") else f"{base} positions per step."
    return summary(SCHEDULES[base])
