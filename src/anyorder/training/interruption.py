"""What ends a run before its work is done: Ctrl-C, SIGTERM, and the end of its time. Knows nothing about training.

    with interrupter.listening():
        try:
            with interrupter.interruptible():
                ...  # may take long, and changes nothing that matters
        except Interruption:
            interrupter.close()
        ...  # is never interrupted; `stop_asked` says whether it was a signal

A signal's handler runs between two operations of Python, also inside a forward pass, so a block ends within the time
of one operation. Outside of such blocks, a signal waits for the next block.
"""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

REPEAT_SECONDS = 1.0
"""An exception that some library has swallowed is raised again after this time."""


class Interruption(BaseException):
    """The run must end. Not an `Exception`, so that nothing on the way handles it."""


class Interrupter:
    """Raises an `Interruption` in `interruptible` blocks. Only the main thread receives signals: elsewhere, nothing
    does."""

    def __init__(self) -> None:
        self.stop_asked = False
        """A signal to stop was received."""
        self._is_open = self._is_listening = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Receive signals. A second Ctrl-C ends the process at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {signal.SIGINT: self._ask, signal.SIGTERM: self._ask, signal.SIGALRM: self._alarm}
        (delay, interval), began = signal.getitimer(signal.ITIMER_REAL), time.monotonic()
        previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        unraisable, self._is_listening = sys.unraisablehook, True
        sys.unraisablehook = lambda found: None if isinstance(found.exc_value, Interruption) else unraisable(found)
        try:
            yield
        finally:
            self.close()
            self._is_listening = False
            sys.unraisablehook = unraisable
            for number, handler in previous.items():
                signal.signal(number, handler)
            if delay:  # the caller's own alarm
                signal.setitimer(signal.ITIMER_REAL, max(0.001, delay - (time.monotonic() - began)), interval)

    @contextmanager
    def interruptible(self, seconds: float | None = None) -> Iterator[None]:
        """A block that a signal ends, or the end of the time. seconds: until then, if it is limited."""
        try:
            self._is_open = True
            if self.stop_asked:  # since the last block
                raise Interruption
            if self._is_listening and seconds is not None:
                signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds), REPEAT_SECONDS)
            yield
        finally:
            self.close()

    def close(self) -> None:
        """Raise nothing from now on. Whoever handles an `Interruption` calls it: it may have been raised just when its
        block was ending."""
        self._is_open = False
        if self._is_listening:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _ask(self, number: int, frame: object) -> None:
        self.stop_asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._is_open:
            signal.setitimer(signal.ITIMER_REAL, REPEAT_SECONDS, REPEAT_SECONDS)
            raise Interruption

    def _alarm(self, number: int, frame: object) -> None:
        if self._is_open:
            raise Interruption
