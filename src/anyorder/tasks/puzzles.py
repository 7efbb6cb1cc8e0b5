"""Tasks with one right answer: a grid of cells, some given and some empty; and small models that solve them.

To add one, write a small class in a file of your own::

    @anyorder.register_task("my-puzzle")
    class MyPuzzle(anyorder.PuzzleTask):
        symbols, columns, rows = ("1", "2", "3"), 3, 3

        def generate(self, count, seed): ...
        def is_solved(self, puzzles, answers): ...
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from anyorder.data.line_problems import Problem, refuse
from anyorder.decoding.trajectory import INFILL
from anyorder.errors import InputError, check_number
from anyorder.files import atomic_folder, write_tensors
from anyorder.models.base import Canvas, Model
from anyorder.models.hf.families import FAMILIES
from anyorder.models.hf.pretrained import MASK, TransformersModel, import_transformers
from anyorder.tasks.masked import Infill, MaskedText

if TYPE_CHECKING:
    from torch import nn
    from transformers import BertForMaskedLM, PreTrainedTokenizerFast

EMPTY = 0
"""An empty cell, to be filled. Other cells hold the number of their symbol, from 1."""
BLANKS = "0."
"""Characters that stand for an empty cell, except those that are symbols of the task."""
PAD, UNKNOWN = "[PAD]", "[UNK]"
SPECIAL = (PAD, MASK, UNKNOWN)
"""The first ids of a puzzle model; the task's symbols follow."""
MASK_ID, FIRST_SYMBOL = SPECIAL.index(MASK), len(SPECIAL)
TASK_KEY = "anyorder_task"
"""The entry of config.json that names the task."""


@dataclass(frozen=True)
class Examples:
    """N puzzles and their solutions."""

    puzzles: np.ndarray
    """(N, cells) int64: the number of a symbol, `EMPTY` where a cell is to be filled."""
    solutions: np.ndarray
    """(N, cells) int64"""

    def __len__(self) -> int:
        return len(self.puzzles)

    def take(self, rows: np.ndarray) -> "Examples":
        """Some of the examples, by index."""
        return Examples(self.puzzles[rows], self.solutions[rows])


