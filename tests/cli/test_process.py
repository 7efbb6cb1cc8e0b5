"""The command as a process: signals, closed and full streams, encodings, several processes, exit codes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anyorder.cli import main
from anyorder.decoding.trajectory import read_trajectories
from tests.cli.conftest import PAIRS, run
from tests.conftest import run_cli
from tests.processes import Fork


def test_output_that_nobody_takes(folder: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "anyorder", "orders"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert done.stderr == "anyorder orders: No space left on device\n"
    shell = f"set -o pipefail; {sys.executable} -m anyorder orders | true"
    gone = subprocess.run(["bash", "-c", shell], stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert (gone.returncode, gone.stderr) == (141, "")


def _command(*arguments: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a shell, with redirections that Python cannot express."""
    line = " ".join([f"{sys.executable} -m anyorder", *arguments])
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(["bash", "-c", before + line], capture_output=True, text=True, env=variables, check=False)


def test_arguments_in_another_encoding(folder: Path) -> None:
    common = ["translate", "--model", str(folder / "model"), "--direction", "de-en", "--device", "cpu"]
    latin = _command(*common, r"$'Die T\xfcr'")
    assert (latin.returncode, latin.stderr) == (2, "anyorder translate: 'Die T\\xfcr' is not valid UTF-8\n")
    posix = _command(*common, "'Die Tür'", LC_ALL="POSIX", PYTHONUTF8="0")
    assert posix.returncode == 2
    assert posix.stderr.startswith("anyorder translate: 'Die T\\xfcr' cannot be read in this locale's encoding, ascii;")
    assert posix.stderr.count("\n") == 1


def test_text_that_the_encoding_of_the_output_lacks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What was decoded until then is in the JSON file all the same, the line itself included."""
    source, out = tmp_path / "text.de", tmp_path / "out.jsonl"
    source.write_text("\u732b\n" * 2, encoding="utf-8")
    monkeypatch.setattr("anyorder.cli.lines._print", lambda *args: "\u732b".encode("ascii"))
    command = [
        "translate",
        "--model",
        folder / "model",
        "--direction",
        "de-en",
        "--device",
        "cpu",
        "--json",
        out,
        source,
    ]
    assert main([str(part) for part in command]) == 2
    assert "text cannot be written in this locale's encoding, ascii" in capfd.readouterr().err
    assert [one.source for one in read_trajectories(out)] == ["\u732b"]


def test_closed_streams(folder: Path) -> None:
    common = ["translate", "--model", str(folder / "model"), "--direction", "de-en", "--device", "cpu"]
    no_input = _command(*common, "<&-")
    assert no_input.returncode == 2
    assert no_input.stderr == "anyorder translate: standard input is closed: give a sentence or a file\n"
    no_output = _command("orders", ">&-")
    assert (no_output.returncode, no_output.stderr) == (0, "")
    assert _command("--help", "2>&-").returncode == 0


@pytest.mark.parametrize("module", ["anyorder.cli.orders", "rich.table"])
def test_interrupted_while_it_imports(module: str, tmp_path: Path) -> None:
    """Ctrl-C while a module of the verb is imported."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.abc, os, signal, sys\n"
        "class Interrupt(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    interrupted = _command("orders", PYTHONPATH=str(tmp_path))
    assert (interrupted.returncode, interrupted.stdout, interrupted.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(("number", "code", "line"), [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, "")])
def test_a_signal_that_a_library_makes_an_error_of(
    number: signal.Signals, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def orders() -> None:
        try:
            os.kill(os.getpid(), number)
        except BaseException:
            raise ValueError("damaged") from None

    monkeypatch.setattr("anyorder.cli.orders.orders", orders)
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    assert run("orders") == code
    assert capsys.readouterr().err == line
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_help_that_cannot_be_printed() -> None:
    command = [sys.executable, "-m", "anyorder", "orders", "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode in (0, 2)  # argparse may not tell
    assert done.stderr.count("\n") <= 1


def test_a_name_cannot_break_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a\nb\x1b[2J") == 2
    assert capsys.readouterr().err.startswith("anyorder: unknown verb 'a b [2J'")


def test_a_terminated_translation_leaves_nothing(folder: Path, place: Path) -> None:
    common = ["--model", folder / "model", "--direction", "de-en", "--device", "cpu", "--json", place / "out.jsonl"]
    process = subprocess.Popen(
        [sys.executable, "-m", "anyorder", "translate", *map(str, common)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    while not list(place.iterdir()):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (143, b"")
    assert list(place.iterdir()) == []


def test_a_device_is_written_not_replaced(folder: Path) -> None:
    common = ["--model", folder / "model", "--direction", "de-en", "--device", "cpu", "--json", "/dev/stdout"]
    done = run_cli("translate", *common, "Hund")
    assert done.returncode == 0, done.stderr
    assert '"source": "Hund"' in done.stdout
    assert Path("/dev/stdout").is_symlink()


def test_what_was_decoded_stays_when_nobody_reads_on(folder: Path, basic: list[str]) -> None:
    out = folder / "kept.jsonl"
    arguments = ["translate", *basic, "--json", out, folder / "test.de"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "anyorder", *map(str, arguments)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 141
    assert [one.source for one in read_trajectories(out)] == [PAIRS[0][0]]  # it ends at the first line nobody reads


def test_exit_codes_of_the_real_command(folder: Path, basic: list[str]) -> None:
    wrong_verb = run_cli("translat", *basic, "hallo")
    assert (wrong_verb.returncode, wrong_verb.stdout) == (2, "")
    assert "Traceback" not in wrong_verb.stderr
    wrong_order = Fork("translate", *basic, "--order", "x", "hallo").wait()
    assert (wrong_order.returncode, wrong_order.stdout) == (2, "")
    assert "Traceback" not in wrong_order.stderr
    piped = run_cli("translate", *basic, stdin=f"{PAIRS[0][0]}\n")
    assert piped.returncode == 0
    assert len(piped.stdout.splitlines()) == 1


def test_idle_threads_leave_their_core_to_others(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("import os; print(os.environ['OMP_WAIT_POLICY'])")
    for given, expected in ((None, "passive"), ("active", "active")):
        environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
        environment |= {} if given is None else {"OMP_WAIT_POLICY": given}
        command = [sys.executable, "-m", "anyorder", "orders", "--plugin", str(tmp_path / "show.py")]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert run.stdout.splitlines()[0] == expected
