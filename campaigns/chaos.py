"""Kill commands, fill their disks, start two of them in one place and read what they are writing.

    python campaigns/chaos.py --seed 1

a  kills        killed 100 times at random times, 50 times at random file operations, and started again: the results
                are bit by bit those of an unbroken run, and no process and no partial file is left
b  replacing    10,000 reads of a learned order and 1,000 of a model while another process replaces them
c  full disks   no space at every tenth of a command's output: one line, nothing lost, and the next run succeeds
d  two writers  the second of two commands with one output is refused, the first is unharmed
e  reading      stores and runs are read while they are written
f  interrupts   an order is learned on text and ended by Ctrl-C, SIGTERM and SIGKILL at 100 random moments: it ends
                within 10 s, and the result is that of an unbroken run (--model, --text: with a model of one's own)

Each story follows from the seed, the part and the number of the story; a failure prints the command that repeats it.
Numbers that are times (`seconds`, `..._per_second`, `share_of_peak`) may differ between equal runs; nothing else may.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from campaigns import full_disks, kills
from campaigns import stage as stage_module
from campaigns.readers import play_reading, play_replacing, play_two_writers
from campaigns.sandbox import ChildError, import_everything, seed_files
from campaigns.stage import JOBS, ChaosError, Stage


@dataclass(frozen=True)
class Part:
    name: str
    stories: Sequence[int]
    play: Callable[[Stage, random.Random, int], str]


PARTS = {
    "a": Part("kills", kills.STORIES, kills.play_kills),
    "b": Part("replacing", range(2), play_replacing),
    "c": Part("full disks", full_disks.STORIES, full_disks.play_full_disk),
    "d": Part("two writers", range(len(JOBS)), play_two_writers),
    "e": Part("reading", range(3), play_reading),
    "f": Part("interrupts", kills.INTERRUPTION_STORIES, kills.play_interruptions),
}


def campaign(
    stage: Stage, seed: int, parts: list[str], only: int | None = None, verbose: bool = True, most: int | None = None
) -> list[str]:
    """Play the stories; returns the failures."""
    failures = []
    for letter in parts:
        part, start, failed, count = PARTS[letter], time.monotonic(), len(failures), 0
        for number in part.stories[:most] if only is None else [only]:
            count += 1
            try:
                told = part.play(stage, random.Random(f"{seed}:{letter}:{number}"), number)
                if verbose:
                    print(f"  {letter} {number}: {told}", flush=True)
            except (ChaosError, ChildError) as error:
                failures.append(
                    f"python campaigns/chaos.py --only {letter} --story {number} --seed {seed}  # {part.name}: {error}"
                )
                print(failures[-1], flush=True)
        seconds = time.monotonic() - start
        print(
            f"{letter}  {part.name:12} {count:4} stories, {len(failures) - failed} failed, {seconds:.0f} s", flush=True
        )
    return failures


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, such as a,c")
    parser.add_argument("--story", type=int, help="only the story of this number, of the one part that is given")
    parser.add_argument("--stories", type=int, help="only so many stories of each part")
    parser.add_argument("--model", help="part f: a model of Transformers, such as hf:FOLDER")
    parser.add_argument("--text", type=Path, help="part f: lines of text to learn on")
    parser.add_argument("--quiet", action="store_true", help="show failures only")
    options = parser.parse_args(arguments)
    if options.model and options.text:
        prefix, _, folder = options.model.rpartition(":")
        stage_module.OTHER_JOBS[stage_module.LEARN_TEXT] = stage_module.learn_text(
            f"{prefix}:{Path(folder).resolve()}" if prefix else options.model, str(options.text.resolve())
        )
    import_everything()
    with seed_files() as files:
        stage = Stage(files, files.with_name("work"))
        failures = campaign(
            stage, options.seed, options.only.split(","), options.story, not options.quiet, options.stories
        )
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
