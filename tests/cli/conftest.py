"""What the tests of the command line share: a tiny model with a test set, and commands that are refused."""

import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from anyorder.cli import main
from anyorder.data.vocabulary import Vocabulary
from tests.conftest import tiny, toy_pairs, write_pairs

PAIRS = toy_pairs(9, seed=5)
Refused = Callable[..., None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, vocabulary: Vocabulary) -> Path:
    """A model and a small test set."""
    folder = tmp_path_factory.mktemp("cli")
    tiny(vocabulary).save_pretrained(folder / "model")
    write_pairs(folder, "test", PAIRS)
    write_pairs(folder, "blank", [(" ", " ")] * 3)
    (folder / "test.de.xz").write_bytes(lzma.compress((folder / "test.de").read_bytes()))
    return folder


@pytest.fixture
def basic(folder: Path) -> list[str]:
    """The model as options."""
    return ["--model", str(folder / "model"), "--direction", "de-en", "--device", "cpu"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where everything is written."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], place: Path) -> Refused:
    """Run a command: it must exit with 2 and one line that contains this text, and write nothing."""

    def check(expected: str, *arguments: object) -> None:
        capsys.readouterr()
        assert run(*arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("anyorder")
        assert expected in error
        assert "unrecognized" not in error or "unrecognized" in expected
        assert error.count("\n") == 1
        assert list(place.iterdir()) == []

    return check


def run(*arguments: object) -> int:
    """The exit code of a command."""
    return main([str(argument) for argument in arguments])
