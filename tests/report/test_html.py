"""The report file: what is embedded, what is escaped, how large it is."""

import base64
import gzip
import hashlib
import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from anyorder.decoding.trajectory import Trajectory, Write
from anyorder.errors import InputError
from anyorder.evaluation.puzzles import grid_task
from anyorder.report.html import mean_steps, pack, pack_grid, report_page, write_html
from tests.report.conftest import make_analysis, make_answers, make_systems, revised, trajectory

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class Tags(HTMLParser):
    """Elements and their attributes, as a browser sees them, and the text inside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": [], "title": [], "h1": []}
        self.open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open = tag
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open in self.inside:
            self.inside[self.open][-1] += data


def embedded(text: str) -> dict[str, Any]:
    match = re.search(r'id="data">([^<]*)</script>', text)
    assert match
    return json.loads(gzip.decompress(base64.b64decode(match[1])))


def test_runs_can_be_read_back() -> None:
    systems = make_systems(20)
    data = embedded(report_page(systems, None, [f"reference {i}" for i in range(20)]))
    assert [system["name"] for system in data["systems"]] == list(systems)
    assert data["references"][3] == "reference 3"
    for i, (source, runs) in enumerate(data["sentences"]):
        for name, (text, tokens, steps, logprobs) in zip(systems, runs, strict=True):
            run = systems[name][i]
            assert (source, text, steps) == (run.source, run.text, run.steps)
            assert [data["vocabulary"][token] for token in tokens] == run.tokens
            assert [-p / 100 for p in logprobs] == pytest.approx(run.logprobs, abs=0.0051)


def test_writes_of_revised_positions_can_be_read_back() -> None:
    given = ["x", None, "y", None]
    puzzle = replace(
        revised(), canvas=given, writes=[Write(1, 1, "old", -1), Write(3, 1, "b", -1), Write(1, 2, "new", 0)]
    )
    data = embedded(report_page({"a": [revised()], "b": [puzzle]}))
    for run, canvas, expected in zip(data["sentences"][0][1], (None, given), (revised(), puzzle), strict=True):
        *_, packed, writes = run
        assert (packed and [None if token is None else data["vocabulary"][token] for token in packed]) == canvas
        assert expected.writes is not None
        assert [(p, s, data["vocabulary"][t], -q / 100) for p, s, t, q in writes] == [
            (one.position, one.step, one.token, one.logprob) for one in expected.writes
        ]


@pytest.mark.parametrize(
    "writes",
    [
        None,
        [],
        [Write(0, 2, "new", 0), Write(1, 1, "b", 0)],  # each position once
        [Write(7, 1, "old", 0), Write(0, 2, "new", 0), Write(1, 1, "b", 0)],  # outside of the sentence
        [Write(0, 2, "new", 0), Write(1, 1, "b", 0), Write(0, 9, "old", 0)],  # after the last step
        [Write(0, 1, "new", 0), Write(1, 1, "b", 0), Write(0, 2, "other", 0)],  # does not end in the tokens
    ],
)
def test_writes_that_show_no_revision_are_left_out(writes: list[Write] | None) -> None:
    assert len(pack({"x": [replace(revised(), writes=writes)]})["sentences"][0][1][0]) == 4


def test_frequent_tokens_have_small_numbers() -> None:
    runs = [trajectory("s", ["b", "a", "a"], [1, 2, 3]), trajectory("t", ["a", "c", "b"], [1, 2, 3])]
    assert pack({"x": runs})["vocabulary"] == ["a", "b", "c"]


def test_nan_becomes_null_and_infinity_an_unlikely_token() -> None:
    run = trajectory("s", ["a", "b"], [1, 2])
    run.logprobs[0] = float("-inf")
    data = embedded(report_page({"x": [run]}, {"systems": [{"figures": {"f": {"value": float("nan"), "low": 1 / 3}}}]}))
    assert data["analysis"]["systems"][0]["figures"]["f"] == {"value": None, "low": 0.33333}
    assert data["sentences"][0][1][0][3] == [9999, 20]


def test_nothing_in_the_data_becomes_an_element() -> None:
    clean = Tags(report_page(make_systems(1, 1), None, ["r"], "title")).tags
    run = trajectory(EVIL, [EVIL, "{{script}}"], [1, 2], order=EVIL)
    dirty = Tags(report_page({EVIL: [run]}, {"systems": [{"name": EVIL}]}, [EVIL], EVIL))
    assert [tag for tag, _ in dirty.tags] == [tag for tag, _ in clean]
    assert dirty.inside["title"] == dirty.inside["h1"] == [EVIL]


def test_placeholders_in_a_title_are_text() -> None:
    assert Tags(report_page(make_systems(1, 1), title="{{data}} \\1 {{style}}")).inside["title"] == [
        "{{data}} \\1 {{style}}"
    ]


def test_only_this_style_and_this_script_may_run() -> None:
    tags = Tags(report_page(make_systems(2)))
    policy = next(attrs["content"] for tag, attrs in tags.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy
    directives = dict(directive.split(" ", 1) for directive in policy.split("; "))

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == digest(tags.inside["script"][1])
    assert directives["style-src"] == digest(tags.inside["style"][0])
    assert "connect-src" not in directives
    assert "unsafe" not in policy


def test_nothing_is_fetched() -> None:
    text = report_page(make_systems(2), make_analysis(make_systems(2)))
    assert set(re.findall(r"https?://[^\s\"'<>]*", text)) == {"http://www.w3.org/2000/svg"}
    links = [attrs.get("src") or attrs.get("href") for _, attrs in Tags(text).tags]
    assert {link for link in links if link} == {"data:,"}


def test_systems_must_have_the_same_sentences() -> None:
    known, unknown = [trajectory("one", ["x"], [1])], [trajectory("", ["x"], [1])]
    with pytest.raises(InputError, match="a and b translate different sentences in line 1"):
        pack({"a": known, "b": [trajectory("two", ["x"], [1])]})
    assert pack({"a": unknown, "b": known})["sentences"][0][0] == "one"


def test_the_same_input_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write_html(tmp_path / name, make_systems(5), make_analysis(make_systems(5)))
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_tenth_of_a_large_report_takes_a_tenth_of_what_is_allowed() -> None:
    systems = make_systems(300, 6)
    analysis = make_analysis(systems)
    start = time.perf_counter()
    text = report_page(systems, analysis)
    assert time.perf_counter() - start < 6
    assert len(text) < 1e6


def test_which_answers_are_right_and_when_cells_are_filled() -> None:
    systems, solutions = make_answers(3)
    grid = pack_grid(systems)
    assert grid is not None
    assert (grid["columns"], grid["rows"], grid["box"]) == (4, 4, 2)
    assert grid["solved"] == [[True] * 3, [False] * 3]
    assert not grid["has_solutions"]
    # Clues are the cells 1, 2 and 3: cell 2 is filled at the steps 2 and 3, the last cell always at the end.
    assert grid["mean_steps"][0][:4] == pytest.approx([1, 2, 2.5, 3])
    assert grid["mean_steps"][0][15] == 15
    assert grid["mean_steps"][1][15] == 1
    assert pack_grid(systems, solutions) == {**grid, "has_solutions": True}


def test_solutions_that_are_none_are_not_used() -> None:
    systems, solutions = make_answers(2)
    for references in (["1234", solutions[0]], ["0" * 16, solutions[0]], ["no", "grid"]):
        grid = pack_grid(systems, references)
        assert grid is not None
        assert not grid["has_solutions"]


def test_a_cell_that_was_always_given_has_no_step() -> None:
    run = Trajectory("", "", ["a", "b"], [2, 1], [], "o", 2, "", canvas=["x", None, None])
    assert mean_steps([run, run], 3) == [None, 2, 1]


def test_only_one_puzzle_task_is_a_grid() -> None:
    systems, _ = make_answers(2)
    assert grid_task(make_systems(2)) is None
    two_tasks = {**systems, "other": [replace(run, task="sudoku-9x9") for run in systems["right"]]}
    assert grid_task(two_tasks) is None
    small = {"x": two_tasks["other"]}
    assert grid_task(small) is None
    assert pack(make_systems(2))["grid"] is None


def test_lines_that_are_not_puzzles_are_left_out() -> None:
    systems, solutions = make_answers(2)
    text = Trajectory("12", "12", [], [], [], "margin", 0, "", task="infill", canvas=["1", "2"])
    mixed = {name: [text, *runs] for name, runs in systems.items()}
    assert pack(mixed, references=["12", *solutions]) == {
        **pack(systems, references=solutions),
        "systems": [{"name": name, "order": runs[0].order, "signature": ""} for name, runs in systems.items()],
    }


def test_the_canvas_travels_with_the_run() -> None:
    systems, _ = make_answers(1)
    data = pack(systems)
    *_, canvas = data["sentences"][0][1][0]
    assert [None if token is None else data["vocabulary"][token] for token in canvas] == systems["right"][0].canvas
