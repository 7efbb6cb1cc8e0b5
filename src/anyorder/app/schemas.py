"""The requests and responses of the API. Their descriptions are its documentation (OpenAPI)."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints

from anyorder.app.limits import MAX_CHARACTERS, MAX_ORDERS
from anyorder.decoding.config import AUTO
from anyorder.decoding.lengths import DEFAULT_LENGTH

Name = Annotated[str, StringConstraints(min_length=1, max_length=100)]


Orders = Annotated[list[Name], Field(min_length=1, max_length=MAX_ORDERS)]


class Query(BaseModel):
    """The fields that every request has."""

    model_config = ConfigDict(extra="forbid")

    model: Name = Field(description="A model of /api/models.")
    text: str = Field(
        max_length=MAX_CHARACTERS,
        description="Plain text: a sentence to translate; a text with [MASK] for every token to fill in; or a puzzle, "
        "a character a cell, 0 where it is empty.",
    )


class DecodingQuery(Query):
    """What decides how a text is decoded."""

    orders: Orders = Field(description="Orders of the model, with options if wanted: outer-in:stride=2.")
    schedule: StrictInt | Name = Field(
        AUTO,
        description="How many positions to fill per step: one, a number, cosine:8, threshold:0.9, ...; auto is the "
        "schedule that the revision was published with; without a revision it is one, or blocks:B for a model with "
        "blocks of B positions.",
    )
    revision: Name = Field(
        "none", description="What is masked and written again after a step: none, mask-predict:4, gibbs, ..."
    )


class TranslateQuery(DecodingQuery):
    direction: Name = Field(description="Source and target language, such as de-en.")
    reference: str | None = Field(
        None, max_length=MAX_CHARACTERS, description="A reference translation; with it, results have a sentence BLEU."
    )
    length: StrictInt | Name = Field(
        DEFAULT_LENGTH, description="One of the model's `lengths`, or a number of subwords."
    )


class InfillQuery(DecodingQuery):
    pass


class SolveQuery(DecodingQuery):
    reference: str | None = Field(
        None, max_length=MAX_CHARACTERS, description="The solution; with it, results say which cells are wrong."
    )


class PuzzleQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: Name = Field(description="A model of /api/models that solves puzzles.")
    seed: int = Field(strict=True, ge=0, lt=1 << 53, description="The same seed gives the same puzzle.")


class Fill(BaseModel):
    model_config = ConfigDict(extra="forbid")

    position: StrictInt = Field(description="From 0.")
    token: Name | None = Field(
        None, description="A token of the vocabulary, written as results show it; the model's best if not given."
    )


class StepQuery(Query):
    direction: Name | None = Field(None, description="For a model that translates: source and target language.")
    length: StrictInt | None = Field(None, description="For a model that translates: subwords of the target.")
    reference: str | None = Field(
        None, max_length=MAX_CHARACTERS, description="A reference translation, or the solution of a puzzle."
    )
    filled: list[Fill] = Field([], max_length=4096, description="Positions in the order in which they are filled.")
    order: Name | None = Field(None, description="The order whose choice of the next position is wanted.")
    top_k: int = Field(5, strict=True, ge=1, le=100, description="Number of candidates at each masked position.")


class CheckQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: Name = Field(description="A model of /api/models.")
    schedule: StrictInt | Name | None = Field(None, description="The name of a schedule.")
    revision: Name | None = Field(None, description="The name of a revision.")


class CheckResponse(BaseModel):
    schedule: str | None = Field(description="What the schedule does; null if none was named.")
    revision: str | None = Field(description="What the revision does; null if none was named.")
    usual_schedule: str | None = Field(description="The schedule that is used with the revision if none is named.")


class Choice(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    name: str
    label: str = Field(description="What it does, in a few words.")


class ScheduleChoice(Choice):
    group: str = Field(description="The heading of those that belong together.")


class RevisionChoice(Choice):
    usual_schedule: str = Field(description="The schedule that is used with it if none is named.")


class Grid(BaseModel):
    columns: int
    rows: int
    box: int = Field(description="Cells along the side of a box; 0 if the grid has no boxes.")
    symbols: list[str] = Field(description="What a cell may hold.")


class ModelInfo(BaseModel):
    name: str
    kind: Literal["translation", "infill", "puzzle"] = Field(
        description="What the model does: /api/translate, /api/infill or /api/solve."
    )
    directions: list[str] = Field(description="What it translates; empty for other models.")
    orders: list[str] = Field(description="All orders, learned ones first.")
    orders_of: dict[str, list[str]] = Field(
        description="Orders by direction: a learned order may serve only one. Empty for other models."
    )
    lengths: list[str] = Field(
        description="Rules that find the target's length, the default first; a number is always possible. Empty for "
        "other models."
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
    model_config = ConfigDict(from_attributes=True)

    position: int = Field(description="From 0.")
    step: int = Field(description="From 1.")
    token: str
    logprob: float = Field(description="The model's log-probability of the token when it was written.")


class Run(BaseModel):
    order: str
    text: str = Field(description="The finished text.")
    tokens: list[str] = Field(description="The tokens that were filled in; @@ marks a subword inside a word.")
    steps: list[int] = Field(description="The step, from 1, at which each was filled in.")
    logprobs: list[float] = Field(description="The model's log-probability of each token when it was filled in.")
    length: int = Field(description="Number of tokens that were filled in.")
    writes: list[Write] | None = Field(
        description="With a revision, every write in order. `tokens`, `steps` and `logprobs` are those of the last."
    )
    signature: str = Field(description="All settings that decide the result.")


class Translation(Run):
    bleu: float | None = Field(description="Sentence BLEU (sacreBLEU, 13a, exp smoothing); null without a reference.")


class Infilling(Run):
    canvas: list[str | None] = Field(description="The tokens that were given; null where one was filled in.")
    positions: list[int] = Field(description="Where each token was filled in, from 0.")


class Answer(Infilling):
    solved: bool = Field(description="True if the answer breaks no rule, or equals the solution.")
    wrong: list[int] | None = Field(
        description="Cells that differ from the solution, if the answer is wrong; null if the solution is not known."
    )


class TranslateResponse(BaseModel):
    runs: list[Translation] = Field(description="One for each order, in the order of the request.")


class InfillResponse(BaseModel):
    runs: list[Infilling] = Field(description="One for each order, in the order of the request.")


class SolveResponse(BaseModel):
    runs: list[Answer] = Field(description="One for each order, in the order of the request.")


class Puzzle(BaseModel):
    text: str = Field(description="A character a cell, 0 where it is empty.")
    reference: str = Field(description="Its solution.")


class Candidate(BaseModel):
    token: str
    p: float = Field(description="The model's probability of this token at this position.")


class NextPosition(BaseModel):
    position: int | None = Field(
        description="The position that the order would fill now; null without an order, or when nothing is masked."
    )
    scores: list[float | None] = Field(
        description="Softmax of the order's scores over the masked positions; null where filled, or without an order."
    )
    policy: bool = Field(
        description="True for a learned order: scores are its probabilities. False: they only rank the positions."
    )


class StepResponse(BaseModel):
    tokens: list[str | None] = Field(description="Tokens; null where masked.")
    steps: list[int | None] = Field(
        description="The step, from 1, at which each was filled; null where masked, and where the text gave the token."
    )
    logprobs: list[float | None] = Field(description="The model's log-probability of each token; null as in `steps`.")
    given: list[bool] = Field(description="True where the request chose the token, or gave it with the text.")
    text: str | None = Field(description="The finished text, once nothing is masked.")
    bleu: float | None = Field(
        description="Sentence BLEU of a translation, once nothing is masked; null without a reference."
    )
    solved: bool | None = Field(description="For a puzzle, once nothing is masked: see /api/solve.")
    wrong: list[int] | None = Field(description="For a puzzle, once nothing is masked: see /api/solve.")
    next: NextPosition
    candidates: list[list[Candidate] | None] = Field(
        description="The most probable tokens at each masked position, best first; null where filled."
    )


class ErrorResponse(BaseModel):
    error: str = Field(description="One line that says what is wrong.")
