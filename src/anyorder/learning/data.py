"""What an order is learned from: translation pairs, generated puzzles, or lines of text with masks.

Everything about languages, directions and vocabularies is here, and nothing about policies or losses.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from anyorder.data.packing import pack
from anyorder.data.random_streams import random_for
from anyorder.data.store import Data, ParallelText, Split, Store, Stores, join, open_stores
from anyorder.decoder import Decoder
from anyorder.decoding.config import make_length, table_lengths
from anyorder.decoding.engine import forward_step
from anyorder.decoding.state import DecodeBatch, DecodeState
from anyorder.decoding.trajectory import INFILL
from anyorder.errors import InputError, unknown
from anyorder.evaluation.test_set import masked_test_set
from anyorder.learning.config import RLConfig
from anyorder.learning.rewards import (
    HOLE,
    REWARDS,
    Accuracy,
    ExactMatch,
    Likelihood,
    Reward,
    ScoredTexts,
    make_reward,
)
from anyorder.learning.rollout import OrderBatch
from anyorder.models.base import Canvas, SavedModel
from anyorder.models.hf.pretrained import TransformersModel
from anyorder.models.native.translation_model import LengthTable, TranslationModel
from anyorder.orders import make_order
from anyorder.tasks import PuzzleTask
from anyorder.tasks.masked import mask_lines
from anyorder.tasks.puzzles import EMPTY, CellTokens
from anyorder.training.objective import weights_by_corpus
from anyorder.training.validation import Validation, check_split, puzzle_validation, stored_validations

MEASURED = 8
"""Number of canvases to measure the time of a forward pass with."""
GENERATED = 4096
"""Maximum number of puzzles to generate; the rest are symmetric variants of them."""


class LearningData(ABC):
    """Canvases for a frozen model, and how well orders fill them."""

    model: SavedModel
    """The model that fills."""
    network: nn.Module
    """Its weights."""
    tasks: Sequence[str]
    """What validations are called: directions, `infill`, or the name of a puzzle. One order is learned for all."""
    model_tasks: Sequence[str]
    """What orders are bound to: the same, or `infill` for a puzzle."""
    unit: str
    """What messages call the canvases."""
    weights: np.ndarray | None = None
    """(canvases,) how often each is used per epoch; None if each is used once."""
    metric: str
    """The name of the validation's score, such as `bleu`."""
    validations: Mapping[str, Validation]
    """By task, if it has data to validate on."""
    validated: str = "{} others"
    """Which those are, in words; {} stands for their number."""
    note: str = ""
    """What the user should know about which canvases were chosen."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of canvases to learn from."""

    @abstractmethod
    def batch(self, numbers: np.ndarray, keys: np.ndarray, copies: int, random: np.random.Generator) -> OrderBatch:
        """These canvases `copies` times, those with the most masked positions first, and their references.

        keys: see `DecodeBatch`. random: for what is drawn anew each time.
        """

    @abstractmethod
    def reward(self, name: str) -> Reward:
        """The reward of that name."""

    @abstractmethod
    def fingerprint(self) -> dict[str, object]:
        """What must be the same when a run is resumed."""

    def forward_flops(self, tokens: float, last: float, predicted: float) -> float:
        """Multiply-adds of a forward pass, from the numbers of tokens, those in the last layer, and those predicted."""
        return 0.0

    @torch.inference_mode()
    def seconds_to_fill(self) -> float:
        """About how long it takes to fill one canvas, one position per step, from one forward pass of a few."""
        numbers = np.unique(np.linspace(0, len(self) - 1, MEASURED).astype(np.int64))
        batch = self.batch(numbers, np.zeros(len(numbers), np.int64), 1, np.random.default_rng(0)).sentences
        seconds = math.inf
        for _ in range(2):
            start = time.monotonic()
            state = DecodeState(self.model, batch, self.model.context(batch.canvases))
            forward_step(state, make_order("margin"))
            seconds = min(seconds, time.monotonic() - start)
            if seconds > 1:  # otherwise the first one is longer than others
                break
        return seconds / len(numbers) * float(state.total.mean())


