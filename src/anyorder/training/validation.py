"""Validation: a test set decoded in an order, usually one position per step, and scored by its task's main metric.

The split `selection` of a store is only for this: a score that selects a checkpoint should not be reported as a result.
If there is one, the dev split is not used.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anyorder.data.store import Stores
from anyorder.decoder import Decoder
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError, unknown
from anyorder.evaluation.metrics import Metric
from anyorder.evaluation.puzzles import Solved
from anyorder.evaluation.significance import MIN_SENTENCES, compare
from anyorder.evaluation.test_set import TestSet, stored_test_set
from anyorder.models.base import SavedModel
from anyorder.models.hf.pretrained import TransformersModel
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import Order
from anyorder.tasks import PuzzleTask

SAMPLE = 8
"""Examples to decode to estimate the time of a validation."""
SAMPLE_SECONDS = 3.0
"""They are filled in one step if they would take longer than this one position at a time."""
SPLITS = ("selection", "dev")
"""Where the sentences come from if no split is named: the first that the store has."""


class Validation:
    """Validates orders and models on a test set."""

    def __init__(self, test_set: TestSet):
        self._test_set = test_set
        self._indices = test_set.within()

    def __len__(self) -> int:
        return len(self._indices)

    def keep_first(self, count: int) -> None:
        """Validate on the first examples only."""
        self._indices = self._indices[:count]

    def evaluate(self, order: Order, model: SavedModel) -> float:
        """The task's main metric: BLEU with `default_tokenizer` for translation, else a percentage."""
        return self.score(self.decode(order, model))

    def decode(
        self,
        order: Order,
        model: Any,
        indices: Sequence[int] | None = None,
        schedule: str | int = "one",
        on_progress: Callable[[int], None] = lambda examples: None,
    ) -> list[Trajectory]:
        """Decode the test set in this order. model: the one that it was read for, or a copy with other weights.

        indices: of some examples; by default all. schedule: positions per step. on_progress: called with the number of
        examples decoded since the last call.
        """
        test_set = replace(self._test_set, decoder=Decoder(model, self._test_set.decoder.task))
        config = DecodingConfig(order=order, schedule=schedule, length="gold")
        return test_set.decode(config, self._indices if indices is None else indices, on_progress)

    def score(self, trajectories: Sequence[Trajectory]) -> float:
        """The score of the whole test set; see `evaluate`."""
        return self._test_set.value(trajectories, self._indices)

    def counts(self, trajectories: Sequence[Trajectory]) -> np.ndarray:
        """What the score is computed from, by example; see `Metric`."""
        return self._metric.counts(trajectories)

    def p_value(self, one: np.ndarray, other: np.ndarray) -> float | None:
        """Of the difference between two orders, from their counts; None if there are too few examples."""
        if len(one) < MIN_SENTENCES:
            return None
        return compare({"one": one, "other": other}, ["other"], self._metric.score)["one"]["other"].p_value

    @property
    def _metric(self) -> Metric:
        return self._test_set.metrics(self._indices)[0]

    def estimate_seconds(self, order: Order, model: SavedModel) -> float:
        """About how long `evaluate` will take, from the time of a few examples; if they are slow, of one step."""
        indices = self._indices
        sample = indices[:: max(1, len(indices) // SAMPLE)][:SAMPLE]
        start = time.monotonic()
        steps = max(len(one.steps) for one in self.decode(order, model, sample, schedule=10**9))
        seconds = (time.monotonic() - start) * steps
        if seconds < SAMPLE_SECONDS:
            start = time.monotonic()
            self.decode(order, model, sample)
            seconds = time.monotonic() - start
        cost = self._test_set.sizes.astype(np.float64) ** 2  # as many forward passes as positions
        return seconds * float(cost[indices].sum() / cost[sample].sum())


def check_split(stores: Stores, split: str) -> None:
    """Raise an `InputError` for a split to validate on that a store does not have. See `stored_validations`."""
    for store in stores:
        if split not in ("auto", "none", *store.split_names):
            raise unknown("split", split, store.split_names)


def stored_validations(
    stores: Stores, split: str, directions: Sequence[str], model: TranslationModel, sentences: int, max_length: int
) -> tuple[str, dict[str, Validation]]:
    """For every direction whose store has a split to validate on, the first sentences that are short enough.

    Also returns the name of the split, or one for each store if they differ: `de-en=selection,ro-en=dev`.

    split: its name; `auto` is the first of `SPLITS` that a store has, if it has any; `none` is no validation.
    sentences: at most so many per direction. max_length: maximum number of subwords on both sides; 0 for the model's
    maximum.
    """
    names = [next((one for one in SPLITS if one in store), "none") if split == "auto" else split for store in stores]
    max_length = min(max_length or model.max_length, model.max_length)
    store_of, validations = stores.directions, {}
    for direction in directions:
        store, name = stores[store_of[direction]], names[store_of[direction]]
        if name not in store:
            continue
        pairs = store.split(name)
        if not pairs.parallel:
            raise InputError(f"{store.path}: the split '{name}' is not parallel")
        longer = np.maximum(*(pairs.sides[language].lengths for language in direction.split("-")))
        rows = np.flatnonzero(longer <= max_length)[:sentences]
        if not len(rows):
            raise InputError(
                f"{store.path}: no pair of the split '{name}' has at most {max_length} subwords on both sides; "
                "raise validation_length"
            )
        validations[direction] = Validation(stored_test_set(Decoder(model, direction), pairs, rows.tolist()))
    if len(set(names)) == 1:
        return names[0], validations
    named = (f"{'-'.join(store.languages)}={name}" for store, name in zip(stores, names, strict=True))
    return ",".join(named), validations


def puzzle_validation(task: PuzzleTask, model: TransformersModel, count: int, seed: int) -> Validation:
    """Generated puzzles; the score is the share of them solved entirely. seed: that of the run."""
    puzzles = task.generate(count, 2 * seed + 1).puzzles  # those to learn from have the seed 2 * seed
    decoder = Decoder(model, task)
    examples = task.examples(model, [task.write(puzzle) for puzzle in puzzles])

    def metrics(indices: Sequence[int]) -> list[Metric]:
        return [Solved(task, puzzles[list(indices)])]

    return Validation(TestSet(decoder, examples, np.full(count, task.cells), metrics))
