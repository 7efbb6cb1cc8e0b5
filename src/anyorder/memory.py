"""Running out of memory: work on many items goes on with fewer of them at a time. Knows nothing about the work."""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from anyorder import progress

Item = TypeVar("Item")
Result = TypeVar("Result")
_NO_MEMORY = "out of memory|allocate memory|not enough memory"
"""How torch words it, on each device."""
_said = False


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is too little memory, on any device."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and re.search(_NO_MEMORY, str(error)) is not None
    )


class Halving:
    """Runs something on batches of items, on as large a part of each as memory allows. It remembers the size."""

    def __init__(self) -> None:
        self._parts = 1

    def run(
        self,
        items: Sequence[Item],
        action: Callable[[Sequence[Item]], Result],
        may_repeat: Callable[[], bool] = lambda: True,
    ) -> list[Result]:
        """What `action` returns for each part of the items, in order. Where memory is too small for a part, that part
        is tried again in halves.

        may_repeat: whether the action can begin again, asked if it has failed.
        """
        found: list[Result] = []
        start = 0
        while start < len(items):
            part = items[start : start + max(1, -(-len(items) // self._parts))]
            try:
                found.append(action(part))
            except (MemoryError, RuntimeError) as error:
                if len(part) == 1 or not is_out_of_memory(error) or not may_repeat():
                    raise
            else:
                start += len(part)
                continue
            # Not above: what has failed is freed only when its error is gone.
            self._parts *= 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            _say_once(f"not enough memory for {len(part):,} sequences at a time: going on with {-(-len(part) // 2):,}")
        return found


def _say_once(line: str) -> None:
    global _said
    if not _said:
        _said = True
        progress.say(line)
