"""What can be learned, and for how long: a `Task` brings batches, a loss and a validation, a `Run` the rest."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from torch import nn

from anyorder.errors import InputError, check_number
from anyorder.models.attention import to_device
from anyorder.models.translation import TranslationModel
from anyorder.training.batches import Cursor

LARGEST_SEED = (1 << 32) - 1


@dataclass(frozen=True)
class Run:
    """How long and how fast to train."""

    steps: int | None = None
    """Stop after so many steps."""
    minutes: float | None = None
    """Stop after so many minutes; the learning rate then follows the clock."""
    batches_per_step: int = 1
    """Batches whose gradients make one step, over all processes together."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW."""
    warmup: int = 1000
    """Steps of linear warm-up."""
    decay_from: float = 0.5
    """The share of the run after which the rate falls linearly to zero."""
    weight_decay: float = 0.01
    """Decoupled weight decay on matrices."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 for no limit."""
    ema: float = 0.999
    """Decay of the averaged weights that are validated and saved; 0 for none."""
    log_every: int = 50
    """Steps between entries in the log."""
    validate_every: int = 2000
    """Steps between validations; 0 for the end only."""
    patience: int = 0
    """Stop after so many validations without a better one; 0 never does."""
    save_every: int = 1000
    """Steps between checkpoints; 0 for the end only."""
    seed: int = 1
    """Everything random follows from it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """torch.compile; auto does so on CUDA."""
    track: Literal["none", "tensorboard", "wandb"] = "none"
    """Where to send the curves besides log.jsonl."""

    def check(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise InputError("say how long to train: --run.steps N or --run.minutes M, one of them")
        for name in ("steps", "batches_per_step", "log_every"):
            check_number(f"--run.{name}", getattr(self, name), at_least=1)
        for name in ("warmup", "validate_every", "save_every", "patience", "clip", "weight_decay", "learning_rate"):
            check_number(f"--run.{name}", getattr(self, name), at_least=0)
        check_number("--run.minutes", self.minutes, above=0)
        check_number("--run.decay_from", self.decay_from, at_least=0, at_most=1)
        check_number("--run.ema", self.ema, at_least=0, below=1)
        check_number("--run.seed", self.seed, at_least=0, at_most=LARGEST_SEED)
        if self.track != "none" and find_spec(self.track) is None:
            raise InputError(f"--run.track {self.track}: needs {self.track}: pip install 'anyorder[track]'")


@dataclass(frozen=True)
class TextTrainConfig(Run):
    """How long and how fast to train, on batches of so many tokens."""

    batch_tokens: int = 32_768
    """Tokens in a batch, source, target and delimiters counted."""

    def check(self) -> None:
        super().check()
        check_number("--run.batch_tokens", self.batch_tokens, at_least=16)


@dataclass(frozen=True)
class HostBatch:
    """Text, on the host."""

    arrays: dict[str, np.ndarray]
    """For the device."""
    longest: int
    """No segment is longer."""
    lengths: dict[str, np.ndarray] | None
    """Segment lengths by name, where attention needs them on the host."""
    tokens: int
    """Real tokens, padding not counted."""
    predicted: int


Batch = TypeVar("Batch")


class Task(ABC, Generic[Batch]):
    """Something to learn."""

    learner: nn.Module
    """What is trained."""
    module: nn.Module
    """Called with each of what `gather` returns; gives the loss to descend and numbers to report."""
    reports: tuple[str, ...]
    """Names of those numbers. The loop stops if the first is not finite."""
    shown: tuple[str, ...]
    """Those that the progress bar shows."""
    unit: str
    """What is counted for the speed: tokens, rollouts."""
    epochs: int = 1
    """How often a batch is gone through."""
    compiles: bool = True
    """Whether the module's shapes never change on CUDA, so that compiling it pays."""

    @abstractmethod
    def batches(self, cursor: Cursor, first: int, rank: int, world: int) -> Iterator[tuple[Batch, Cursor]]:
        """This process's batches from number `first` on, each with the cursor behind it.

        `cursor` was handed out before, and is not behind `first`.
        """

    @abstractmethod
    def gather(self, batch: Batch, device: torch.device) -> list[dict[str, Any]]:
        """What the module is called with, once for every step of the optimizer; as often in every batch."""

    @abstractmethod
    def cost(self, batch: Batch) -> tuple[int, float]:
        """How many units a batch has, and the floating-point operations it takes."""

    @abstractmethod
    def validate(self, average: nn.Module) -> dict[str, float]:
        """Scores by name, of the averaged weights. Empty where there is nothing to compute_advantages by."""

    def selection_metric(self, scores: dict[str, float]) -> float:
        """By which the best of several validations is found."""
        return sum(scores.values()) / len(scores)

    @abstractmethod
    def save(self, average: nn.Module, out: Path) -> None:
        """Write what was learned, to be used."""

    @abstractmethod
    def fingerprint(self) -> dict[str, object]:
        """What must be the same when a run is resumed."""


class TextTask(Task[HostBatch]):
    """A model that learns from text."""

    learner: TranslationModel
    unit = "tokens"
    shown = ("loss",)

    def gather(self, batch: HostBatch, device: torch.device) -> list[dict[str, Any]]:
        tensors = {name: to_device(array, device) for name, array in batch.arrays.items()}
        return [{"batch": tensors, "longest": batch.longest, "lengths": batch.lengths}]

    def cost(self, batch: HostBatch) -> tuple[int, float]:
        return batch.tokens, training_flops(self.learner, batch.tokens, batch.predicted)

    def save(self, average: nn.Module, out: Path) -> None:
        assert isinstance(average, TranslationModel)
        average.save_pretrained(out / "model")


def on_cuda(run: Run) -> bool:
    if run.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--run.device cuda: this machine has no CUDA device")
    return run.device != "cpu" and torch.cuda.is_available()


def training_flops(model: TranslationModel, tokens: int, predicted: int) -> float:
    """What one batch costs in matrix forward_flops: the last layer and the output run only where something is predicted."""
    return 6 * model.forward_flops(tokens, predicted, predicted)
