"""What Ctrl-C and SIGTERM do to the command. Imports almost nothing, so that it is active before anything else."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

_received: list[int] = []


def received() -> int | None:
    """The signal that ended the last `unwind_on_signals`, if one did."""
    return _received[0] if _received else None


@contextmanager
def _handling(handler: Callable[[int, object], object], sigterm: bool = True) -> Iterator[None]:
    """Ctrl-C and SIGTERM go to this handler. Outside the main thread, nothing changes.

    SIGINT is left alone if the program that calls the command ignores it or has its own handler.
    """
    numbers = [signal.SIGTERM] if sigterm else []
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _unwind):
        numbers.insert(0, signal.SIGINT)
    previous: dict[signal.Signals, object] = {}
    with suppress(ValueError):  # not the main thread
        for number in numbers:
            previous[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before or signal.SIG_DFL)  # type: ignore[arg-type]


def unwind_on_signals() -> AbstractContextManager[None]:
    """Ctrl-C and SIGTERM raise an exception, so that half-written files are removed on the way out.

    A library may turn the exception into another error; `received` still tells. SIGTERM is left alone if a launcher
    started several processes: one that waits for another would not react to it.
    """
    _received.clear()
    return _handling(_unwind, sigterm=os.environ.get("WORLD_SIZE", "1") == "1")


def exit_at_once_on_signals() -> AbstractContextManager[None]:
    """For imports: an exception inside a library's import may not survive it."""
    return _handling(_exit_at_once)


def _unwind(number: int, frame: object) -> None:
    _received.append(number)
    sys.unraisablehook = _raise_again
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def _raise_again(ignored: "sys.UnraisableHookArgs") -> None:
    """Send the signal again: Python ignores exceptions in a `__del__` or a weak reference's callback."""
    if not isinstance(ignored.exc_value, KeyboardInterrupt | SystemExit):
        sys.__unraisablehook__(ignored)
        return
    from threading import Timer  # not raised here, where it would be lost again

    timer = Timer(0.01, os.kill, (os.getpid(), _received[-1]))
    timer.daemon = True
    timer.start()


def _exit_at_once(number: int, frame: object) -> None:
    if number == signal.SIGINT:
        os.write(2, b"interrupted\n")
    os._exit(128 + number)
