"""Distillation: a store whose training targets are the translations of an autoregressive baseline.

A pair becomes two, one for each direction, with the real text as source. They are in new corpora, such as
`news-into-en`, which the store limits to translation into that language, so a model never learns to translate the
baseline's output.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from anyorder.data.packing import Side
from anyorder.data.store import MANIFEST, MAX_CORPORA, Split, Store, join, write_corpus, write_side
from anyorder.errors import InputError, check_number
from anyorder.files import atomic_folder, sha256, write_json
from anyorder.files.folders import CHECKSUMS
from anyorder.models.storage import WEIGHTS
from anyorder.reproduce.autoregressive import check_baseline, generate, load_baseline
from anyorder.training.config import choose_by_device

SPLIT = "train"
CHUNK_PAIRS = 1_024
"""Pairs that are translated before the time is checked again; 64 times as many on a GPU."""
MAX_BEAM = 100


@dataclass(frozen=True)
class Distilled:
    """What `distill` wrote."""

    pairs: int
    """Pairs that were translated, in both directions."""
    kept: dict[str, int]
    """By target language: how many kept their real translation, because the baseline's was empty or did not end."""


def distill(
    data: Store | Path,
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
        data: A store: parallel text of two languages with the baseline's vocabulary.
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
    check_number("beam", beam, at_least=1, at_most=MAX_BEAM)
    check_number("seed", seed, at_least=0)
    store = data if isinstance(data, Store) else Store(data)
    split = _check_store(store)
    device = device or torch.device("cpu")
    teacher = _Teacher(baseline, store, split, beam, device)
    drawn = np.random.default_rng(seed).permutation(len(split))
    chosen = drawn[:pairs]
    chunk = choose_by_device(None, device, cuda=64 * CHUNK_PAIRS, cpu=CHUNK_PAIRS)
    with atomic_folder(out, replace=False) as folder:
        _copy_other_splits(store, folder)
        end = None if minutes is None else time.monotonic() + minutes * 60
        parts, done = [], 0
        kept = dict.fromkeys(store.languages, 0)
        while done < len(chosen) and (not done or end is None or time.monotonic() < end):
            rows = np.sort(chosen[done : done + chunk])
            for target in store.languages:
                part, kept_here = teacher.translate(rows, target, on_progress)
                parts.append(part)
                kept[target] += kept_here
            done += len(rows)
        if done < len(split):
            parts.append(_take(split, np.sort(drawn[done:])))
        made = _without_empty_corpora(join(parts))
        _write_training(folder, made)
        record = {"baseline": teacher.checksum, "beam": beam, "seed": seed, "pairs": done, "kept": kept}
        _write_manifest(folder, store, made, record)
    return Distilled(done, kept)


def _check_store(store: Store) -> Split:
    """The training split of a store that can be distilled. All splits are opened, so that no damage is copied."""
    splits = {name: store.split(name) for name in store.split_names}
    split = splits.get(SPLIT)
    if split is None or not split.parallel or len(store.languages) != 2:
        raise InputError(f"{store.path}: distillation needs parallel training text of two languages")
    if split.only_into:
        raise InputError(f"{store.path}: was distilled before; distill the store that it was made from")
    for language in store.languages:
        for name in split.corpora:
            if _new_name(name, language) in split.corpora:
                raise InputError(f"{store.path}: already has a corpus '{_new_name(name, language)}'")
    if 3 * len(split.corpora) > MAX_CORPORA:
        raise InputError(f"{store.path}: has {len(split.corpora)} corpora, expected at most {MAX_CORPORA // 3}")
    return split


def _new_name(corpus: str, language: str) -> str:
    return f"{corpus}-into-{language}"


class _Teacher:
    """A baseline that translates the pairs of a split."""

    def __init__(self, folder: Path, store: Store, split: Split, beam: int, device: torch.device):
        self._network, record = load_baseline(folder, device)
        check_baseline(folder, self._network, record, store.vocabulary, f"{store.path}")
        self.checksum = sha256(folder / WEIGHTS)
        languages = record.texts("languages")
        for language in store.languages:
            if language not in languages:
                raise InputError(f"{folder}: the baseline does not know the language {language}")
        self._room = self._network.config.max_position_embeddings - 2
        longest = max(int(side.lengths.max()) for side in split.sides.values())
        if longest > self._room:
            raise InputError(
                f"{store.path}: has sentences of {longest} subwords, the baseline has room for {self._room}"
            )
        self._split = split
        self._vocabulary = store.vocabulary
        self._tags = {language: len(store.vocabulary) + i for i, language in enumerate(languages)}
        self._beam = beam

    def translate(self, rows: np.ndarray, target: str, on_progress: Callable[[int], None]) -> tuple[Split, int]:
        """Pairs with new targets, and how many of them kept the real one."""
        split, eos = self._split, self._vocabulary.eos
        source = next(language for language in split.sides if language != target)
        part = _take(split, rows)
        sources, real = part.sides[source], part.sides[target]
        hypotheses = generate(
            self._network,
            self._vocabulary,
            [sources[i] for i in range(len(rows))],
            self._tags[target],
            beam=self._beam,
            room=self._room,
            on_progress=on_progress,
        )
        longest = int(split.sides[target].lengths.max())
        usable = [1 < len(ids) <= longest + 1 and ids[-1] == eos for ids in hypotheses]
        targets = [ids[:-1] if good else real[i] for i, (ids, good) in enumerate(zip(hypotheses, usable, strict=True))]
        corpora = tuple(_new_name(name, target) for name in split.corpora)
        sides = {source: sources, target: _side(targets, real.ids.dtype)}
        return Split(SPLIT, sides, corpora, part.corpus, dict.fromkeys(corpora, target)), usable.count(False)


def _take(split: Split, rows: np.ndarray) -> Split:
    assert split.corpus is not None
    sides = {language: side.take(rows) for language, side in split.sides.items()}
    return Split(split.name, sides, split.corpora, split.corpus[rows])


def _side(sentences: Sequence[np.ndarray], dtype: np.dtype) -> Side:
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return Side(np.concatenate(sentences).astype(dtype), np.cumsum(lengths))


def _without_empty_corpora(split: Split) -> Split:
    assert split.corpus is not None
    numbers, corpus = np.unique(split.corpus, return_inverse=True)
    corpora = tuple(split.corpora[i] for i in numbers)
    only_into = {name: language for name, language in split.only_into.items() if name in corpora}
    return Split(split.name, split.sides, corpora, corpus, only_into)


def _copy_other_splits(store: Store, folder: Path) -> None:
    """Copy the store's files, except those of the training split."""
    for file in sorted(store.path.iterdir()):
        if file.is_file() and file.name not in (MANIFEST, CHECKSUMS) and not file.name.startswith(f"{SPLIT}."):
            shutil.copyfile(file, folder / file.name)


def _write_training(folder: Path, split: Split) -> None:
    assert split.corpus is not None
    for language, side in split.sides.items():
        write_side(folder, SPLIT, language, [side.ids], side.lengths)
    write_corpus(folder, SPLIT, split.corpus)


def _write_manifest(folder: Path, store: Store, split: Split, record: dict[str, object]) -> None:
    changed = {"corpora": split.corpora, "pairs": len(split), "only_into": dict(split.only_into)}
    splits = store.manifest["splits"] | {SPLIT: store.manifest["splits"][SPLIT] | changed}
    write_json(folder / MANIFEST, store.manifest | {"splits": splits, "distilled": record})
