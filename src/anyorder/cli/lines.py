"""The verbs that read lines: `anyorder translate`, `infill` and `generate`. They print and write trajectories."""

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from anyorder import progress
from anyorder.cli.common import SearchOptions, check_apart, connected, open_decoder, output_file, print_note
from anyorder.cli.parser import SharedOptions
from anyorder.data.corpus import OnInvalid, decode_lines, open_bytes, read_lines, read_text
from anyorder.data.line_problems import LineNote, LineReport
from anyorder.decoding.config import AUTO, DEFAULT_LENGTH
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.models.hf.pretrained import PREFIX
from anyorder.report.terminal import trace as trace_lines
from anyorder.tasks import Generate, PuzzleTask, Task, Translation, masked
from anyorder.tasks.prompts import Prompt

_SUFFIXES = (".txt", ".gz", ".xz", ".de", ".en", ".ro", ".zh", ".src", ".tok", ".jsonl", ".json")
InputFormat = Literal["auto", "lines", "jsonl", "whole"]


@dataclass(frozen=True)
class OrderOptions(SharedOptions):
    """Which positions to fill, and when."""

    order: str = AUTO
    """Which position to fill next; 'anyorder orders' lists the names. auto is the model's learned order, or margin if
    it has none."""
    schedule: str = AUTO
    """How many positions to fill per step: one, a number, steps:T, cosine:T, threshold:P (all positions whose best
    token has probability P or more), blocks:B+threshold:P, and others that 'anyorder orders' lists. auto is the
    schedule published with the revision; without a revision it is one, or blocks:B for a model with blocks of B
    positions."""
    revision: str = "none"
    """Which filled positions to mask again after a step: none, mask-predict:T, refine:T, gibbs:N, p2:T or remdm:T."""


@dataclass(frozen=True)
class DecodingOptions(SearchOptions, OrderOptions):
    """How to decode."""


@dataclass(frozen=True)
class LineOptions(SharedOptions):
    """What to print and write."""

    trace: bool = False
    """Show the text after every step: [ ] marks neighbors filled from left to right, { } from right to left, and
    old->new a revised token. A puzzle is shown as a grid: [ ] marks newly filled cells, { } revised ones."""
    json: Path | None = None
    """Also write the trajectories to this file, one per line (plain, .gz, .xz)."""
    strict: bool = False
    """Stop with an error at the first problematic line."""

    @property
    def on_invalid(self) -> OnInvalid:
        """What to do with invalid UTF-8."""
        return "strict" if self.strict else "replace"


def translate(
    input: list[str],
    /,
    model: str,
    direction: str,
    decoding: DecodingOptions,
    output: LineOptions,
    length: str = DEFAULT_LENGTH,
    length_penalty: float = 1.0,
    reference: Path | None = None,
) -> None:
    """Translate a sentence, a file or standard input.

    A problematic line never stops the others. An empty line gives an empty line. A line that is too long for the model
    is split into sentences, or else clauses, and whatever still does not fit is truncated. Control characters become
    spaces, and invalid UTF-8 becomes U+FFFD. The trajectories of such lines have a note, and the lines are listed on
    standard error at the end.

    Args:
        input: A file (plain, .gz, .xz), a sentence, or nothing for standard input.
        model: A bundled model (de-en), a folder, or a hub id.
        direction: Source and target language, such as de-en.
        length: How to choose the target length: predicted, candidates:N (the N most likely, re-ranked), table:N (the N
            most frequent, as in the paper), fixed:N (N subwords), or gold (needs --reference). N lengths take about N
            times as long as one.
        length_penalty: Hypotheses of different lengths are ranked by total log-probability / length ** length_penalty.
        reference: Reference translations, one per line, for --length gold.
    """
    if (length == "gold") != (reference is not None):
        raise InputError("--length gold and --reference FILE go together")
    lines = _open_input(input, output.on_invalid)
    lengths = {"length": length, "length_penalty": length_penalty}
    _run_lines("translate", lines, model, direction, decoding, output, reference, **lengths)


