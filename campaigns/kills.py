"""Part a of chaos: commands are killed again and again, and end with what an unbroken run writes."""

import os
import random
import signal
import time
from pathlib import Path

from campaigns.sandbox import Process
from campaigns.stage import JOBS, SECONDS, ChaosError, Stage, before_calls, compare, expect

KILLS, KILLS_AT_CALLS, KILLS_PER_STORY = 100, 50, 5
KILLED = ("prepare", "train", "learn-order", "translate", "evaluate")
STORIES = range((KILLS + KILLS_AT_CALLS) // KILLS_PER_STORY)


def play_kills(stage: Stage, draw: random.Random, number: int) -> str:
    """Kill a command several times, let it finish, and compare with the unbroken run."""
    verb = KILLED[number % len(KILLED)]
    job = JOBS[verb]
    expected, seconds, calls = stage.unbroken(verb)
    at_calls = number >= KILLS // KILLS_PER_STORY
    folder, kills, attempts = stage.scene(f"kills {number}"), 0, 0
    disk = folder / "here" / "disk"
    while kills < KILLS_PER_STORY:
        attempts += 1
        if attempts > 20 * KILLS_PER_STORY:
            raise ChaosError(f"{verb}: too fast to be killed")
        if at_calls:
            call = draw.randint(1, calls)
            process = Process(folder, job.again, lambda call=call: _kill_at_call(call), quick_workers=False)
        else:
            process = Process(folder, job.again, quick_workers=False)
            time.sleep(draw.uniform(0, seconds))
            process.send(signal.SIGKILL)
        ended = process.wait(SECONDS)
        if ended.left:
            raise ChaosError(f"{verb}: kill {kills + 1} leaves a process behind: {ended.left[:200]}")
        was_killed = ended.code == -signal.SIGKILL and not ended.hung
        kills += was_killed
        if not was_killed:
            expect(ended, 0, verb)
        if not was_killed or _is_done(verb, disk):  # the kill came too late
            compare(verb, disk, expected)
            folder = stage.scene(f"kills {number}")
    expect(Process(folder, job.again, quick_workers=False).wait(SECONDS), 0, verb)
    compare(verb, disk, expected)
    return f"{verb}: killed {kills} times {'at file operations' if at_calls else 'at random times'}"


def _is_done(verb: str, disk: Path) -> bool:
    """Whether a killed command had finished, where the next one would be refused for it."""
    return verb == "prepare" and (disk / "out").exists()


def _kill_at_call(number: int) -> None:
    """In a command's process: end it right before one of its file operations."""
    left = number

    def count_down() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    before_calls(count_down)
