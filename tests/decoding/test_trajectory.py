import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from anyorder.decoding.trajectory import (
    Trajectory,
    Write,
    read_trajectories,
    to_dataframe,
    write_trajectories,
)
from anyorder.errors import InputError
from anyorder.report.terminal import runs, trace
from tests.analysis.paper import TEARGAS


def teargas() -> Trajectory:
    """The paper's first example, steps read off its table."""
    tokens, steps = TEARGAS
    return Trajectory("...", " ".join(tokens), tokens, steps, [-0.1] * 20, "learned", 20, "s")


@pytest.mark.parametrize(
    ("step", "printed"),
    [
        (4, "[There are no reports]" + " __" * 16),
        (6, "[There are no reports]" + " __" * 14 + " {gas .}"),
        (8, "[There are no reports] of" + " __" * 12 + " tear {gas .}"),
        (17, "[There are no reports] of [any injuries] {, but} some __ __ __ {after the use of} tear {gas .}"),
        (
            20,
            "[There are no reports] of [any injuries] {, but} some [people are crying] {after the use of} tear {gas .}",
        ),
    ],
)
def test_the_papers_example_is_printed_as_in_the_paper(step: int, printed: str) -> None:
    assert trace(teargas())[step - 1].split(maxsplit=1) == [str(step), printed]


def test_every_write_of_a_revised_sentence_is_printed() -> None:
    writes = [(0, 1, "a"), (1, 1, "big"), (3, 2, "."), (1, 3, "tall"), (2, 3, "tree"), (0, 4, "a")]
    trajectory = Trajectory(
        "", "a tall tree .", ["a", "tall", "tree", "."], [4, 3, 3, 2], [], "margin", 4, "s",
        writes=[Write(*write, -0.5) for write in writes],
    )  # fmt: skip
    assert trace(trajectory) == [
        "1  a big __ __",
        "2  a big __ .",
        "3  a big->tall {tree .}",
        "4  {a tall} {tree .}",
    ]


def test_writes_beside_given_tokens_are_printed() -> None:
    trajectory = Trajectory(
        "", "the cat sat up", ["cat", "up"], [3, 2], [], "margin", 2, "s", canvas=["the", None, "sat", None],
        writes=[Write(1, 1, "dog", -0.5), Write(3, 2, "up", -0.5), Write(1, 3, "cat", -0.5)],
    )  # fmt: skip
    assert trace(trajectory) == ["1  the dog sat __", "2  the dog sat up", "3  the dog->cat sat up"]


def test_runs() -> None:
    assert runs([]) == []
    assert runs([1]) == []
    assert runs([1, 2, 3]) == [(0, 2, 1)]
    assert runs([3, 1, 2]) == [(1, 2, 1)]
    assert runs([2, 1, 3, 4]) == [(0, 1, -1), (2, 3, 1)]
    assert runs([1, 1, 2, 2]) == [(1, 2, 1)]


def test_json_there_and_back() -> None:
    assert Trajectory.from_json(teargas().to_json()) == teargas()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "not JSON"),
        ("[]", "expected an object, got a list"),
        ("{}", "has no tokens"),
        (f'{{"tokens": ["a"], "steps": [1], "logprobs": [{10**400}]}}', "out of range"),
        ('{"source": ""}', "has no tokens"),
        (teargas().to_json().replace("[1, ", "["), "20 tokens but 19 steps"),
    ],
)
def test_not_a_trajectory(line: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Trajectory.from_json(line)


def test_permutation() -> None:
    assert teargas().permutation[:6] == [0, 1, 2, 3, 19, 18]


def test_a_canvas_that_was_partly_given() -> None:
    canvas = ["The", None, "sat", None, "."]
    trajectory = Trajectory("", "The cat sat down .", ["cat", "down"], [2, 1], [], "margin", 2, "s", canvas=canvas)
    record = json.loads(trajectory.to_json())
    assert record["positions"] == [1, 3]
    assert Trajectory.from_json(trajectory.to_json()) == trajectory
    with pytest.raises(InputError, match="2 positions of the canvas are masked but there are 1 tokens"):
        Trajectory.from_json(json.dumps({**record, "tokens": ["cat"], "steps": [1]}))


def test_writes_there_and_back() -> None:
    writes = [Write(0, 1, "a", -0.5), Write(0, 2, "b", -0.25)]
    trajectory = Trajectory("", "b", ["b"], [2], [-0.25], "margin", 1, "s", writes=writes)
    assert Trajectory.from_json(trajectory.to_json()) == trajectory
    for wrong in ("[[0, 1]]", '[[-1, 1, "a", 0]]', '[[0, 0, "a", 0]]', "[[0, 1, 2, 0]]", '[[0, 1, "a", NaN]]', "3"):
        with pytest.raises(InputError, match="writes|not JSON"):
            Trajectory.from_json(f'{{"tokens": ["b"], "steps": [2], "writes": {wrong}}}')


def test_files_of_the_first_version_still_load() -> None:
    line = (
        '{"source": "a", "text": "b", "tokens": ["b"], "steps": [1], "logprobs": [-0.1], "order": "margin", "length": 1,'
        ' "signature": "order:margin|budget:one|beam:1|length:gold|seed:1|version:anyorder.0.1.0"}'
    )
    trajectory = Trajectory.from_json(line)
    assert (trajectory.source, trajectory.order, trajectory.model, trajectory.task) == ("a", "margin", "", "")


def test_files_are_written_whole_and_read_back(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.xz"):
        write_trajectories(tmp_path / name, [teargas(), teargas()])
        assert list(read_trajectories(tmp_path / name)) == [teargas(), teargas()]
    with pytest.raises(BrokenPipeError):
        write_trajectories(tmp_path / "b.jsonl", _one_and_fail())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.jsonl", "a.jsonl.gz", "a.jsonl.xz"]


def _one_and_fail() -> Iterator[Trajectory]:
    yield teargas()
    raise BrokenPipeError


def test_a_dictionary_is_what_is_written() -> None:
    trajectory = Trajectory("a", "b <c>", ["b", "<c>"], [2, 1], [-0.5, -1.5], "margin", 2, "")
    assert json.loads(trajectory.to_json()) == trajectory.to_dict()
    assert trajectory.to_dict()["steps"] == [2, 1]


def test_notebooks_show_tokens_and_steps() -> None:
    filled = Trajectory(
        "[MASK] x [MASK]", "b x <c>", ["b", "<c>"], [2, 1], [], "a & b", 2, "", canvas=[None, "x", None]
    )
    shown = filled._repr_html_()
    assert re.findall(r">([^<> ]+)<br><small>(\d*)", shown) == [("b", "2"), ("x", ""), ("&lt;c&gt;", "1")]
    assert "a &amp; b" in shown
    assert Trajectory("", "", [], [], [], "", 0, "")._repr_html_().startswith("<div>")


def test_a_table_of_trajectories(monkeypatch: pytest.MonkeyPatch) -> None:
    trajectory = Trajectory("a", "b", ["b"], [1], [-0.5], "margin", 1, "")
    made = SimpleNamespace(DataFrame=list)
    monkeypatch.setitem(sys.modules, "pandas", made)
    [row] = list(to_dataframe([trajectory]))
    assert (row["text"], row["forwards"], row["mean_logprob"]) == ("b", 1, -0.5)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="tables need pandas"):
        to_dataframe([trajectory])
