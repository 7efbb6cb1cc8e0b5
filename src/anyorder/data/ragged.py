"""Index arithmetic on sentences that lie end to end, without a loop over sentences."""

import numpy as np


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The ranges `starts[i] .. starts[i] + lengths[i]` end to end.

    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)


def starts_of(lengths: np.ndarray) -> np.ndarray:
    """Where each stretch begins when stretches of these lengths lie end to end."""
    return np.cumsum(lengths) - lengths
