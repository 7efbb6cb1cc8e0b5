"""Damage files and options in every way, run the command on them, and check that it ends in a result or in one line.

    python campaigns/fuzz.py --cases 10000 --seed 1 --jobs 2

A case follows from the seed and its number alone; a failure prints the command that repeats it. A case must end within
20 seconds and 4 GB with exit code 0 or 2, one line on standard error for 2, no traceback, no process left, no file
half-written. What was done is in a log, so that the same command goes on where it was stopped.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from campaigns.damage import SPARSE, damage_file, damage_folder, repair_checksums
from campaigns.odd_options import odd_command
from campaigns.sandbox import SECONDS, Ended, Process, import_everything, seed_files
from campaigns.seed_files import COMMANDS
from campaigns.whole import is_whole

SHARES = {
    "store": 16, "baseline": 2, "run": 7, "order-run": 3, "pretrain-run": 2, "model": 10, "masked": 4,
    "puzzles.txt": 2, "xlm": 2, "order": 10, "a.jsonl": 4, "b.jsonl.gz": 2, "c.jsonl.xz": 2, "text": 7,
    "translate.yaml": 1, "train.yaml": 1, "learn-order.yaml": 1, "evaluate.yaml": 1, "prepare.yaml": 1, "plugin.py": 2,
    "prompts.jsonl": 3, "chat": 3, "old": 2, "options": 20,
}  # fmt: skip
"""Of 108 cases so many damage this, or have odd options."""
KINDS = [kind for kind, share in SHARES.items() for _ in range(share)]
TRAINING = ("train", "pretrain", "learn-order", "train-task")
STOP_AFTER = 4.0
"""Seconds after which a command that may have been asked for a lot of work is asked to stop."""


@dataclass(frozen=True)
class Case:
    kind: str
    arguments: list[str]
    repaired: bool = False
    """Whether checksums are made to fit the damage."""
    before: bool = False
    """Whether the file to write exists before."""
    stdout: str = ""

    @property
    def verb(self) -> str:
        return self.arguments[0] if self.arguments else ""

    @property
    def may_be_long(self) -> bool:
        """Whether an odd value may ask for a lot of work."""
        return self.kind == "options" or self.kind.endswith(".yaml")


def kind_of(seed: int, number: int) -> str:
    """What a case damages: every 108 cases have the same shares, shuffled."""
    block, place = divmod(number, len(KINDS))
    return random.Random(f"{seed}:block {block}").sample(KINDS, len(KINDS))[place]


def make_case(seed: int, number: int) -> Case:
    draw = random.Random(f"{seed}:{number}")
    kind = kind_of(seed, number)
    if kind == "options":
        arguments = odd_command(draw)
        full = draw.random() < 0.05
        return Case(kind, arguments, before=draw.random() < 0.3, stdout="/dev/full" if full else "")
    arguments = draw.choice(COMMANDS[kind])
    is_folder = "." not in kind
    return Case(kind, arguments, repaired=is_folder and draw.random() < 0.65, before=draw.random() < 0.2)


def damage_case(case: Case, seed: int, number: int) -> str:
    """Damage what a case is about, in the working folder; says what was done."""
    if case.kind == "options":
        return ""
    draw = random.Random(f"{seed}:{number}:damage")
    target = Path(case.kind)
    if target.is_dir():
        what = damage_folder(draw, target)
        if case.repaired and target.is_dir():
            repair_checksums(target)
        return what
    return damage_file(draw, target)


@dataclass(frozen=True)
class Outcome:
    number: int
    kind: str
    verb: str
    code: int
    seconds: float
    megabytes: float
    damage: str
    fault: str
    """Empty if all is well."""


class Campaign:
    """Cases, several at a time."""

    def __init__(self, seed: int, seed_files: Path, work: Path):
        self.seed, self.seed_files, self.work = seed, seed_files, work
        work.mkdir(exist_ok=True)

    def run(self, numbers: Sequence[int], jobs: int) -> Iterator[Outcome]:
        """The outcomes as they come."""
        waiting = list(reversed(numbers))
        running: dict[int, Process] = {}
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    number = waiting.pop()
                    running[number] = self._start(number)
                time.sleep(0.003)
                for number, process in list(running.items()):
                    if ended := process.poll():
                        del running[number]
                        yield self._finish(number, ended)
                    elif process.seconds > SECONDS:
                        process.kill()
                    elif process.seconds > STOP_AFTER and make_case(self.seed, number).may_be_long:
                        process.stop()
        finally:
            for process in running.values():
                process.kill()

    def folder(self, number: int) -> Path:
        return self.work / str(number)

    def _start(self, number: int) -> Process:
        case = make_case(self.seed, number)
        folder = self.folder(number)
        folder.mkdir()

        def before() -> None:
            shutil.copytree(self.seed_files, ".", symlinks=True, dirs_exist_ok=True)
            Path("null").symlink_to("/dev/null")
            Path("full").symlink_to("/dev/full")
            if case.before:
                for name in ("out.json", "out.jsonl", "out.html", "out.md"):
                    shutil.copy("a.jsonl" if name == "out.jsonl" else "order/order.json", name)
            what = damage_case(case, self.seed, number)
            (folder / "what").write_text(what, errors="backslashreplace")
            (folder / "files.json").write_text(json.dumps(files_of(Path("."))))
            _serve_nothing()

        return Process(folder, case.arguments, before, case.stdout)

    def _finish(self, number: int, ended: Ended) -> Outcome:
        case, folder = make_case(self.seed, number), self.folder(number)
        fault = ended.fault(shows_progress=case.verb in TRAINING) or file_fault(folder, ended.code)
        seconds, megabytes = round(ended.seconds, 2), round(ended.megabytes)
        return Outcome(number, case.kind, case.verb, ended.code, seconds, megabytes, self._damage_of(number), fault)

    def _damage_of(self, number: int) -> str:
        """What was damaged, in words."""
        file = self.folder(number) / "what"
        repaired = " (checksums repaired)" if make_case(self.seed, number).repaired else ""
        return file.read_text() + repaired if file.exists() else ""

    def remove(self, number: int) -> None:
        shutil.rmtree(self.folder(number), ignore_errors=True)


def _serve_nothing() -> None:
    """The explorer's server returns at once; its requests have a campaign of their own."""
    import anyorder.app.server as server

    class Server:
        def run(self, sockets: object = None) -> None:
            pass

    server.make_server = lambda *arguments, **options: Server()  # type: ignore[assignment]


