"""Step maps as engines and trainers write them become trajectories, and trajectories become step maps."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyorder.cli import main
from anyorder.decoding.step_maps import read_step_maps, write_step_maps
from anyorder.decoding.trajectory import Trajectory, read_trajectories
from anyorder.errors import InputError
from tests.models.checkpoints import VOCABULARY, tokenizer

LMDEPLOY = {"text": "a b c", "token_ids": [7, 8, 9], "step_map": [2, 1, 2]}
JETENGINE = {"text": "a b c", "token_ids": [7, 8, 9], "first_unmask_times": [2, 1, 2]}
SGLANG = {
    "text": "...", "output_ids": [3, 4, 5, 6, 7],
    "meta_info": {"prompt_tokens": 7, "step_maps": [1, 2, 1, 1, 2], "finish_reason": {"type": "stop"}},
}  # fmt: skip
TRACERL = [
    {"prompt": "p", "response": "w1 w2 w3", "step_map": [2, 0, 1, 3, 4], "reward": 1.0},
    {"prompt": "q", "full_output": ["w4 w5", "w6"], "step_map": [[1, 0, 2], [0, 1, 2]], "extracted_output": ["", ""]},
]


def write(folder: Path, *records: object) -> Path:
    (folder / "maps.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return folder / "maps.jsonl"


@pytest.mark.parametrize("record", [LMDEPLOY, JETENGINE], ids=["lmdeploy", "jetengine"])
def test_steps_from_one_through_the_response(tmp_path: Path, record: object) -> None:
    [ours] = read_trajectories(write(tmp_path, record))
    assert (ours.tokens, ours.steps, ours.text, ours.canvas) == (["7", "8", "9"], [2, 1, 2], "a b c", None)
    [named] = read_step_maps(write(tmp_path, record), tokenizer())
    assert named.tokens == [VOCABULARY[number] for number in (7, 8, 9)]


def test_steps_from_one_in_every_block(tmp_path: Path) -> None:
    file = write(tmp_path, SGLANG)
    assert [one.steps for one in read_step_maps(file)] == [[1, 2, 1, 1, 2]]
    # Seven tokens of prompt: of a block of 4, one is left for the response.
    assert [one.steps for one in read_step_maps(file, block_size=4)] == [[1, 3, 2, 2, 3]]
    without_prompt = {**SGLANG, "meta_info": {"step_maps": [1, 2, 1, 1, 2]}}
    assert [one.steps for one in read_step_maps(write(tmp_path, without_prompt), block_size=2)] == [[1, 2, 3, 3, 5]]


def test_steps_from_zero_without_tokens(tmp_path: Path) -> None:
    file = tmp_path / "rl_data.json"
    file.write_text(json.dumps(TRACERL, indent=2))
    found = read_step_maps(file, tokenizer())
    assert [(one.source, one.tokens, one.steps) for one in found] == [
        ("p", ["w1", "w2", "w3"], [3, 1, 2]),
        ("q", ["w4", "w5"], [2, 1]),
        ("q", ["w6"], [1]),
    ]
    with pytest.raises(InputError, match="object 1: has no tokens; read it with anyorder.read_step_maps"):
        list(read_trajectories(file))


STEPS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@given(steps=STEPS, given_at=st.sets(st.integers(0, 11)))
def test_what_is_written_comes_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], given_at: set[int]
) -> None:
    tokens = [f"t{i}" for i in range(len(steps))]
    left = [None, *(tokens[i] if i in given_at else None for i in range(1, len(steps)))]
    filled = [i for i, token in enumerate(left) if token is None]
    ours = Trajectory(
        "a prompt", "t0 ...", [tokens[i] for i in filled], [steps[i] for i in filled], [], "margin", len(filled), "",
        canvas=["a", "prompt", *left],
    )  # fmt: skip
    file = tmp_path_factory.mktemp("maps") / "maps.json"
    write_step_maps(file, [ours, ours])
    assert json.loads(file.read_text())[0]["step_map"] == [-1 if token else steps[i] for i, token in enumerate(left)]
    for back in read_trajectories(file):
        assert (back.source, back.text, back.tokens, back.steps) == (ours.source, ours.text, ours.tokens, ours.steps)
        assert back.positions == filled


def test_a_completion_ends_where_it_ends(tmp_path: Path) -> None:
    ours = Trajectory(
        "a", "a b", ["b", "</s>", "x"], [2, 1, 3], [], "margin", 3, "",
        canvas=["a", None, None, None], completion=" b", completion_length=1,
    )  # fmt: skip
    write_step_maps(tmp_path / "maps.json", [ours])
    assert json.loads((tmp_path / "maps.json").read_text()) == [
        {"prompt": "a", "response": " b", "tokens": ["b"], "step_map": [2]}
    ]


def test_analyze_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, LMDEPLOY, {**LMDEPLOY, "step_map": [1, 2, 3]})
    assert main(["analyze", str(file), "--tagger", "none", "--samples", "20", "--null-samples", "2"]) == 0
    assert "maps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"step_map": [1, 2]}, "line 1: has no tokens"),
        ({"tokens": ["a", "b"], "step_map": [1]}, "line 1: 2 tokens but 1 steps"),
        ({"tokens": ["a"], "step_map": [-2]}, "line 1: step_map: .*expected a whole number >= -1"),
        ({"tokens": ["a"], "step_map": "1"}, 'line 1: step_map: "1", expected a list'),
        ({"tokens": [1], "step_map": [1]}, r"line 1: tokens: \[1\], \[0\]: expected text"),
        ({"full_output": ["a"], "step_map": [1]}, r"line 1: step_map: \[1\], \[0\]: expected a list"),
        ({"full_output": ["a", "b"], "step_map": [[1]]}, "line 1: 2 outputs but 1 step maps"),
    ],
)
def test_wrong_records_are_named(tmp_path: Path, record: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_trajectories(write(tmp_path, record)))


def test_not_an_array(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1,\n2")
    with pytest.raises(InputError, match="a.json: "):
        read_step_maps(tmp_path / "a.json")
    with pytest.raises(InputError, match="block_size"):
        read_step_maps(tmp_path / "a.json", block_size=0)
