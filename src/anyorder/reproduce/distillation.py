"""Distillation: a store whose training targets are the translations of an autoregressive baseline.

A pair becomes two, one for each direction, with the real text as source. They are named after their corpus and the
language they are translated into, such as `news-into-en`, so that a model can learn each in one direction only.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from anyorder.data.packing import Side, ranges
from anyorder.data.store import MANIFEST, MAX_CORPORA, Split, Store, write_corpus, write_side
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError, check_number
from anyorder.files import atomic_folder, sha256, write_json
from anyorder.files.folders import CHECKSUMS
from anyorder.models.storage import WEIGHTS
from anyorder.reproduce.autoregressive import generate, load_baseline
from anyorder.training.config import choose_by_device

SPLIT = "train"
AT_ONCE = 1_024
"""Pairs that are translated between two looks at the clock; 64 times as many on a GPU."""


@dataclass(frozen=True)
class Distilled:
    """What a store consists of."""

    pairs: int
    """Pairs that were translated, in both directions."""
    kept: dict[str, int]
    """By target language: translations without a word or without an end, for which the real one was kept."""
    only_into: dict[str, str]
    """The new corpora and their target languages, for `MaskingConfig`."""


def distill(
    store: Store,
    baseline: Path,
    out: Path,
    *,
    pairs: int | None = None,
    minutes: float | None = None,
    beam: int = 1,
    seed: int = 1,
    device: torch.device | None = None,
    on_progress: Callable[[int], None] = lambda sentences: None,
) -> Distilled:
    """Write a store in which the baseline's translations replace the targets of training pairs.

    Other splits stay as they are, and so do training pairs that are not translated.

    Args:
        store: Parallel text of two languages with the baseline's vocabulary.
        baseline: The folder of an autoregressive baseline.
        out: The folder to write; it must not exist.
        pairs: How many training pairs to translate, drawn at random; by default all.
        minutes: Time after which no more pairs are begun; the rest counts as not drawn.
        beam: Beam size; 1 is greedy.
        seed: Seed for drawing pairs.
        device: Where to translate; by default the CPU.
        on_progress: Called with the number of finished sentences.
    """
    check_number("pairs", pairs, at_least=1)
    check_number("minutes", minutes, above=0)
    check_number("beam", beam, at_least=1)
    if SPLIT not in store or not store.split(SPLIT).parallel or len(store.languages) != 2:
        raise InputError(f"{store.path}: distillation needs parallel training text of two languages")
    split = store.split(SPLIT)
    drawn = np.random.default_rng(seed).permutation(len(split))
    chosen = drawn[:pairs]
    device = device or torch.device("cpu")
    at_once = choose_by_device(None, device, cuda=64 * AT_ONCE, cpu=AT_ONCE)
    end = None if minutes is None else time.monotonic() + minutes * 60
    with atomic_folder(out, replace=False) as folder:
        teacher = _Teacher(baseline, store.vocabulary, beam, device)
        parts, done = [], 0
        kept = dict.fromkeys(store.languages, 0)
        while done < len(chosen) and (not done or end is None or time.monotonic() < end):
            rows = np.sort(chosen[done : done + at_once])
            for target, source in zip(store.languages, reversed(store.languages), strict=True):
                part, number = teacher.translate(split, rows, source, target, on_progress)
                parts.append(part)
                kept[target] += number
            done += len(rows)
        parts.append(_Part.of(split, np.sort(drawn[done:])))
        corpora = _write(folder, store, parts)
        record = {"baseline": sha256(baseline / WEIGHTS), "beam": beam, "seed": seed, "pairs": done, "kept": kept}
        _write_rest(folder, store, corpora, sum(len(part.corpus) for part in parts), record)
    only_into = {name: part.into for part in parts if part.into for name in part.corpora if name in corpora}
    return Distilled(done, kept, only_into)


@dataclass(frozen=True)
class _Part:
    """Some pairs of the new split."""

    sides: dict[str, Side]
    corpora: tuple[str, ...]
    corpus: np.ndarray
    into: str | None = None
    """The only language into which they are translated."""

    @classmethod
    def of(cls, split: Split, rows: np.ndarray) -> "_Part":
        assert split.corpus is not None
        sides = {language: _take(side, rows) for language, side in split.sides.items()}
        return cls(sides, split.corpora, split.corpus[rows])


class _Teacher:
    """A baseline that translates the pairs of a split."""

    def __init__(self, folder: Path, vocabulary: Vocabulary, beam: int, device: torch.device):
        self._network, record = load_baseline(folder, device)
        if record.text("vocabulary") != vocabulary.fingerprint:
            raise InputError(f"{folder}: was trained with another vocabulary than that of the store")
        self._folder = folder
        self._languages = record.texts("languages")
        self._vocabulary = vocabulary
        self._beam = beam

    def translate(
        self, split: Split, rows: np.ndarray, source: str, target: str, on_progress: Callable[[int], None]
    ) -> tuple[_Part, int]:
        """Pairs with new targets, and how many of them kept the real one."""
        if target not in self._languages:
            raise InputError(f"{self._folder}: the baseline does not translate into {target}")
        assert split.corpus is not None
        sources, targets = split.sides[source], split.sides[target]
        eos = self._vocabulary.eos
        found = generate(
            self._network,
            self._vocabulary,
            [sources[i] for i in rows],
            len(self._vocabulary) + self._languages.index(target),
            beam=self._beam,
            room=int(targets.lengths.max()) + 1,  # no longer than the split's longest sentence, and </s>
            on_progress=on_progress,
        )
        usable = [len(ids) > 1 and ids[-1] == eos for ids in found]
        made = [ids[:-1] if good else targets[i] for i, ids, good in zip(rows, found, usable, strict=True)]
        sides = {source: _take(sources, rows), target: _join(made)}
        corpora = tuple(f"{name}-into-{target}" for name in split.corpora)
        return _Part(sides, corpora, split.corpus[rows], target), usable.count(False)


def _take(side: Side, rows: np.ndarray) -> Side:
    lengths = side.lengths[rows]
    return Side(side.ids[ranges(side.starts[rows], lengths)], np.cumsum(lengths))


def _join(sentences: Sequence[np.ndarray]) -> Side:
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return Side(np.concatenate(sentences), np.cumsum(lengths))


def _write(folder: Path, store: Store, parts: Sequence[_Part]) -> list[str]:
    """Write the new training split and return the names of its corpora: those that have pairs."""
    used = (name for part in parts for i, name in enumerate(part.corpora) if (part.corpus == i).any())
    names = list(dict.fromkeys(used))
    if len(names) > MAX_CORPORA:
        raise InputError(f"{store.path}: {len(names)} corpora after distillation, at most {MAX_CORPORA} are possible")
    for language in store.languages:
        sides = [part.sides[language] for part in parts]
        dtype = store.split(SPLIT).sides[language].ids.dtype
        ids: Iterable[np.ndarray] = (side.ids.astype(dtype) for side in sides)
        write_side(folder, SPLIT, language, ids, np.concatenate([side.lengths for side in sides]))
    number = {name: i for i, name in enumerate(names)}
    corpus = [np.array([number.get(name, 0) for name in part.corpora])[part.corpus] for part in parts]
    write_corpus(folder, SPLIT, np.concatenate(corpus))
    return names


def _write_rest(folder: Path, store: Store, corpora: list[str], pairs: int, record: dict[str, object]) -> None:
    """Copy what stays the same and write the manifest."""
    for file in sorted(store.path.iterdir()):
        if file.is_file() and file.name not in (MANIFEST, CHECKSUMS) and not file.name.startswith(f"{SPLIT}."):
            shutil.copyfile(file, folder / file.name)
    train = {**store.manifest["splits"][SPLIT], "corpora": corpora, "pairs": pairs}
    splits = {**store.manifest["splits"], SPLIT: train}
    write_json(folder / MANIFEST, {**store.manifest, "splits": splits, "distilled": record})