def files_of(folder: Path) -> dict[str, list[int]]:
    """Everything in a folder with what changes when it is written."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        name = os.fsencode(path.relative_to(folder)).decode("utf-8", "backslashreplace")
        found[name] = [status.st_ino, status.st_mtime_ns, status.st_size]
    return found


def file_fault(folder: Path, code: int) -> str:
    """What is wrong with the files that a command left: half-written, left over, or lost."""
    here = folder / "here"
    if not (folder / "files.json").exists():
        return "the case itself failed"
    before = json.loads((folder / "files.json").read_text())
    after = files_of(here)
    for name, status in after.items():
        if before.get(name) == status:
            continue
        if name not in before and is_unfinished(name):
            return f"leaves {name}"
        if (here / name).is_file() and status[2] < SPARSE and (what := is_whole(here / name)):
            return f"half-written {name}: {what}"
    if code == 2:
        lost = [name for name in before if name not in after and not is_unfinished(name) and "checkpoint-" not in name]
        if lost:
            return f"loses {lost[0]}"
    return ""


def is_unfinished(name: str) -> bool:
    """Whether a path is something unfinished, or is being replaced."""
    return any(part.endswith(".old") or ".partial" in part for part in Path(name).parts)


class Log:
    """The outcomes on disk, so that a campaign goes on where it was stopped."""

    def __init__(self, file: Path, seed: int):
        self.file = file
        self.outcomes: dict[int, Outcome] = {}
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"seed": seed}) + "\n")
            return
        head, *lines = file.read_text().splitlines()
        if json.loads(head)["seed"] != seed:
            raise SystemExit(f"{file}: is the log of seed {json.loads(head)['seed']}; choose another --log")
        for line in lines:
            try:
                outcome = Outcome(**json.loads(line))
            except ValueError:  # the line that was being written when the campaign was killed
                continue
            self.outcomes[outcome.number] = outcome

    def add(self, outcome: Outcome) -> None:
        self.outcomes[outcome.number] = outcome
        with self.file.open("a") as stream:
            stream.write(json.dumps(vars(outcome)) + "\n")


def repeat(seed: int, number: int) -> str:
    """The line that repeats a case."""
    return f"python campaigns/fuzz.py --case {number} --seed {seed}"


def failure_line(seed: int, outcome: Outcome) -> str:
    about = f"{outcome.kind}, {outcome.verb}: {outcome.fault} [{outcome.damage}]"
    return f"{repeat(seed, outcome.number)}  # {' '.join(about.split())}"


def summary(outcomes: Sequence[Outcome]) -> str:
    """A table of the cases by kind, the causes of failures, and the slowest cases."""
    lines = [f"{'kind':18}{'cases':>7}{'exit 0':>8}{'exit 2':>8}{'other':>7}{'failed':>8}{'slowest':>9}{'most MB':>9}"]
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.kind, []).append(outcome)
    for kind, members in [*sorted(groups.items()), ("all", list(outcomes))]:
        codes = Counter(member.code if member.code in (0, 2) else 1 for member in members)
        failed = sum(bool(member.fault) for member in members)
        slowest = max((member.seconds for member in members), default=0)
        most = max((member.megabytes for member in members), default=0)
        lines.append(
            f"{kind:18}{len(members):7,}{codes[0]:8,}{codes[2]:8,}{codes[1]:7,}{failed:8,}{slowest:8.1f}s{most:9,.0f}"
        )
    causes: dict[str, list[int]] = {}
    for outcome in outcomes:
        if outcome.fault:
            causes.setdefault(outcome.fault, []).append(outcome.number)
    for fault, numbers in sorted(causes.items(), key=lambda item: -len(item[1])):
        lines.append(f"{len(numbers):5} x {fault}  (such as --case {numbers[0]})")
    return "\n".join(lines)


def show_case(campaign: Campaign, number: int, keep: bool) -> int:
    """Run one case and show all of it."""
    case = make_case(campaign.seed, number)
    print(f"anyorder {shlex.join(os.fsencode(word).decode('utf-8', 'backslashreplace') for word in case.arguments)}")
    (outcome,) = campaign.run([number], 1)
    folder = campaign.folder(number)
    print(f"damaged: {outcome.damage}")
    for name in ("stdout", "stderr"):
        if (folder / name).exists():
            print(f"{name}:\n{(folder / name).read_text(errors='replace')[:20_000]}")
    verdict = outcome.fault or "as it should be"
    print(f"exit code {outcome.code} after {outcome.seconds} s, {outcome.megabytes} MB: {verdict}")
    if keep:
        target = Path(tempfile.mkdtemp(prefix=f"fuzz-case-{number}-"))
        shutil.copytree(folder, target, symlinks=True, dirs_exist_ok=True)
        print(f"kept in {target}")
    return int(bool(outcome.fault))


def run_cases(campaign: Campaign, log: Log, numbers: Sequence[int], jobs: int) -> None:
    """Run cases, log them, print failures as they come and now and then how many are done."""
    start = time.monotonic()
    for done, outcome in enumerate(campaign.run(numbers, jobs), start=1):
        log.add(outcome)
        if outcome.fault:
            print(failure_line(campaign.seed, outcome), flush=True)
        if done % 500 == 0:
            rate = done / (time.monotonic() - start)
            print(f"{done:,} of {len(numbers):,} cases, {rate:.1f} a second", file=sys.stderr, flush=True)
        campaign.remove(outcome.number)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000, help="how many")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="K", help="the number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", help="only cases of these kinds, such as prompts.jsonl,chat,old")
    parser.add_argument("--jobs", type=int, default=2, help="cases that run at the same time")
    parser.add_argument("--log", type=Path, help="what was done; build/fuzz-SEED.jsonl if not given")
    parser.add_argument("--again", action="store_true", help="run only those that failed according to the log")
    parser.add_argument("--case", type=int, help="run only the case of this number, and show all of it")
    parser.add_argument("--keep", action="store_true", help="with --case: keep its files")
    options = parser.parse_args(arguments)
    import_everything()
    with seed_files() as files:
        campaign = Campaign(options.seed, files, files.with_name("work"))
        if options.case is not None:
            return show_case(campaign, options.case, options.keep)
        log = Log(options.log or Path("build", f"fuzz-{options.seed}.jsonl"), options.seed)
        kinds = options.kinds.split(",") if options.kinds else SHARES
        wanted = [
            number
            for number in range(options.first, options.first + options.cases)
            if kind_of(options.seed, number) in kinds
        ]
        done = [number for number in wanted if number in log.outcomes]
        if options.again:
            numbers = [number for number in done if log.outcomes[number].fault]
        else:
            numbers = [number for number in wanted if number not in log.outcomes]
            print(f"{len(done):,} of {len(wanted):,} cases are done according to {log.file}")
        run_cases(campaign, log, numbers, options.jobs)
    outcomes = [log.outcomes[number] for number in wanted if number in log.outcomes]
    print(summary(outcomes))
    return int(any(outcome.fault for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
