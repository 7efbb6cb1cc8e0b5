"""What a user's callback gets at every step: what was filled, and the top candidates at every masked position."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from anyorder.decoding.engine import StepCallback, StepOutput
from anyorder.models.base import AllowedTokens, Canvas, Model, log_total

TOP_K = 5


@dataclass(frozen=True)
class Candidate:
    """A candidate token for a masked position."""

    token: str
    probability: float
    """The model's."""


@dataclass(frozen=True)
class Step:
    """One step of one sentence."""

    sentence: int
    """The index of the sentence in the input."""
    length: int
    """Length of the canvas: with several length candidates, a sentence is decoded once for each."""
    step: int
    """From 1."""
    filled: dict[int, Candidate]
    """What was written, by position."""
    candidates: dict[int, list[Candidate]]
    """The most probable tokens at every position that was masked before the step, best first."""


def top_candidates(model: Model, logits: Tensor, allowed: AllowedTokens, top_k: int) -> list[list[Candidate]]:
    """The most probable allowed tokens of each row, best first. logits: (M, vocab_size)"""
    best = allowed.restrict(logits).topk(min(top_k, int(model.allowed_tokens.sum())))
    probabilities = (best.values - log_total(logits)[:, None]).exp()
    return [
        [Candidate(token, probability) for token, probability in zip(model.to_tokens(ids), row, strict=True)]
        for ids, row in zip((best.indices + allowed.first).tolist(), probabilities.tolist(), strict=True)
    ]


def step_callback(
    model: Model,
    canvases: Sequence[Canvas],
    sentences: Sequence[int],
    on_step: Callable[[Step], None],
    top_k: int = TOP_K,
) -> StepCallback:
    """An engine callback that calls the user's. sentences: the index of each canvas's sentence."""

    def report(chosen: np.ndarray, output: StepOutput, filled: Tensor, tokens: Tensor, logprobs: Tensor) -> None:
        view = output.view
        steps = [Step(sentences[i], len(canvases[i].tokens), view.step, {}, {}) for i in chosen.tolist()]
        assert output.logits is not None
        candidates = top_candidates(model, output.logits, view.allowed, top_k)
        for position, ranked in zip(output.masked.tolist(), candidates, strict=True):
            canvas, at = divmod(position, view.masked.shape[1])
            steps[canvas].candidates[at] = ranked
        written = zip(filled.tolist(), model.to_tokens(tokens.tolist()), logprobs.exp().tolist(), strict=True)
        for position, token, probability in written:
            canvas, at = divmod(position, view.masked.shape[1])
            steps[canvas].filled[at] = Candidate(token, probability)
        for step in steps:
            on_step(step)

    return report
