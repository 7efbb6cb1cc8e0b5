"""The requests and responses of the API. Their descriptions are its documentation (OpenAPI)."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints

from anyorder.decoding.config import AUTO

MAX_CHARACTERS = 400
"""Maximum characters of a text, and of a reference."""
MAX_ORDERS = 6
"""Maximum orders in one request."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=100)]
Orders = Annotated[list[Name], Field(min_length=1, max_length=MAX_ORDERS)]
Kind = Literal["translation", "infill", "puzzle"]


class Request(BaseModel):
    """The fields that every request has."""

    model_config = ConfigDict(extra="forbid")

    model: Name = Field(description="A model of /api/models.")


class Query(Request):
    """The fields of a request to decode a text."""

    task: Name | None = Field(
        None, description="One of the model's tasks, such as the direction de-en; needed if it has several."
    )
    text: str = Field(
        max_length=MAX_CHARACTERS,
        description="Plain text: a sentence to translate; a text with [MASK] for every token to fill in; or a puzzle, "
        "a character a cell, 0 where it is empty.",
    )
    reference: str | None = Field(
        None,
        max_length=MAX_CHARACTERS,
        description="A reference translation, or the solution of a puzzle: results say how close they come.",
    )


class DecodeQuery(Query):
    orders: Orders = Field(description="Orders of the task, with options if wanted: outer-in:stride=2.")
    schedule: StrictInt | Name = Field(
        AUTO,
        description="How many positions to fill per step: one, a number, cosine:8, threshold:0.9, ...; auto is the "
        "schedule that the revision was published with; without a revision it is one, or blocks:B for a model with "
        "blocks of B positions.",
    )
    revision: Name = Field(
        "none", description="What is masked and written again after a step: none, mask-predict:4, gibbs, ..."
    )
    length: StrictInt | Name | None = Field(
        None, description="Of a translation: one of the model's `lengths` (the first if not given), or a number."
    )


class PuzzleQuery(Request):
    seed: int = Field(strict=True, ge=0, lt=1 << 53, description="The same seed gives the same puzzle.")


class Fill(BaseModel):
    model_config = ConfigDict(extra="forbid")

    position: StrictInt = Field(description="From 0.")
    token: Name | None = Field(
        None, description="A token of the vocabulary, written as results show it; the model's best if not given."
    )


class StepQuery(Query):
    length: StrictInt | None = Field(None, description="Of a translation: its number of subwords.")
    filled: list[Fill] = Field([], max_length=4096, description="Positions in the order in which they are filled.")
    order: Name | None = Field(None, description="The order whose choice of the next position is wanted.")
    num_candidates: int = Field(
        5, strict=True, ge=1, le=100, description="Number of candidates at each masked position."
    )


class CheckQuery(Request):
    schedule: StrictInt | Name | None = Field(None, description="The name of a schedule.")
    revision: Name | None = Field(None, description="The name of a revision.")


class CheckResponse(BaseModel):
    schedule: str | None = Field(description="What the schedule does; null if none was named.")
    revision: str | None = Field(description="What the revision does; null if none was named.")
    usual_schedule: str | None = Field(description="The schedule that is used with the revision if none is named.")


class ScheduleChoice(BaseModel):
    name: str
    label: str = Field(description="What it does, in a few words.")
    group: str = Field(description="The heading of those that belong together.")


class RevisionChoice(BaseModel):
    name: str
    label: str = Field(description="What it does, in a few words.")
    usual_schedule: str = Field(description="The schedule that is used with it if none is named.")


class Grid(BaseModel):
    columns: int
    rows: int
    box: int = Field(description="Cells along the side of a box; 0 if the grid has no boxes.")
    symbols: list[str] = Field(description="What a cell may hold.")


class ModelInfo(BaseModel):
    name: str
    kind: Kind = Field(description="What its texts are: sentences to translate, texts with masks, or puzzles.")
    orders: dict[str, list[str]] = Field(
        description="Its tasks, and the orders of each, learned ones first. Only translation models have several "
        "tasks: their directions."
    )
    lengths: list[str] = Field(
        description="Rules that find a translation's length, the default first; a number is always possible."
    )
    schedules: list[ScheduleChoice] = Field(description="Schedules to offer, the default first; others are possible.")
    revisions: list[RevisionChoice] = Field(description="Revisions to offer, the default first; others are possible.")
    longest: int = Field(description="Largest number of tokens of a text; for a translation, of source and target.")
    grid: Grid | None = Field(description="What a puzzle looks like; null for other models.")


class ModelList(BaseModel):
    models: list[ModelInfo]
    characters: int = Field(description="Largest number of characters of a text.")
    most_orders: int = Field(description="Largest number of orders in one request.")


class Write(BaseModel):
    position: int = Field(description="From 0.")
    step: int = Field(description="From 1.")
    token: str
    logprob: float = Field(description="The model's log-probability of the token when it was written.")


class Verdict(BaseModel):
    """How good a finished text is; null where the task, or a missing reference, does not say."""

    bleu: float | None = Field(default=None, description="Sentence BLEU of a translation, as sacreBLEU computes it.")
    solved: bool | None = Field(default=None, description="Whether an answer breaks no rule, or equals the solution.")
    wrong: list[int] | None = Field(default=None, description="Cells of a wrong answer that differ from the solution.")


class Run(Verdict):
    order: str
    text: str = Field(description="The finished text.")
    canvas: list[str | None] | None = Field(
        description="The tokens that were given, null where one was filled in; null if all were."
    )
    positions: list[int] = Field(description="Where each token was filled in, from 0.")
    tokens: list[str] = Field(description="The tokens that were filled in; @@ marks a subword inside a word.")
    steps: list[int] = Field(description="The step, from 1, at which each was filled in.")
    logprobs: list[float] = Field(description="The model's log-probability of each token when it was filled in.")
    length: int = Field(description="Number of tokens that were filled in.")
    writes: list[Write] | None = Field(
        description="With a revision, every write in order. `tokens`, `steps` and `logprobs` are those of the last."
    )
    signature: str = Field(description="All settings that decide the result.")


class DecodeResponse(BaseModel):
    runs: list[Run] = Field(description="One for each order, in the order of the request.")


class Puzzle(BaseModel):
    text: str = Field(description="A character a cell, 0 where it is empty.")
    reference: str = Field(description="Its solution.")


class Candidate(BaseModel):
    token: str
    p: float = Field(
        validation_alias="probability", description="The model's probability of this token at this position."
    )


class NextPosition(BaseModel):
    position: int | None = Field(
        validation_alias="next",
        description="The position that the order would fill now; null without an order, or when nothing is masked.",
    )
    scores: list[float | None] = Field(
        description="Softmax of the order's scores over the masked positions; null where filled, or without an order."
    )
    policy: bool = Field(
        validation_alias="is_policy",
        description="True for a learned order: scores are its probabilities. False: they only rank the positions.",
    )


class StepResponse(Verdict):
    """The verdict is null until nothing is masked."""

    tokens: list[str | None] = Field(description="Tokens; null where masked.")
    steps: list[int | None] = Field(
        description="The step, from 1, at which each was filled; null where masked, and where the text gave the token."
    )
    logprobs: list[float | None] = Field(description="The model's log-probability of each token; null as in `steps`.")
    given: list[bool] = Field(description="True where the request chose the token, or gave it with the text.")
    text: str | None = Field(description="The finished text, once nothing is masked.")
    next: NextPosition
    candidates: list[list[Candidate] | None] = Field(
        description="The most probable tokens at each masked position, best first; null where filled."
    )


class ErrorResponse(BaseModel):
    error: str = Field(description="One line that says what is wrong.")
