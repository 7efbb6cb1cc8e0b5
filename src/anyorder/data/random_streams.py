"""Random numbers that depend only on a seed, what they are for, and a number: never on what was drawn before."""

import numpy as np


def random_for(seed: int, purpose: str, number: int) -> np.random.Generator:
    """A stream of random numbers for one batch, one epoch or one text, independent of all others."""
    key = np.array([seed, int.from_bytes(purpose.encode(), "little")], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, number]))