class TranslationData(LearningData):
    """Pairs of one or several stores, prepared with the model's tokenizer. Only stores with a direction are opened.

    rl: which pairs to learn from and to validate on; all sizes must be set.
    """

    metric = "bleu"
    unit = "pairs"
    model: TranslationModel

    def __init__(self, data: Data, model: TranslationModel, directions: Sequence[str], rl: RLConfig):
        stores = open_stores(data)
        if model.vocabulary.fingerprint != stores.vocabulary.fingerprint:
            where = ", ".join(str(store.path) for store in stores)
            raise InputError(f"wrong vocabulary: {where} was not prepared with this model's tokenizer.json")
        rl = rl.with_lengths(5, 30)
        assert rl.max_length is not None
        if rl.max_length > model.max_length:
            room = model.max_length
            raise InputError(f"{rl.max_length}: the model has room for {room} subwords", "max_length", RLConfig)
        self.tasks = self.model_tasks = list(dict.fromkeys(directions))
        self.model = self.network = model.eval().requires_grad_(False)
        self._languages = np.array([model.config.direction(direction) for direction in self.tasks])
        """(directions, 2) indices of the source and target language."""
        stores = _with_directions(stores, model, self.tasks)
        assert rl.validation_sentences is not None
        check_split(stores, rl.validation_split)
        held_out, self.validations = stored_validations(
            stores, rl.validation_split, self.tasks, model, rl.validation_sentences, rl.validation_length
        )
        self.rl = replace(rl.with_reward("bleu"), validation_split=held_out)
        """The config with `auto` resolved for the reward and the validation split."""
        self.validated = f"{{}} of the split {held_out}"
        self._text = text = _training_text(stores, rl.split)
        store_of = np.array([stores.directions[direction] for direction in self.tasks])
        sides, pairs, candidates = [], [], []
        for number, (direction, store) in enumerate(zip(self.tasks, store_of, strict=True)):
            sides.append([text.side(store, language) for language in direction.split("-")])
            source, target = (text.sides[side].lengths for side in sides[-1])
            rows = self._eligible_rows(source, target, *text.parts[store])
            pairs.append(np.stack([np.full_like(rows, number), rows], 1))
            candidates.append(self._candidate_lengths(source[rows], target[rows], direction))
        self._sides = np.array(sides)
        """(directions, 2) indices of the source and target sides of the text."""
        self._pairs = np.concatenate(pairs)
        """(pairs, 2): direction and sentence indices."""
        self._candidates = np.concatenate(candidates)
        """(pairs, N) the target lengths to learn each pair with; 0 behind them if they are fewer than N."""
        for store, split in text.parts:
            store.check_ids(split, len(model.vocabulary))
        direction, row = self._pairs.T
        corpus = text.corpus[text.first_pair[store_of[direction]] + row]
        self.weights = weights_by_corpus(text.corpora, corpus, text.by_corpus(rl.weights))

    def __len__(self) -> int:
        return len(self._pairs)

    def _eligible_rows(self, source: np.ndarray, target: np.ndarray, store: Store, split: Split) -> np.ndarray:
        """The pairs within the length limits."""
        low, high = self.rl.min_length or 0, self.rl.max_length or 0
        rows = np.flatnonzero((np.minimum(source, target) >= low) & (np.maximum(source, target) <= high))
        if not len(rows):
            window = f"{low} to {high} subwords on both sides"
            raise InputError(f"{store.path}: no pair of the split '{split.name}' has {window}")
        return rows

    def _candidate_lengths(self, source: np.ndarray, target: np.ndarray, direction: str) -> np.ndarray:
        """(pairs, N) the target lengths to learn pairs of these lengths with."""
        rule = make_length(self.rl.length)
        if rule.kind == "gold":
            return target[:, None]
        count = min(rule.count, LengthTable.KEEP)
        lengths, index = np.unique(source, return_inverse=True)
        tried = table_lengths(self.model, lengths.tolist(), direction, count)
        return np.array([known + [0] * (count - len(known)) for known in tried])[index]

    def batch(self, numbers: np.ndarray, keys: np.ndarray, copies: int, random: np.random.Generator) -> OrderBatch:
        candidates = self._candidates[numbers]
        drawn = (random.random(len(numbers)) * (candidates > 0).sum(1)).astype(np.int64)
        lengths = candidates[np.arange(len(numbers)), drawn]
        by_length = np.argsort(-lengths, kind="stable")
        lengths, (direction, row) = lengths[by_length], self._pairs[numbers[by_length]].T
        (source_side, target_side), (source, target) = self._sides[direction].T, self._languages[direction].T
        text, eos = self._text, self.model.vocabulary.eos
        references = pack(text.sides, target_side, row, target, eos)
        reference_lengths = references.sizes - 2
        padded = np.full((len(row), int(reference_lengths.max())), eos, np.int64)
        padded[np.arange(padded.shape[1]) < reference_lengths[:, None]] = references.tokens[references.inner]
        canvases = self.model.pack_targets(pack(text.sides, source_side, row, source, eos), lengths, target)
        return OrderBatch(DecodeBatch(canvases, keys, copies), padded, reference_lengths)

    def reward(self, name: str) -> Reward:
        config = self.model.config
        return make_reward(name, self.model.vocabulary, config.languages, config.text)

    def fingerprint(self) -> dict[str, object]:
        vocabulary = self.model.vocabulary.fingerprint
        return {"vocabulary": vocabulary, "pairs": len(self), "directions": list(self.tasks)}

    def forward_flops(self, tokens: float, last: float, predicted: float) -> float:
        return self.model.forward_flops(tokens, last, predicted)


def _with_directions(stores: Stores, model: TranslationModel, directions: Sequence[str]) -> Stores:
    """The stores that have one of the directions; an `InputError` for a direction that no store has."""
    for direction in directions:
        for language in model.languages(direction):
            if language not in stores.languages:
                raise unknown("language of the store", language, stores.languages)
    used = {stores.choose_directions([direction])[direction] for direction in directions}
    return Stores(store for number, store in enumerate(stores) if number in used)


