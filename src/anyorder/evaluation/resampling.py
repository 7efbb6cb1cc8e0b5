"""Random draws for paired tests, in blocks of bounded memory. Knows nothing about systems and scores.

The draws depend on the seed and the number of sentences only: not on the systems, the blocks or the version of numpy.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

BLOCK_SIZE = 1 << 22
"""Numbers drawn at once, unless one sample needs more."""


def draw_swaps(sentences: int, samples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Blocks of (samples, sentences): 1 where two systems swap their outputs, else 0, with equal probability."""
    for words in _random_words(-(-sentences // 64), sentences, samples, seed):
        yield np.unpackbits(words.view(np.uint8), axis=1, count=sentences).astype(np.float64)


def draw_bootstrap(sentences: int, samples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Blocks of (samples, sentences): how often each sentence is in a test set drawn with replacement."""
    for words in _random_words(-(-sentences // 2), sentences, samples, seed):
        numbers = words.view("<u4")[:, :sentences].astype(np.uint64)
        chosen = ((numbers * np.uint64(sentences)) >> np.uint64(32)).astype(np.int64)
        chosen += sentences * np.arange(len(chosen))[:, None]
        yield np.bincount(chosen.ravel(), minlength=chosen.size).reshape(chosen.shape).astype(np.float64)


def _random_words(words: int, sentences: int, samples: int, seed: int) -> Iterator[NDArray[np.uint64]]:
    """Blocks of (samples, words): 64 random bits each. Every sample takes whole words."""
    bits = np.random.PCG64(seed)
    block = max(1, BLOCK_SIZE // sentences)
    for start in range(0, samples, block):
        count = min(block, samples - start)
        yield bits.random_raw(count * words).astype("<u8").reshape(count, words)