def infill(input: list[str], /, model: str, decoding: DecodingOptions, output: LineOptions) -> None:
    """Fill the masks in a text, in a file with one text per line, or in standard input.

    Each [MASK], or the model's own mask token, stands for one token. With a puzzle model, a line may also be a puzzle,
    one character per cell, with 0 for an empty cell. A line that cannot be filled (it has no mask and is not a puzzle,
    or it is too long for the model) is returned unchanged and never stops the others. Its trajectory has a note, and
    such lines are listed on standard error at the end. If it is the only text, it is an error. Puzzles that have no
    solution are filled all the same, and counted on standard error.

    Args:
        input: A file (plain, .gz, .xz), a text with masks, or nothing for standard input.
        model: A Transformers masked language model: a folder or a hub id, with or without the prefix hf:.
    """
    lines = _open_input(input, output.on_invalid, is_kept=True)
    _run_lines("infill", lines, _masked_model(model), None, decoding, output)


def generate(
    input: list[str],
    /,
    model: str,
    decoding: DecodingOptions,
    output: LineOptions,
    prompt: str | None = None,
    input_format: InputFormat = "auto",
    chat: bool = False,
    system: str | None = None,
    length: int = masked.DEFAULT_LENGTH,
    stop: list[str] | None = None,
    end: masked.End = "free",
    early_stop: bool = True,
) -> None:
    """Continue a prompt, those of a file, or standard input.

    Prompts are read as they are, line breaks included; a mask in a prompt is part of it and stays. --length masks
    follow. The completion ends at the first end token or stop string. A prompt that is too long for the model is
    returned unchanged and never stops the others; if it is the only prompt, it is an error.

    Args:
        input: A file (plain, .gz, .xz), a prompt, or nothing for standard input.
        model: A Transformers masked language model: a folder or a hub id, with or without the prefix hf:.
        prompt: The prompt; use this or the input argument.
        input_format: lines (a prompt per line), jsonl (an object per line, with prompt, prompt and suffix, messages, or
            canvas), or whole (all of it is one prompt). auto is jsonl for a file named .jsonl or .json, else lines.
        chat: Make each plain prompt the message of a user, in the tokenizer's own chat template, and print only the
            answer.
        system: With --chat, the system message before each of these messages.
        length: Number of tokens to generate.
        stop: A completion ends before this text; repeat the option for several.
        end: When end tokens are filled in: free, like other tokens; last, where only they are left; never.
        early_stop: With a schedule in blocks, stop after the block in which the completion ends.
    """
    if prompt is not None and input:
        raise InputError("give --prompt or an input, not both")
    given = _texts_input([prompt], True) if prompt is not None else _open_input(input, output.on_invalid, is_kept=True)
    given = _as_prompts(given, input_format, output.on_invalid)
    task = Generate(length, chat, system, stop, end, early_stop)
    _run_lines("generate", given, _masked_model(model), task, decoding, output)


generate.arguments = {"stop": {"nargs": None, "action": "append"}}  # type: ignore[attr-defined]


def _masked_model(name: str) -> str:
    """The name of what must be a masked language model; a user may leave out the prefix."""
    return f"{PREFIX}{name.removeprefix(PREFIX)}"


@dataclass(frozen=True)
class _Input:
    """The lines to decode."""

    lines: Iterator[Any]
    name: str
    """What messages call them."""
    file: Path | None = None
    is_single: bool = False
    """Whether it is one text, so that an error about it is one about the command."""
    is_argument: bool = False
    """Whether it comes from the command line itself."""


def _as_prompts(given: _Input, kind: InputFormat, on_invalid: OnInvalid) -> _Input:
    """What `generate` continues."""
    name = given.file.name.removesuffix(".gz").removesuffix(".xz") if given.file else ""
    if kind == "jsonl" or (kind == "auto" and name.endswith((".jsonl", ".json"))):
        return replace(given, lines=map(Prompt.parse, given.lines))
    if kind == "whole" and not given.is_argument:
        with open_bytes(given.file) if given.file else nullcontext(sys.stdin.buffer) as stream:
            return replace(given, lines=iter([read_text(stream, given.name, on_invalid)]), is_single=True)
    return given


