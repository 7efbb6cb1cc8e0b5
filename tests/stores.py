"""Stores of random sentences, written in milliseconds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np

from anyorder.data import store
from anyorder.data.text import TextConfig
from anyorder.data.vocabulary import Vocabulary
from anyorder.files import atomic_folder


def write_store(
    folder: Path,
    vocabulary: Vocabulary,
    splits: Mapping[str, int],
    corpora: Sequence[str] = ("train",),
    text: TextConfig | None = None,
    longer: int = 0,
) -> Path:
    """A store named after its languages, such as `ro-en`, with so many pairs of 5 to 12 subwords in each split.

    longer: By how many subwords the second language's sentences are longer.
    """
    languages = tuple(folder.name.split("-"))
    random = np.random.default_rng(crc32(folder.name.encode()))
    dtype = np.dtype(np.uint16)
    written = {}
    with atomic_folder(folder) as partial:
        vocabulary.save(partial)
        for split, pairs in splits.items():
            for language in languages:
                lengths = random.integers(5, 13, pairs) + longer * (language == languages[1])
                ids = random.integers(vocabulary.first_word, len(vocabulary), int(lengths.sum()))
                (partial / store.ids_name(split, language)).write_bytes(ids.astype(dtype).tobytes())
                np.save(partial / store.ends_name(split, language), np.cumsum(lengths))
            np.save(partial / store.corpus_name(split), (np.arange(pairs) % len(corpora)).astype(np.uint8))
            written[split] = {"parallel": True, "languages": languages, "corpora": list(corpora), "pairs": pairs}
        size = {"size": len(vocabulary), "fingerprint": vocabulary.fingerprint}
        store.write_manifest(partial, languages, text or TextConfig(), dtype, vocabulary=size, splits=written)
    return folder
