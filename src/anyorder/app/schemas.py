"""The shapes of the API's questions and answers. Their descriptions are its documentation (OpenAPI)."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints

from anyorder.app.middleware import CHARACTERS, ORDERS

Name = Annotated[str, StringConstraints(min_length=1, max_length=100)]


class Query(BaseModel):
    """What every question says."""

    model_config = ConfigDict(extra="forbid")

    model: Name = Field(description="One of /api/models.")
    direction: Name = Field(description="Source and target language, such as de-en.")
    text: str = Field(max_length=CHARACTERS, description="The sentence to translate, plain.")


class TranslateQuery(Query):
    orders: list[Name] = Field(
        min_length=1, max_length=ORDERS, description="Orders of the model; options may follow: outer-in:stride=2."
    )
    length: StrictInt | Name = Field("predicted", description="One of the model's `lengths`, or a number of subwords.")
    budget: StrictInt | Name = Field("one", description="Positions filled in one step: one, or a number.")


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    position: StrictInt = Field(description="From 0.")


class StepQuery(Query):
    length: StrictInt = Field(description="Subwords of the target.")
    filled: list[Place] = Field([], max_length=4096, description="Positions in the order in which they are filled.")
    order: Name | None = Field(None, description="Says what it would fill next.")


class ModelCard(BaseModel):
    name: str
    directions: list[str]
    orders: list[str] = Field(description="All of them, learned ones first.")
    orders_of: dict[str, list[str]] = Field(description="By direction: a learned order may serve only one.")
    lengths: list[str] = Field(description="Ways to find the target's length; a number is always possible.")
    longest: int = Field(description="Subwords of a source or a target.")


class Models(BaseModel):
    models: list[ModelCard]
    characters: int = Field(description="The longest text.")
    most_orders: int = Field(description="In one request.")


class Run(BaseModel):
    order: str
    text: str = Field(description="The translation as a reader expects it.")
    tokens: list[str] = Field(description="Its subwords; @@ where a word goes on.")
    steps: list[int] = Field(description="The step, from 1, at which each position was filled.")
    logprobs: list[float] = Field(description="The model's log-probability of each token when it was filled in.")
    length: int = Field(description="Number of subwords.")
    signature: str = Field(description="How it was made.")


class Runs(BaseModel):
    runs: list[Run] = Field(description="One for each order, in the order of the request.")


class Candidate(BaseModel):
    token: str
    p: float = Field(description="The model's probability of this token here.")


class Next(BaseModel):
    position: int | None = Field(description="What the order would fill now; null without one, or when all is filled.")
    scores: list[float | None] = Field(
        description="Softmax of the order's scores over the masked positions; null where filled, and without an order."
    )
    policy: bool = Field(
        description="True for a learned order: scores are its probabilities. False: they rank positions, no more."
    )


class Stepped(BaseModel):
    tokens: list[str | None] = Field(description="Subwords; null where masked.")
    steps: list[int | None] = Field(description="The step, from 1, at which each was filled; null where masked.")
    logprobs: list[float | None] = Field(description="The model's log-probability of each token; null where masked.")
    text: str | None = Field(description="The translation as a reader expects it, once all is filled.")
    next: Next
    candidates: list[list[Candidate] | None] = Field(
        description="The five most probable tokens at each masked position, best first; null where filled."
    )


class Problem(BaseModel):
    error: str = Field(description="One line that says what is wrong.")