def _open_input(arguments: list[str], on_invalid: OnInvalid, is_kept: bool = False) -> _Input:
    """The lines of a file or standard input, or the texts of the command line. is_kept: see `_texts_input`."""
    if not arguments or arguments == ["-"]:
        if sys.stdin is None:
            raise InputError("standard input is closed: give a sentence or a file")
        return _Input(decode_lines(sys.stdin.buffer, "standard input", on_invalid), "standard input")
    if len(arguments) == 1 and arguments[0]:
        path = Path(arguments[0])
        if os.path.isdir(path):  # unlike Path.is_dir, accepts a sentence that is too long to be a file's name
            raise InputError(f"{path}: is a folder, expected a text file or a sentence")
        looks_like_path = not any(map(str.isspace, arguments[0])) and (
            os.sep in arguments[0] or path.suffix in _SUFFIXES
        )
        if looks_like_path or os.path.isfile(path):
            return _Input(read_lines(path, on_invalid), str(path), path)
    return _texts_input(arguments, is_kept)


def _texts_input(texts: list[str], is_kept: bool = False) -> _Input:
    """Texts of the command line: each is one line, unless it is to be kept as it is."""
    lines = texts if is_kept else [" ".join(text.splitlines()) for text in texts]
    return _Input(iter(lines), "input", is_single=len(texts) == 1, is_argument=True)


def _run_lines(
    verb: str,
    given: _Input,
    model: str,
    task: str | Task | None,
    decoding: DecodingOptions,
    output: LineOptions,
    reference: Path | None = None,
    **config: Any,
) -> None:
    """Decode lines, print and write their trajectories, and report on lines that were not used as they are.

    config: more of the config. A single text that cannot be filled as it is is an error; a single sentence is split or
    truncated, as in a file.
    """
    settings = decoding.config(**config)
    word, stem = ("translate", "translat") if verb == "translate" else ("fill", "fill")
    check_apart({"--json": output.json}, [given.file, reference])
    count, unsolvable, report = 0, 0, LineReport()
    # What was decoded stays if standard output fails: if nobody reads it, or it lacks a character.
    with (
        connected(decoding.cluster, output.json) as cluster,
        output_file(output.json, keep_on=(BrokenPipeError, UnicodeEncodeError)) as file,
    ):
        decoder = open_decoder(model, decoding.device, task, cluster, decoding.dtype)
        with progress.bar(f"{stem}ing", unit=f"{decoder.task.unit}s") as bar:
            stream = decoder.stream(
                given.lines,
                settings,
                read_lines(reference, output.on_invalid) if reference else None,
                on_progress=bar.advance,
                names={"source": given.name, "reference": str(reference)},
                strict=output.strict or (given.is_single and not isinstance(decoder.task, Translation)),
            )
            for trajectory in stream:
                if not progress.is_main_process():
                    continue
                count += 1
                if file:
                    file.write(f"{trajectory.to_json()}\n")
                _print(trajectory, output.trace)
                if trajectory.note:
                    report.add(LineNote(count, trajectory.note))
                if isinstance(decoder.task, PuzzleTask) and trajectory.task == decoder.task.name:
                    [puzzle], _ = decoder.task.read_lines([trajectory.source])
                    unsolvable += any(decoder.task.problems(puzzle[None]))
    print_note(verb, report.summary(f"{stem}ed") if count else f"{given.name} is empty: nothing to {word}")
    if unsolvable:
        print_note(verb, f"{'1 puzzle is' if unsolvable == 1 else f'{unsolvable:,} puzzles are'} unsolvable")


def _print(trajectory: Trajectory, trace: bool) -> None:
    if trace:
        steps = trace_lines(trajectory)
        print(f"source  {trajectory.source}", *steps, f"result  {trajectory.text}\n", sep="\n", flush=True)
    else:
        print(trajectory.text, flush=True)
