"""Distillation: a store whose training targets are the translations of an autoregressive baseline.

A pair becomes two, one for each direction, with the real text as source. They are in new corpora, such as
`news-into-en`, which the store limits to translation into that language, so a model never learns to translate the
baseline's output.
"""

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyorder.cluster import Cluster
from anyorder.data.packing import Side
from anyorder.data.store import MANIFEST, MAX_CORPORA, Split, Store, join, write_corpus, write_side
from anyorder.data.vocabulary import FILE as VOCABULARY
from anyorder.device import resolve_device
from anyorder.errors import InputError, check_number
from anyorder.files import atomic_folder, sha256, write_json
from anyorder.models.native.storage import WEIGHTS
from anyorder.reproduce.autoregressive import Autoregressive

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
    data: Path,
    baseline: Path,
    out: Path,
    *,
    pairs: int | None = None,
    minutes: float | None = None,
    beam: int = 1,
    seed: int = 1,
    device: str = "cpu",
    on_progress: Callable[[int], None] = lambda sentences: None,
    cluster: Cluster | None = None,
) -> Distilled:
    """Write a store in which the baseline's translations replace the targets of training pairs.

    `data` holds parallel text of two languages with the baseline's vocabulary. Other splits stay as they are, and so do
    training pairs that are not translated: pairs are drawn at random, and after the minutes no more are begun.

    cluster: Translate on these machines, which must see `data` and `baseline`, too.
    """
    check_number("pairs", pairs, at_least=1)
    check_number("minutes", minutes, above=0)
    check_number("beam", beam, at_least=1, at_most=MAX_BEAM)
    check_number("seed", seed, at_least=0)
    store, place = Store(data), resolve_device(device if cluster is None else "cpu")
    split, eos = _training_split(store), store.vocabulary.eos
    for name in store.split_names:
        store.split(name)  # damage is found before the work
    on_gpu = place.type == "cuda" if cluster is None else cluster.uses_gpus(device)
    teacher = _load(baseline, store, split, place)

    def with_targets(rows: np.ndarray, target: str, found: Sequence[Any]) -> tuple[Split, int]:
        """Pairs with new targets, and how many of them kept the real one."""
        (source,) = set(store.languages) - {target}
        part, longest = _take(split, rows), int(split.sides[target].lengths.max())
        real = [part.sides[target][i] for i in range(len(rows))]
        usable = [1 < len(ids) <= longest + 1 and ids[-1] == eos for ids in found]
        ids = [new[:-1] if good else old for new, old, good in zip(found, real, usable, strict=True)]
        side = Side(np.concatenate(ids).astype(real[0].dtype), np.cumsum(list(map(len, ids))))
        corpora = tuple(_new_name(name, target) for name in split.corpora)
        sides, only_into = {source: part.sides[source], target: side}, dict.fromkeys(corpora, target)
        return replace(part, sides=sides, corpora=corpora, only_into=only_into), usable.count(False)

    drawn, done = np.random.default_rng(seed).permutation(len(split)), 0
    wanted, chunk = len(drawn[:pairs]), 64 * CHUNK_PAIRS if on_gpu else CHUNK_PAIRS
    begun: deque[tuple[np.ndarray, str]] = deque()

    def tasks() -> Iterator[_Sources]:
        nonlocal done
        end = float("inf") if minutes is None else time.monotonic() + minutes * 60
        while done < wanted and (not done or time.monotonic() < end):
            rows = np.sort(drawn[done : min(done + chunk, wanted)])
            done += len(rows)
            for target in store.languages:
                begun.append((rows, target))
                (source,) = set(store.languages) - {target}
                side = _take(split, rows).sides[source]
                yield [side[i] for i in range(len(rows))], target

    with atomic_folder(out, replace=False) as folder:
        parts, kept = [], dict.fromkeys(store.languages, 0)
        translated: Iterator[list[Any]]
        if cluster is None:
            translated = (teacher.translate(*one, beam, on_progress) for one in tasks())
        else:
            work = _Translate(baseline.absolute(), data.absolute(), sha256(baseline / WEIGHTS), on_gpu, beam)
            translated = cluster.map(work, tasks(), on_gpu)
        for found in translated:
            rows, target = begun.popleft()
            part, kept_here = with_targets(rows, target, found)
            parts.append(part)
            kept[target] += kept_here
            if cluster is not None:
                on_progress(len(rows))
        if done < len(split):
            parts.append(_take(split, np.sort(drawn[done:])))
        record = {"baseline": sha256(baseline / WEIGHTS), "beam": beam, "seed": seed, "pairs": done, "kept": kept}
        _write(folder, store, join(parts), record)
    return Distilled(done, kept)


