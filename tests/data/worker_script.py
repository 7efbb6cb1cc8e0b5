"""Run by test_workers.py in a process of its own: workers that write their process ids and then do as they are told."""

import os
import signal
import sys
import time
from pathlib import Path

from anyorder.data.workers import Workers, blocks
from anyorder.errors import InputError


def work(chunk: list[int]) -> int:
    (Path(os.environ["FOLDER"]) / str(os.getpid())).touch()
    if os.environ["TASK"] == "die" and chunk[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5 if os.environ["TASK"] == "work" else 0)
    return len(chunk)


if __name__ == "__main__":
    try:
        with Workers(2) as workers:
            print(sum(workers.map(work, blocks(range(10**5 if os.environ["TASK"] == "work" else 5000), 2048))))
    except InputError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted")
