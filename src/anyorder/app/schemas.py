"""The requests and responses of the API. Their descriptions are its documentation (OpenAPI)."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints

from anyorder.app.limits import MAX_CHARACTERS, MAX_ORDERS
from anyorder.decoding.lengths import DEFAULT_LENGTH

Name = Annotated[str, StringConstraints(min_length=1, max_length=100)]


class SentenceQuery(BaseModel):
    """The fields that every request has."""

    model_config = ConfigDict(extra="forbid")

    model: Name = Field(description="A model of /api/models.")
    direction: Name = Field(description="Source and target language, such as de-en.")
    text: str = Field(max_length=MAX_CHARACTERS, description="The sentence to translate, as plain text.")
    reference: str | None = Field(
        None, max_length=MAX_CHARACTERS, description="A reference translation; with it, results have a sentence BLEU."
    )


class TranslateQuery(SentenceQuery):
    orders: list[Name] = Field(
        min_length=1,
        max_length=MAX_ORDERS,
        description="Orders of the model, with options if wanted: outer-in:stride=2.",
    )
    length: StrictInt | Name = Field(
        DEFAULT_LENGTH, description="One of the model's `lengths`, or a number of subwords."
    )
    schedule: StrictInt | Name = Field(
        "one", description="How many positions a step fills: one, a number, or threshold:0.9."
    )


class Fill(BaseModel):
    model_config = ConfigDict(extra="forbid")

    position: StrictInt = Field(description="From 0.")
    token: Name | None = Field(
        None, description="A subword of the vocabulary (@@ where the word goes on); the model's best if not given."
    )


class StepQuery(SentenceQuery):
    length: StrictInt = Field(description="Subwords of the target.")
    filled: list[Fill] = Field([], max_length=4096, description="Positions in the order in which they are filled.")
    order: Name | None = Field(None, description="The order whose choice of the next position is wanted.")
    top_k: int = Field(5, strict=True, ge=1, le=100, description="Number of candidates at each masked position.")


class ModelInfo(BaseModel):
    name: str
    directions: list[str]
    orders: list[str] = Field(description="All orders, learned ones first.")
    orders_of: dict[str, list[str]] = Field(description="Orders by direction: a learned order may serve only one.")
    lengths: list[str] = Field(
        description="Rules that find the target's length, the default first. A number is always possible."
    )
    longest: int = Field(description="Largest number of subwords of a source or a target.")


class ModelList(BaseModel):
    models: list[ModelInfo]
    schedules: list[str] = Field(description="Schedules to offer; other numbers are possible.")
    characters: int = Field(description="Largest number of characters of a text.")
    most_orders: int = Field(description="Largest number of orders in one request.")


class Run(BaseModel):
    order: str
    text: str = Field(description="The translation as plain text.")
    tokens: list[str] = Field(description="Its subwords; @@ where a word goes on.")
    steps: list[int] = Field(description="The step, from 1, at which each position was filled.")
    logprobs: list[float] = Field(description="The model's log-probability of each token when it was filled in.")
    length: int = Field(description="Number of subwords.")
    signature: str = Field(description="All settings that decide the result.")
    bleu: float | None = Field(description="Sentence BLEU (sacreBLEU, 13a, exp smoothing); null without a reference.")


class TranslateResponse(BaseModel):
    runs: list[Run] = Field(description="One for each order, in the order of the request.")


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
    tokens: list[str | None] = Field(description="Subwords; null where masked.")
    steps: list[int | None] = Field(description="The step, from 1, at which each was filled; null where masked.")
    logprobs: list[float | None] = Field(description="The model's log-probability of each token; null where masked.")
    given: list[bool] = Field(description="True where the request chose the token.")
    text: str | None = Field(description="The translation as plain text, once nothing is masked.")
    bleu: float | None = Field(description="Sentence BLEU, once nothing is masked; null without a reference.")
    next: NextPosition
    candidates: list[list[Candidate] | None] = Field(
        description="The most probable tokens at each masked position, best first; null where filled."
    )


class ErrorResponse(BaseModel):
    error: str = Field(description="One line that says what is wrong.")