_Sources = tuple[list[np.ndarray], str]
"""The ids of sentences, and the language to translate them into."""


@dataclass(frozen=True)
class _Translate:
    """In a worker: the ids of the baseline's translations."""

    baseline: Path
    data: Path
    checksum: str
    """Of the baseline's weights: kept results are those of this baseline."""
    on_gpu: bool
    beam: int

    def __call__(self, given: _Sources) -> list[list[int]]:
        sources, target = given
        teacher = _teacher(self.baseline, self.data, "cuda" if self.on_gpu else "cpu")
        return [ids.tolist() for ids in teacher.translate(sources, target, self.beam, lambda count: None)]


@cache
def _teacher(baseline: Path, data: Path, device: str) -> Autoregressive:
    """Each worker loads the baseline once."""
    return Autoregressive(baseline, Store(data).vocabulary, f"{data}", torch.device(device))


def _training_split(store: Store) -> Split:
    """The training split of a store that can be distilled."""
    split = store.split(SPLIT) if SPLIT in store else None
    if split is None or not split.parallel or len(store.languages) != 2:
        raise InputError(f"{store.path}: distillation needs parallel training text of two languages")
    if split.only_into:
        raise InputError(f"{store.path}: was distilled before; distill the store that it was made from")
    for name in (_new_name(name, language) for language in store.languages for name in split.corpora):
        if name in split.corpora:
            raise InputError(f"{store.path}: already has a corpus '{name}'")
    if 3 * len(split.corpora) > MAX_CORPORA:
        raise InputError(f"{store.path}: has {len(split.corpora)} corpora, expected at most {MAX_CORPORA // 3}")
    return split


def _load(folder: Path, store: Store, split: Split, device: torch.device) -> Autoregressive:
    """The baseline, which must know the store's languages and have room for its sentences."""
    teacher = Autoregressive(folder, store.vocabulary, f"{store.path}", device)
    for language in store.languages:
        if language not in teacher.tags:
            raise InputError(f"{folder}: the baseline does not know the language {language}")
    longest = max(int(side.lengths.max()) for side in split.sides.values())
    if longest > teacher.room:
        raise InputError(f"{store.path}: has sentences of {longest} subwords, the baseline has room for {teacher.room}")
    return teacher


def _new_name(corpus: str, language: str) -> str:
    return f"{corpus}-into-{language}"


def _take(split: Split, rows: np.ndarray) -> Split:
    assert split.corpus is not None
    sides = {language: side.take(rows) for language, side in split.sides.items()}
    return replace(split, sides=sides, corpus=split.corpus[rows])


def _write(folder: Path, store: Store, split: Split, record: dict[str, object]) -> None:
    """The store with another training split, without its empty corpora, and nothing else that lies in its folder."""
    numbers, corpus = np.unique(np.asarray(split.corpus), return_inverse=True)
    corpora = [split.corpora[i] for i in numbers]
    only_into = {name: language for name, language in split.only_into.items() if name in corpora}
    others = [file for name in store.split_names if name != SPLIT for file in store.files(name)]
    for name in (VOCABULARY, *others):
        shutil.copyfile(store.path / name, folder / name)
    for language, side in split.sides.items():
        write_side(folder, SPLIT, language, [side.ids], side.lengths)
    write_corpus(folder, SPLIT, corpus)
    changed = {"corpora": corpora, "pairs": len(split), "only_into": only_into}
    splits = store.manifest["splits"] | {SPLIT: store.manifest["splits"][SPLIT] | changed}
    write_json(folder / MANIFEST, store.manifest | {"splits": splits, "distilled": record})
