"""`anyorder translate`: text in, text out, and the record of how it came about."""

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO

from anyorder import progress
from anyorder.cli.common import Device, check_apart, open_translator, whole_file
from anyorder.data.corpus import decode_lines, read_lines
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.orders import make_order
from anyorder.orders.learned import default_order
from anyorder.report.terminal import trace as trace_lines
from anyorder.translator import direction_languages

CHUNK = 4096


def translate(
    input: list[str],
    model: str,
    direction: str,
    order: str | None = None,
    budget: str = "one",
    length: str = "candidates:4",
    reference: Path | None = None,
    trace: bool = False,
    json: Path | None = None,
    seed: int = 1,
    device: Device = "auto",
    batch_tokens: int | None = None,
) -> None:
    """Translate a sentence, a file or standard input.

    Args:
        input: A file (plain, .gz, .xz), a sentence, or nothing for standard input.
        model: A bundled model (de-en), a folder, or a hub id.
        direction: Source and target language, such as de-en.
        order: Which position is filled next; 'anyorder orders' lists them. The model's learned order if not given, or
            margin where it has none.
        budget: Positions filled in one step, 'one' or a number.
        length: How the target's length is found: predicted, candidates:N (N best, re-ranked), table:N (the paper's
            counts), fixed:N (N subwords), or gold (needs --reference).
        reference: Reference translations, one a line, for --length gold.
        trace: Show the sentence after every step; [ ] was filled rightwards, { } leftwards.
        json: Write one trajectory a line to this file.
        seed: For orders that draw hash_uniform.
        device: Where to run.
        batch_tokens: Target tokens under way together; results do not depend on it.
    """
    how = DecodingConfig.of("margin" if order is None else order, budget, length, seed, batch_tokens)
    if (length == "gold") != (reference is not None):
        raise InputError("--length gold and --reference FILE go together")
    check_apart({"--json": json}, [*map(Path, input), reference])
    lines, name = _open(input)
    references = read_lines(reference) if reference else None
    with whole_file(json) as file:
        translator = open_translator(model, device)
        source, target = direction_languages(translator.model, direction)
        how = how.with_order(
            make_order(default_order(translator.model, direction) if order is None else order).bind(
                translator.model, direction
            )
        )
        with progress.bar("translating", unit="sentences") as bar:
            done = 0
            while chunk := list(islice(lines, CHUNK)):
                gold = None
                if references is not None:
                    held = list(islice(references, len(chunk) if len(chunk) == CHUNK else None))
                    if len(held) != len(chunk):
                        more = "more" if len(held) < len(chunk) else "fewer"
                        raise InputError(f"{name} has {more} lines than {reference}")
                    gold = [len(ids) for ids in translator.encode(held, target, str(reference), done + 1)]
                ids = translator.encode(chunk, source, name, done + 1)
                made = translator.decode(chunk, ids, direction, how, gold, bar.advance)
                done += len(chunk)
                if progress.is_main_process():
                    for trajectory in made:
                        _write(trajectory, trace, file)


translate.positionals = {  # type: ignore[attr-defined]
    "input": {
        "nargs": "*",
        "type": str,
        "default": [],
        "help": "a file (plain, .gz, .xz), a sentence, or nothing for standard input",
    }
}


def _open(given: list[str]) -> tuple[Iterator[str], str]:
    """The lines to translate and what to call them in messages."""
    if not given or given == ["-"]:
        return decode_lines(sys.stdin.buffer, "standard input"), "standard input"
    if len(given) == 1:
        path = Path(given[0])
        if os.path.isdir(path):  # unlike Path's, it takes a sentence longer than any name of a file
            raise InputError(f"{path}: is a folder, expected a text file or a sentence")
        looks_like_path = " " not in given[0] and (os.sep in given[0] or path.suffix in _SUFFIXES)
        if looks_like_path or os.path.isfile(path):
            return read_lines(path), str(path)
    return iter(_single_lines(given)), "input"


_SUFFIXES = (".txt", ".gz", ".xz", ".de", ".en", ".ro", ".zh", ".src", ".tok")


def _single_lines(sentences: Iterable[str]) -> list[str]:
    return [" ".join(sentence.splitlines()) for sentence in sentences]


def _write(trajectory: Trajectory, trace: bool, file: IO[str] | None) -> None:
    """Text to standard output at once; the trajectory to the file."""
    if trace:
        print(f"source  {trajectory.source}")
        for line in trace_lines(trajectory):
            print(line)
        print(f"result  {trajectory.text}\n", flush=True)
    else:
        print(trajectory.text)
    if file:
        file.write(trajectory.to_json() + "\n")
