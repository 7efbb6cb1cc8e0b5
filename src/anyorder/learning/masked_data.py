"""Canvases without a source to learn an order from: generated puzzles, or lines of text with masks."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from anyorder.data.random_streams import random_for
from anyorder.decoder import Decoder
from anyorder.decoding.state import DecodeBatch
from anyorder.decoding.trajectory import INFILL
from anyorder.errors import InputError
from anyorder.evaluation.test_set import masked_test_set
from anyorder.learning.config import RLConfig
from anyorder.learning.objective import LearningData
from anyorder.learning.rewards import HOLE, REWARDS, Accuracy, ExactMatch, Likelihood, Reward, ScoredTexts
from anyorder.learning.rollout import OrderBatch
from anyorder.models.base import Canvas
from anyorder.models.hf.pretrained import TransformersModel
from anyorder.tasks import PuzzleTask
from anyorder.tasks.masked import mask_lines
from anyorder.tasks.puzzles import EMPTY, CellTokens
from anyorder.training.validation import Validation, puzzle_validation

GENERATED = 4096
"""Maximum number of puzzles to generate; the rest are symmetric variants of them."""


class MaskedData(LearningData):
    """Canvases with some positions given, and the correct tokens for the rest.

    task: what validations are called. targets: ids of the finished canvases. masks: (T,) bool for each, which positions
    to fill; the same ones each time.
    """

    metric = "accuracy"
    model_tasks = (INFILL,)
    model: TransformersModel

    def __init__(
        self,
        model: TransformersModel,
        task: str,
        targets: Sequence[np.ndarray],
        masks: Sequence[np.ndarray],
        validation: Validation | None,
    ):
        self.model, self.network = model, model.network
        self.tasks = [task]
        self._targets, self._masks = targets, masks
        self._masked_counts = np.array([int(mask.sum()) for mask in masks])
        self.validations = {} if validation is None else {task: validation}

    @abstractmethod
    def spell(self, ids: np.ndarray) -> str:
        """A canvas as text for the user's reward; `HOLE` marks unfilled positions."""

    def __len__(self) -> int:
        return len(self._targets)

    def batch(self, numbers: np.ndarray, keys: np.ndarray, copies: int, random: np.random.Generator) -> OrderBatch:
        mask_token = self.model.mask_token
        chosen = numbers[np.argsort(-self._masked_counts[numbers], kind="stable")].tolist()
        canvases = self.model.pack(
            [Canvas(np.where(self._masks[i], mask_token, self._targets[i]), key=i) for i in chosen]
        )
        references = np.full((len(chosen), int(canvases.lengths.max())), mask_token, np.int64)
        for row, number in zip(references, chosen, strict=True):
            row[: len(self._targets[number])] = self._targets[number]
        return OrderBatch(DecodeBatch(canvases, keys, copies), references, canvases.lengths)

    def reward(self, name: str) -> Reward:
        reward = REWARDS[name]
        if not isinstance(reward, type):
            return ScoredTexts(name, reward, lambda ids, language: self.spell(ids))
        if not issubclass(reward, Accuracy | ExactMatch | Likelihood):
            known = "accuracy, exact-match and likelihood"
            found = f"{name}: is for translations; where masks are filled there are {known}"
            raise InputError(found, "reward", RLConfig)
        return reward()

    def fingerprint(self) -> dict[str, object]:
        return {"vocabulary": self.model.vocabulary_fingerprint, "task": list(self.tasks), self.unit: len(self)}


class PuzzleData(MaskedData):
    """Generated puzzles of a task, and others to validate on; the score is the share of puzzles solved entirely."""

    unit = "puzzles"

    def __init__(self, task: PuzzleTask, model: TransformersModel, puzzles: int, validation: int, seed: int):
        self._cells, self._task = CellTokens(model, task), task
        learning = task.generate(min(puzzles, GENERATED), 2 * seed)
        if puzzles > len(learning):
            repeated = learning.take(np.arange(puzzles) % len(learning))
            learning = task.augment(repeated, random_for(2 * seed, "puzzles", 0))
        empty = learning.puzzles == EMPTY
        has_choice = empty.sum(1) >= 2
        if not has_choice.any():
            raise InputError("makes puzzles with a single empty cell, so there is no order to learn", "task")
        targets = self._cells.tokens(learning.solutions[has_choice])
        held_out = puzzle_validation(task, model, validation, seed) if validation else None
        super().__init__(model, task.name, list(targets), list(empty[has_choice]), held_out)

    def spell(self, ids: np.ndarray) -> str:
        return self._task.write(np.where(ids == HOLE, EMPTY, self._cells.answers(np.maximum(ids, 0))))


class TextData(MaskedData):
    """Lines of text with some tokens masked at random; the validation score is the share of these filled correctly.

    lines: plain texts. mask_share: see `mask_lines`. lengths: minimum and maximum number of tokens; other lines are
    left out. validation: number of lines to validate on, at most a fifth; they follow those to learn from.
    """

    unit = "lines"

    def __init__(
        self,
        lines: Sequence[str],
        model: TransformersModel,
        mask_share: float,
        lengths: tuple[int, int],
        validation: int,
        seed: int,
    ):
        shortest, longest = lengths[0], min(lengths[1], model.max_length)
        if not lines:
            raise InputError("is empty", "text")
        masked = mask_lines(model, lines, mask_share, seed)
        chosen = [line for line in masked if line.example.can_fill and shortest <= len(line.ids) <= longest]
        if not chosen:
            counts = [len(line.ids) for line in masked]
            field, limit = ("min_length", lengths[0]) if max(counts) < shortest else ("max_length", lengths[1])
            found = f"no line of the text has {shortest} to {longest} tokens; they have {min(counts)} to {max(counts)}"
            raise InputError(f"{limit}: {found}", field, RLConfig)
        count = len(chosen) - min(validation, len(chosen) // 5)
        learning, held_out = chosen[:count], chosen[count:]
        self._mask_share = mask_share
        test_set = masked_test_set(Decoder(model, INFILL), held_out, mask_share)
        super().__init__(
            model,
            INFILL,
            [line.ids for line in learning],
            [line.masked for line in learning],
            Validation(test_set) if held_out else None,
        )

    def spell(self, ids: np.ndarray) -> str:
        return self.model.to_text(ids[ids != HOLE], INFILL)

    def fingerprint(self) -> dict[str, object]:
        return {**super().fingerprint(), "mask_share": self._mask_share}
