"""Step maps: the decoding order as engines and trainers of masked diffusion models write it, to and from trajectories.

A step map has one number per token of a response: the step at which the token was filled.

    LMDeploy (pull request 4057)           `step_map` beside `token_ids`; from 1, through the whole response
    JetEngine, for SDAR and TraDo          `first_unmask_times` beside `token_ids`; from 1, through the whole response
    dLLM-RL (TraceRL), for LLaDA, Dream    `step_map` beside `response` or `full_output`, without tokens; from 0
    SGLang (pull request 27943)            `step_maps` in `meta_info`, beside `output_ids`; from 1 in every block

A map that holds a 0 is taken to count from 0. -1 marks a token that was given.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from anyorder.data.corpus import read_lines
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError, check_number
from anyorder.files import atomic_file
from anyorder.records import Record, decode_json

GIVEN = -1
_MAPS = ("step_map", "step_maps", "first_unmask_times")
_Steps = list[Annotated[int, msgspec.Meta(ge=GIVEN, lt=1 << 31)]]


def read_step_maps(file: Path, tokenizer: Any = None, block_size: int | None = None) -> list[Trajectory]:
    """The trajectories in a file of step maps: a JSON array, or one object per line (plain, .gz, .xz).

    Args:
        file: The file.
        tokenizer: A tokenizer of Transformers: it splits responses that come without tokens, and names token ids, which
            are shown as numbers without it.
        block_size: The number of positions in a block, for maps in which every block counts from 1. Blocks are counted
            from the start of the prompt if its length is known (`prompt_tokens`), else from that of the response.
    """
    check_number("block_size", block_size, at_least=1)
    return list(from_step_maps(read_lines(file), str(file), tokenizer, block_size))


def write_step_maps(file: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write a JSON array of objects with `prompt`, `response`, `tokens` and `step_map`, each on a line.

    Steps count from 1 through the whole response. It begins at the first mask; given tokens after that have -1. Where
    there is a completion, the response is its tokens, without what follows its end.
    """
    lines = (json.dumps(_to_record(trajectory), ensure_ascii=False) for trajectory in trajectories)
    with atomic_file(file) as stream:
        stream.write("[\n")
        for number, line in enumerate(lines):
            stream.write(f",\n{line}" if number else line)
        stream.write("\n]\n")


def holds_step_maps(line: str) -> bool:
    """Whether this first line of a file says that it holds step maps, not trajectories."""
    return line.lstrip().startswith("[") or ('"steps"' not in line and any(f'"{name}"' in line for name in _MAPS))


def from_step_maps(
    lines: Iterable[str], where: str, tokenizer: Any = None, block_size: int | None = None
) -> Iterator[Trajectory]:
    """See `read_step_maps`. where: what messages call the lines."""
    for record in _records(lines, where):
        for response, step_map in _responses(record):
            tokens = _tokens(record, response, tokenizer)
            # dLLM-RL's maps go on to the end of the canvas, its responses may not.
            if len(step_map) < len(tokens):
                raise InputError(f"{record.where}: {len(tokens)} tokens but {len(step_map)} steps")
            steps = _global_steps(step_map, block_size, _prompt_length(record))[: len(tokens)]
            is_given = [step == GIVEN for step in steps]
            yield Trajectory(
                source=record.text("prompt", default=""),
                text=" ".join(tokens) if response is None else response,
                tokens=[token for token, given in zip(tokens, is_given, strict=True) if not given],
                steps=[step for step in steps if step != GIVEN],
                logprobs=[],
                order="",
                length=len(tokens) - sum(is_given),
                signature="",
                canvas=[token if given else None for token, given in zip(tokens, is_given, strict=True)]
                if any(is_given)
                else None,
            )


def _records(lines: Iterable[str], where: str) -> Iterator[Record]:
    remaining = iter(lines)
    first = next(remaining, "")
    if first.lstrip().startswith("["):
        array = decode_json("\n".join([first, *remaining]), list[dict[str, Any]], where)
        yield from (Record(f"{where}, object {number}", values) for number, values in enumerate(array, start=1))
        return
    for number, line in enumerate([first, *remaining], start=1):
        place = f"{where}, line {number}"
        yield Record(place, decode_json(line, dict[str, Any], place))


def _responses(record: Record) -> Iterator[tuple[str | None, list[int]]]:
    """The responses to a prompt, each with its step map. None: the text is not there."""
    within = record.record("meta_info", default={})
    place, name = next(
        ((place, name) for place in (record, within) for name in _MAPS if name in place), (record, _MAPS[0])
    )
    if "full_output" in record:
        responses, maps = record.texts("full_output"), place.take(name, list[_Steps])
        if len(responses) != len(maps):
            raise InputError(f"{record.where}: {len(responses)} outputs but {len(maps)} step maps")
        yield from zip(responses, maps, strict=True)
        return
    text = next((record.text(name) for name in ("response", "text") if name in record), None)
    yield text, place.take(name, _Steps)


def _tokens(record: Record, response: str | None, tokenizer: Any) -> list[str]:
    for name in ("tokens", "pieces"):
        if name in record:
            return record.texts(name)
    for name in ("token_ids", "output_ids"):
        if name in record:
            ids = record.take(name, list[int])
            return [str(number) for number in ids] if tokenizer is None else tokenizer.convert_ids_to_tokens(ids)
    if response is None or tokenizer is None:
        raise InputError(f"{record.where}: has no tokens; read it with anyorder.read_step_maps and a tokenizer")
    return tokenizer.convert_ids_to_tokens(tokenizer(response, add_special_tokens=False)["input_ids"])


def _prompt_length(record: Record) -> int:
    """In tokens; 0 if it is not known."""
    within = record.record("meta_info", default={})
    return next((place.integer("prompt_tokens") for place in (record, within) if "prompt_tokens" in place), 0)


def _global_steps(step_map: Sequence[int], block_size: int | None, prompt_length: int) -> list[int]:
    """Steps from 1 through the whole response; -1 stays."""
    first = 1 if 0 in step_map else 0
    steps = [step if step == GIVEN else step + first for step in step_map]
    if block_size is None:
        return steps
    before, start = 0, -(prompt_length % block_size)
    for begin in range(start, len(steps), block_size):
        block = slice(max(begin, 0), begin + block_size)
        steps[block] = [step if step == GIVEN else before + step for step in steps[block]]
        before = max([before, *steps[block]])
    return steps


def _to_record(trajectory: Trajectory) -> dict[str, Any]:
    filled = iter(zip(trajectory.tokens, trajectory.steps, strict=True))
    canvas = trajectory.canvas or [None] * trajectory.length
    response = canvas[canvas.index(None) :] if None in canvas else []
    pairs = [next(filled) if token is None else (token, GIVEN) for token in response][: trajectory.completion_length]
    return {
        "prompt": trajectory.source,
        "response": trajectory.text if trajectory.completion is None else trajectory.completion,
        "tokens": [token for token, _ in pairs],
        "step_map": [step for _, step in pairs],
    }
