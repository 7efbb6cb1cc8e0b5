"""Parts a and f of chaos: commands are ended again and again, and in the end write what an unbroken run writes."""

import os
import random
import signal
import time
from pathlib import Path

from campaigns.sandbox import Process
from campaigns.stage import JOBS, LEARN_TEXT, SECONDS, ChaosError, Stage, before_calls, compare, expect, job_of

KILLS, KILLS_AT_CALLS, KILLS_PER_STORY = 100, 50, 5
KILLED = ("prepare", "train", "learn-order", "translate", "evaluate")
INTERRUPTIONS, INTERRUPTION_SECONDS = 100, 10.0
"""How often learning is ended by a signal, every other time by SIGKILL, and how long it may take to end."""
HANGS = 1800.0
"""Seconds after which a run that may use a model of one's own hangs."""
INTERRUPTION_STORIES = range(INTERRUPTIONS // KILLS_PER_STORY)
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


def play_interruptions(stage: Stage, draw: random.Random, number: int) -> str:
    """End learning on text at random moments, by Ctrl-C, SIGTERM and SIGKILL in turn; it ends in time, every time, and
    what is learned in the end is the same."""
    job = job_of(LEARN_TEXT)
    expected, seconds, _ = stage.unbroken(LEARN_TEXT, limit=HANGS)
    folder, slowest, count, attempts = stage.scene(f"interruptions {number}"), 0.0, 0, 0
    disk = folder / "here" / "disk"
    signals = (signal.SIGINT, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)
    while count < KILLS_PER_STORY:
        attempts += 1
        if attempts > 20 * KILLS_PER_STORY:
            raise ChaosError("too fast to be interrupted")
        kind = signals[(number * KILLS_PER_STORY + count) % len(signals)]
        (folder / "stderr").unlink(missing_ok=True)
        process = Process(folder, job.again, quick_workers=False)
        ended = process.send_after(draw.uniform(0, seconds), kind)
        sent = time.monotonic()
        ended = ended or process.wait(HANGS)
        took = time.monotonic() - sent
        if ended.left:
            raise ChaosError(f"{kind.name}: leaves a process behind: {ended.left[:200]}")
        if ended.code == 0 and "continue with --resume" not in ended.stdout:  # the signal came too late
            compare(LEARN_TEXT, disk, expected)
            folder = stage.scene(f"interruptions {number}")
            continue
        count += 1
        if kind is signal.SIGKILL:
            continue
        slowest = max(slowest, took)
        if took > INTERRUPTION_SECONDS:
            raise ChaosError(f"{kind.name}: ended {took:.1f} s later")
        before_it_began = ended.code == -kind and not ended.stderr
        if (ended.code not in (0, 130, 143) and not before_it_began) or "Traceback" in ended.stderr:
            raise ChaosError(f"{kind.name}: exit code {ended.code}: {ended.stderr[-1000:]}{ended.stdout[-1000:]}")
    expect(Process(folder, job.again, quick_workers=False).wait(HANGS), 0, LEARN_TEXT)
    compare(LEARN_TEXT, disk, expected)
    return f"{count} signals, the slowest end took {slowest:.1f} s"
