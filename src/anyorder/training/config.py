"""How long and how fast to train: the settings that all objectives share, and batch sizes for text and puzzles.

Knows nothing about objectives or flags.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import torch

from anyorder.device import resolve_device
from anyorder.errors import MAX_SEED, InputError, check_number

DeepNorm = Literal["auto", "yes", "no"]


@dataclass(frozen=True)
class TrainConfig:
    """How long and how fast to train."""

    steps: int | None = None
    """Number of training steps."""
    minutes: float | None = None
    """Training time in minutes, including the last validation; the learning rate then follows the clock."""
    batches_per_step: int = 1
    """Batches per optimizer step, over all processes together."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW."""
    warmup: int = 1000
    """Steps of linear warm-up."""
    decay_from: float = 0.5
    """Fraction of the run after which the learning rate decays linearly to zero."""
    weight_decay: float = 0.01
    """Decoupled weight decay, applied to matrices only."""
    max_grad_norm: float = 1.0
    """Clip gradients to this norm; 0 for no clipping."""
    ema: float = 0.999
    """Decay of the weight average that is validated and saved; 0 for no averaging."""
    log_every: int = 50
    """Steps between log entries."""
    validate_every: int = 2000
    """Steps between validations; 0 validates only at the end."""
    patience: int = 0
    """Stop after this many validations without improvement; 0 never stops early."""
    save_every: int = 1000
    """Steps between checkpoints; 0 saves only at the end."""
    seed: int = 1
    """Random seed."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Whether to use torch.compile; auto uses it on CUDA."""
    track: Literal["none", "tensorboard", "wandb"] = "none"
    """Where to log the training curves in addition to log.jsonl."""

    def __post_init__(self) -> None:
        config = type(self)
        for name in ("steps", "log_every"):
            check_number(name, getattr(self, name), at_least=1, config=config)
        check_number("batches_per_step", self.batches_per_step, at_least=1, at_most=1 << 16, config=config)
        for name in ("warmup", "validate_every", "save_every", "patience", "max_grad_norm"):
            check_number(name, getattr(self, name), at_least=0, config=config)
        for name in ("learning_rate", "weight_decay"):
            check_number(name, getattr(self, name), at_least=0, at_most=1000, config=config)
        check_number("minutes", self.minutes, above=0, config=config)
        check_number("decay_from", self.decay_from, at_least=0, at_most=1, config=config)
        check_number("ema", self.ema, at_least=0, below=1, config=config)
        check_number("seed", self.seed, at_least=0, at_most=MAX_SEED, config=config)
        if self.steps is not None and self.minutes is not None:
            raise InputError(
                "cannot be given together with steps: a run ends by the clock or by its steps", "minutes", config
            )
        if self.track != "none" and find_spec(self.track) is None:
            raise InputError(f"{self.track}: needs {self.track}: pip install 'anyorder[track]'", "track", config)

    def resolve_device(self) -> torch.device:
        """The device to train on."""
        try:
            return resolve_device(self.device)
        except InputError as error:
            raise InputError(error.message, error.field, type(self)) from None


@dataclass(frozen=True)
class TextTrainConfig(TrainConfig):
    """How long and how fast to train, with batches measured in tokens."""

    batch_tokens: int | None = None
    """Tokens per batch, counting source, target and delimiters; by default 32,768 on CUDA and 2,048 on the CPU."""
    deepnorm: DeepNorm = "auto"
    """Keep deep models from diverging: initialize near the identity and train the last matrix of every sublayer more
    slowly (DeepNorm, Wang et al. 2022). auto does so for more than 8 layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("batch_tokens", self.batch_tokens, at_least=16, at_most=1 << 24, config=type(self))


@dataclass(frozen=True)
class PuzzleTrainConfig(TrainConfig):
    """How long and how fast to train, with batches measured in puzzles."""

    batch_size: int | None = None
    """Puzzles per batch; by default 1,024 on CUDA and 128 on the CPU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("batch_size", self.batch_size, at_least=1, at_most=1 << 20, config=type(self))


def choose_by_device(value: int | None, device: torch.device, cuda: int, cpu: int) -> int:
    """The given value, or else a default for the device."""
    if value is not None:
        return value
    return cuda if device.type == "cuda" else cpu


def split_directions(directions: str | Sequence[str]) -> list[str]:
    """Directions from a list, or from text separated by commas.

    >>> split_directions("de-en, en-de")
    ['de-en', 'en-de']
    """
    parts = directions.split(",") if isinstance(directions, str) else directions
    return [part.strip() for part in parts if part.strip()]