def _training_text(stores: Stores, split: str) -> ParallelText:
    """The splits to learn from: the named ones, or for `auto` each store's `order`, else its `train`."""
    splits = []
    for store in stores:
        names = split if split != "auto" else "order" if "order" in store else "train"
        splits.append(join([store.split(name.strip()) for name in names.split(",")]))
    text = ParallelText(stores, tuple(splits))
    text.check_directions()
    return text


class MaskedData(LearningData):
    """Canvases with some positions given, and the correct tokens for the rest.

    task: what validations are called. unit: what messages call the canvases. targets: ids of the finished canvases.
    masks: (T,) bool for each, which positions to fill; the same ones each time. spell: a canvas as text for the user's
    reward; `HOLE` marks unfilled positions. settings: what else must be the same when a run is resumed.
    """

    metric = "accuracy"
    model_tasks = (INFILL,)
    model: TransformersModel

    def __init__(
        self,
        model: TransformersModel,
        task: str,
        unit: str,
        targets: Sequence[np.ndarray],
        masks: Sequence[np.ndarray],
        validation: Validation | None,
        spell: Callable[[np.ndarray], str],
        settings: Mapping[str, object] = {},
    ):
        self.model, self.network = model, model.network
        self.tasks, self.unit, self._settings = [task], unit, settings
        self._targets, self._masks, self.spell = targets, masks, spell
        self._masked_counts = np.array([int(mask.sum()) for mask in masks])
        self.validations = {} if validation is None else {task: validation}

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
        vocabulary = self.model.vocabulary_fingerprint
        return {"vocabulary": vocabulary, "task": list(self.tasks), self.unit: len(self), **self._settings}


def puzzle_data(task: PuzzleTask, model: TransformersModel, puzzles: int, validation: int, seed: int) -> MaskedData:
    """Generated puzzles of a task, and others to validate on; the score is the share of puzzles solved entirely."""
    cells = CellTokens(model, task)
    learning = task.generate(min(puzzles, GENERATED), 2 * seed)
    if puzzles > len(learning):
        repeated = learning.take(np.arange(puzzles) % len(learning))
        learning = task.augment(repeated, random_for(2 * seed, "puzzles", 0))
    empty = learning.puzzles == EMPTY
    has_choice = empty.sum(1) >= 2
    if not has_choice.any():
        raise InputError("makes puzzles with a single empty cell, so there is no order to learn", "task")
    targets, masks = list(cells.tokens(learning.solutions[has_choice])), list(empty[has_choice])
    held_out = puzzle_validation(task, model, validation, seed) if validation else None

    def spell(ids: np.ndarray) -> str:
        return task.write(np.where(ids == HOLE, EMPTY, cells.answers(np.maximum(ids, 0))))

    return MaskedData(model, task.name, "puzzles", targets, masks, held_out, spell)


def text_data(
    lines: Sequence[str],
    model: TransformersModel,
    mask_share: float,
    lengths: tuple[int, int | None],
    validation: int,
    seed: int,
) -> MaskedData:
    """Lines of text with some tokens masked at random; the validation score is the share of these filled correctly.

    lines: plain texts. mask_share: see `mask_lines`. lengths: minimum and maximum number of tokens, None for the
    model's own; other lines are left out. validation: number of lines to validate on, at most a fifth; they follow
    those to learn from.
    """
    shortest, longest = lengths[0], min(lengths[1] or model.max_length, model.max_length)
    if not lines:
        raise InputError("is empty", "text")
    masked = mask_lines(model, lines, mask_share, seed)
    chosen = [line for line in masked if line.example.can_fill and shortest <= len(line.ids) <= longest]
    if not chosen:
        counts = [len(line.ids) for line in masked]
        found = f"no line of the text has {shortest} to {longest} tokens; they have {min(counts)} to {max(counts)}"
        if lengths[1] is None and max(counts) >= shortest:
            raise InputError(f"{found}, and the model has room for {model.max_length}", "text")
        field, limit = ("min_length", lengths[0]) if max(counts) < shortest else ("max_length", longest)
        raise InputError(f"{limit}: {found}", field, RLConfig)
    count = len(chosen) - min(validation, len(chosen) // 5)
    learning, test_set = chosen[:count], masked_test_set(Decoder(model, INFILL), chosen[count:], mask_share)
    targets, masks = [line.ids for line in learning], [line.masked for line in learning]
    held_out = Validation(test_set) if count < len(chosen) else None

    def spell(ids: np.ndarray) -> str:
        return model.to_text(ids[ids != HOLE], INFILL)

    data = MaskedData(model, INFILL, "lines", targets, masks, held_out, spell, {"mask_share": mask_share})
    data.validated = "the {} after these"
    if left_out := len(lines) - len(chosen):
        data.note = (
            f"{left_out:,} of {len(lines):,} lines are left out: they do not have {shortest} to {longest} tokens"
        )
    return data
