"""A source split into parts: choose each part's target length, and join and check their hypotheses.

This module knows nothing about text.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from anyorder.decoding.state import Hypothesis
from anyorder.errors import InputError


def share_length(length: int, sizes: Sequence[int], room: int) -> list[int]:
    """Divide a target length among the parts of its source in proportion to size, each from 1 to `room`.

    >>> share_length(10, [6, 3, 1], room=5)
    [5, 3, 1]
    """
    total = sum(sizes)
    ends = [round(length * end / total) for end in accumulate(sizes)]
    return [min(max(end - start, 1), room) for start, end in zip([0, *ends], ends, strict=False)]


def join_hypotheses(parts: Sequence[Hypothesis]) -> Hypothesis:
    """Concatenate the parts; each part's steps continue those of the previous part."""
    if len(parts) == 1:
        return parts[0]
    first_steps = [0, *accumulate(_last_step(part) for part in parts)]
    first_positions = [0, *accumulate(len(part.ids) for part in parts)]
    writes = None
    if parts[0].writes is not None:
        writes = [
            (position + first_position, step + first_step, token, logprob)
            for part, first_position, first_step in zip(parts, first_positions, first_steps, strict=False)
            for position, step, token, logprob in part.writes or ()
        ]
    return Hypothesis(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.steps + first for part, first in zip(parts, first_steps, strict=False)]),
        np.concatenate([part.logprobs for part in parts]),
        writes,
        sum(part.forwards for part in parts),
    )


def check_finite(decoded: Iterable[Sequence[Hypothesis]], model: str) -> None:
    """An `InputError` if a hypothesis has non-finite log-probabilities. model: its name."""
    if not all(np.isfinite(hypothesis.logprobs).all() for own in decoded for hypothesis in own):
        raise InputError(f"{model}: its probabilities are not numbers, so its weights must be damaged")


def _last_step(hypothesis: Hypothesis) -> int:
    return int(hypothesis.steps.max(initial=0))