class PuzzleTask(Infill):
    """What a puzzle looks like, how to get examples of it, and when an answer is right.

    To the model a puzzle is a text with a mask for every empty cell. Lines that are not puzzles are filled as texts.
    """

    name: str = "puzzle"
    """As it was registered."""
    unit = "puzzle"
    symbols: ClassVar[Sequence[str]]
    """What a cell may hold: one character each."""
    columns: ClassVar[int]
    """The width of the grid, for display."""
    rows: ClassVar[int]
    box: ClassVar[int] = 0
    """Cells along the side of a box, for display; 0 if the grid has no boxes."""

    @abstractmethod
    def generate(self, count: int, seed: int) -> Examples:
        """New puzzles that have exactly one solution; the same ones for the same seed."""

    @abstractmethod
    def is_solved(self, puzzles: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """(N,) bool: which answers keep given cells and break no rule. Both are (N, cells)."""

    def augment(self, examples: Examples, random: np.random.Generator) -> Examples:
        """Change examples at random into equally valid ones. Much cheaper than generating new ones."""
        return examples

    def problems(self, puzzles: np.ndarray) -> list[str]:
        """What is wrong with each puzzle, such as `no solution`; empty if nothing is."""
        return [""] * len(puzzles)

    @property
    def cells(self) -> int:
        return self.columns * self.rows

    @property
    def blanks(self) -> str:
        """Characters that stand for an empty cell; `write` uses the first."""
        return "".join(blank for blank in BLANKS if blank not in self.symbols)

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each symbol."""
        return {symbol: i for i, symbol in enumerate(self.symbols, start=1)}

    def read(self, line: str) -> np.ndarray:
        """(cells,) int64 from a line, one character per cell; an `InputError` says what is wrong."""
        line = line.strip()
        values = {**dict.fromkeys(self.blanks, EMPTY), **self.numbers}
        unknown_symbols = [character for character in line if character not in values]
        if len(line) != self.cells:
            found = f"{len(line):,} character{'' if len(line) == 1 else 's'}"
        elif unknown_symbols:
            found = f"'{unknown_symbols[0]}'"
        else:
            return np.array([values[character] for character in line], np.int64)
        symbols = f"{self.symbols[0]} to {self.symbols[-1]}, or {self.blanks[0]} for an empty cell"
        raise InputError(f"{found}, expected the {self.cells} cells of {self.name}: {symbols}")

    def read_lines(self, lines: Sequence[str], side: str = "source") -> tuple[np.ndarray, list[Problem | None]]:
        """(N, cells) one grid per line, all empty where a line is not a grid; and what is wrong with that line.

        side: `source` for puzzles, `reference` for solutions.
        """
        grids = np.full((len(lines), self.cells), EMPTY, np.int64)
        problems: list[Problem | None] = [None] * len(lines)
        for i, line in enumerate(lines):
            try:
                grids[i] = self.read(line)
            except InputError as error:
                what = "puzzle" if side == "source" else "solution"
                problems[i] = Problem(side, f"unreadable {what} ({error})", str(error))
        return grids, problems

    def write(self, cells: np.ndarray) -> str:
        """A line that `read` reads."""
        return "".join(self.blanks[0] if cell == EMPTY else self.symbols[cell - 1] for cell in cells)

    def is_right(self, puzzles: np.ndarray, answers: np.ndarray, solutions: np.ndarray | None = None) -> np.ndarray:
        """(N,) bool: which answers solve their puzzle, or equal the given solution. All are (N, cells)."""
        solved = self.is_solved(puzzles, answers)
        return solved if solutions is None else solved | (answers == solutions).all(1)

    def score(self, puzzles: np.ndarray, answers: np.ndarray, solutions: np.ndarray) -> np.ndarray:
        """(N,) float64: the fraction of empty cells filled correctly; 1 if there was nothing to fill."""
        empty = puzzles == EMPTY
        right = (empty & (answers == solutions)).sum(1)
        return np.where(empty.any(1), right / np.maximum(empty.sum(1), 1), 1.0)

    def check(self, model: TransformersModel) -> None:
        super().check(model)
        CellTokens(model, self)

    def examples(
        self, model: TransformersModel, lines: Sequence[str], references: Sequence[str] | None = None
    ) -> list[MaskedText]:
        puzzles, unreadable = self.read_lines(lines)
        texts = [
            line if problem else self.write(puzzle).replace(self.blanks[0], MASK)
            for line, puzzle, problem in zip(lines, puzzles, unreadable, strict=True)
        ]
        return [
            self._as_text(example) if problem else replace(example, text=line.strip(), task=self.name)
            for example, line, problem in zip(super().examples(model, texts), lines, unreadable, strict=True)
        ]

    def _as_text(self, example: MaskedText) -> MaskedText:
        """A line that is not a puzzle; if it cannot be filled either, its note says what a puzzle looks like."""
        problems = example.problems
        if not example.can_fill:
            _, [unreadable] = self.read_lines([example.text.replace(MASK, self.blanks[0])])
            problems = problems if unreadable is None else (*problems[:-1], unreadable)
        return replace(example, task=INFILL, problems=problems)

    def canvas(self, model: TransformersModel, text: str, length: int | None = None, seed: int = 1) -> Canvas:
        try:
            puzzle = self.read(text)
        except InputError as error:
            raise InputError(f"text: {error}") from None
        if EMPTY not in puzzle:
            raise InputError("text: has no empty cell")
        return super().canvas(model, text, length, seed)

    def show(self, cells: np.ndarray) -> str:
        """The grid as text, row by row."""
        line = self.write(cells)
        return "\n".join(line[i : i + self.columns] for i in range(0, self.cells, self.columns))


@dataclass(frozen=True)
class PuzzleLines:
    """N lines of puzzles, and of solutions if they were given. A line is left out if it has a problem."""

    puzzles: np.ndarray
    """(N, cells) int64, see `Examples`."""
    solutions: np.ndarray | None
    """(N, cells) int64"""
    problems: list[Problem | None]

    @property
    def usable(self) -> list[int]:
        """The indices of the lines without a problem."""
        return [i for i, problem in enumerate(self.problems) if problem is None]


def read_puzzles(
    task: PuzzleTask,
    lines: Sequence[str],
    solutions: Sequence[str] | None = None,
    names: Sequence[str] = ("puzzles", "solutions"),
    strict: bool = False,
) -> PuzzleLines:
    """Read puzzles to score, one per line, and as many solutions. A line that cannot be scored has a problem.

    Args:
        solutions: Without them, any answer that breaks no rule is right.
        names: What messages call puzzles and solutions, such as file names.
        strict: Whether to raise an `InputError` at the first problem.
    """
    puzzles, problems = task.read_lines(lines)
    readable = [i for i, problem in enumerate(problems) if problem is None]
    for i, why in zip(readable, task.problems(puzzles[readable]), strict=True):
        if why:
            problems[i] = Problem("source", f"unsolvable puzzle ({why})", f"the puzzle has {why}")
    answers = None
    if solutions is not None:
        answers, wrong = task.read_lines(solutions, "reference")
        for i, (puzzle, answer) in enumerate(zip(puzzles, answers, strict=True)):
            problems[i] = problems[i] or wrong[i] or _wrong_solution(puzzle, answer)
    read = PuzzleLines(puzzles, answers, problems)
    for i, problem in enumerate(problems):
        if strict and problem:
            refuse([problem], i + 1, {"source": names[0], "reference": names[-1]})
    if not read.usable:
        raise InputError(f"{names[0]}: no line is a puzzle of {task.name} ({task.cells} characters)")
    return read


def _wrong_solution(puzzle: np.ndarray, answer: np.ndarray) -> Problem | None:
    """What is wrong with the solution of a puzzle, if anything."""
    if (answer == EMPTY).any():
        return Problem("reference", "unreadable solution (has empty cells)", "the solution has empty cells")
    if ((puzzle != EMPTY) & (puzzle != answer)).any():
        return Problem("reference", "wrong solution (changes the puzzle)", "the solution changes the puzzle")
    return None


class CellTokens:
    """Which tokens of a model stand for the symbols of a task."""

    def __init__(self, model: Model, task: PuzzleTask):
        if task.cells > model.max_length:
            raise InputError(f"{task.name} has {task.cells} cells, the model has room for {model.max_length}")
        spelled = {token: i for i, token in reversed(list(enumerate(model.to_tokens(np.arange(model.vocab_size)))))}
        missing = [symbol for symbol in task.symbols if symbol not in spelled]
        if missing:
            raise InputError(f"this model cannot solve {task.name}: it has no token for '{missing[0]}'")
        self._ids = np.array([model.mask_token, *(spelled[symbol] for symbol in task.symbols)], np.int64)
        """Ids by symbol number; the mask for an empty cell."""
        self._numbers = np.full(model.vocab_size, EMPTY, np.int64)
        self._numbers[self._ids[1:]] = np.arange(1, len(self._ids))

    def tokens(self, puzzles: np.ndarray) -> np.ndarray:
        """(N, cells) int64 ids of puzzles or solutions, masked where a cell is empty."""
        return self._ids[puzzles]

    def answers(self, tokens: np.ndarray) -> np.ndarray:
        """(N, cells) symbol numbers; `EMPTY` where a token is not a symbol."""
        return self._numbers[tokens]


@dataclass(frozen=True)
class EncoderConfig:
    """Size of a puzzle model."""

    hidden_size: int = 256
    """Size of the hidden states."""
    num_layers: int = 8
    """Number of Transformer layers."""
    num_heads: int = 8
    """Number of attention heads; must divide the hidden size."""
    dropout: float = 0.0
    """Dropout on hidden states and attention; with generated puzzles, overfitting is rare."""

    def __post_init__(self) -> None:
        for name, largest in (("hidden_size", 65_536), ("num_layers", 1000), ("num_heads", 65_536)):
            check_number(name, getattr(self, name), at_least=1, at_most=largest, config=EncoderConfig)
        check_number("dropout", self.dropout, at_least=0, below=1, config=EncoderConfig)
        if self.hidden_size % self.num_heads:
            message = f"{self.num_heads}: does not divide the hidden size {self.hidden_size}"
            raise InputError(message, "num_heads", EncoderConfig)


def new_encoder(task: PuzzleTask, encoder: EncoderConfig, seed: int) -> "BertForMaskedLM":
    """A small Transformers encoder with random weights and a token per cell."""
    transformers = import_transformers()
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL) + len(task.symbols),
        hidden_size=encoder.hidden_size,
        num_hidden_layers=encoder.num_layers,
        num_attention_heads=encoder.num_heads,
        intermediate_size=4 * encoder.hidden_size,
        hidden_dropout_prob=encoder.dropout,
        attention_probs_dropout_prob=encoder.dropout,
        max_position_embeddings=task.cells,
        type_vocab_size=1,
        architectures=["BertForMaskedLM"],
        pad_token_id=SPECIAL.index(PAD),
        **{TASK_KEY: task.name},
    )
    torch.manual_seed(seed)
    return transformers.BertForMaskedLM(config)


def new_tokenizer(task: PuzzleTask) -> "PreTrainedTokenizerFast":
    """A character tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    ids = {token: i for i, token in enumerate([*SPECIAL, *task.symbols])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, mask_token=MASK, unk_token=UNKNOWN, model_max_length=task.cells
    )


def as_model(network: "nn.Module", task: PuzzleTask) -> TransformersModel:
    """Wrap the network for the engine and freeze it."""
    return TransformersModel(network, new_tokenizer(task), FAMILIES["bert"], MASK_ID)


def save_encoder(model: "nn.Module", task: PuzzleTask, folder: Path) -> None:
    """Save a model; an existing one in the folder is replaced as a whole.

    It is a Transformers model like any other: config.json, which names the task, model.safetensors and a tokenizer.
    """
    with atomic_folder(folder) as partial:
        model.config.save_pretrained(partial)  # type: ignore[union-attr, operator]
        write_tensors(partial / "model.safetensors", model.state_dict())
        new_tokenizer(task).save_pretrained(partial)
