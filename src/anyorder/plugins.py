"""Plugins: a user's own Python files, which register orders, rewards, tasks and more when they are run.

    import anyorder

    @anyorder.register_order("middle-out")
    def middle_out(state):
        middle = (state.lengths.unsqueeze(1) - 1) / 2
        return -(state.positions - middle).abs()

Knows nothing about what they register.
"""

import hashlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from anyorder.errors import InputError

_LOADED: dict[Path, ModuleType] = {}


def load_plugin(path: str | Path) -> ModuleType:
    """Run a Python file, once per process, so that what it registers is known by name.

    It may import modules from its own folder. An `InputError` names the line at which it failed.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected a Python file")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    file = path.resolve()
    if file in _LOADED:
        return _LOADED[file]
    module = ModuleType(f"anyorder_plugin_{len(_LOADED)}_{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses and pickle look it up there
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        # Compiled here instead of imported, so that nothing is written next to the user's file.
        exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise _describe(error, path, str(file)) from error
    _LOADED[file] = module
    return module


def loaded_plugins() -> dict[str, str]:
    """The files that were run, in order, and a hash of what is in each."""
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in _LOADED}


def plugin_error(error: Exception) -> InputError | None:
    """What went wrong in a function that a plugin registered; None if no plugin was involved."""
    for file in _LOADED:
        if _line_of(error, str(file)):
            return _describe(error, file, str(file))
    return None


def _describe(error: BaseException, path: Path, file: str) -> InputError:
    message = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return InputError(f"{path}{_line_of(error, file)}: {type(error).__name__}: {message}".removesuffix(": "))


def _line_of(error: BaseException, file: str) -> str:
    """`, line 3`: where in the file the error was raised, or the call that raised it."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f", line {lines[-1]}" if lines else ""
