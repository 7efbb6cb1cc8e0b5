"""The API for models without a source: texts with masks, and puzzles."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the explorer needs the extra 'app'")

from fastapi.testclient import TestClient

import anyorder
from anyorder.app.schemas import DecodeQuery
from anyorder.app.served_model import ServedModel
from anyorder.app.server import create_app
from anyorder.decoder import Decoder
from anyorder.errors import InputError
from anyorder.report.html import pack_grid
from anyorder.tasks import TASKS, Examples, make_task
from anyorder.tasks.puzzles import EncoderConfig, new_encoder, save_encoder
from tests.app.servers import MASKED, PUZZLES
from tests.models import checkpoints

TEXT = "w1 [MASK] w3 [MASK] [MASK] w7"
PUZZLE, SOLUTION = "0000034010030000", "4132234114233214"
EMPTY = [i for i, cell in enumerate(PUZZLE) if cell == "0"]


@pytest.fixture(scope="module")
def client(folder: Path, masked_folder: Path) -> Iterator[TestClient]:
    models = [str(folder), f"hf:{masked_folder}", PUZZLES]
    with TestClient(create_app(models, device="cpu"), base_url="http://localhost:8600") as client:
        yield client


@pytest.fixture(scope="module")
def decoder(masked_folder: Path) -> Decoder:
    return anyorder.load(masked_folder, device="cpu")


def post(client: TestClient, verb: str, **query: object) -> Any:
    return client.post(f"/api/{verb}", json={name: value for name, value in query.items() if value is not ...})


def infill(client: TestClient, **changes: object) -> Any:
    return post(client, "decode", **{"model": MASKED, "text": TEXT, "orders": ["margin"], **changes})


def solve(client: TestClient, **changes: object) -> Any:
    return post(client, "decode", **{"model": PUZZLES, "text": PUZZLE, "orders": ["margin"], **changes})


def fill(client: TestClient, model: str, text: str, *positions: int, **changes: object) -> Any:
    filled = [{"position": position} for position in positions]
    return post(client, "step", **{"model": model, "text": text, "order": "margin", "filled": filled, **changes})


def on_canvas(run: dict[str, Any], name: str) -> list[Any]:
    """Values of the filled positions, None where the token was given."""
    values = dict(zip(run["positions"], run[name], strict=True))
    return [values.get(i) for i in range(len(run["canvas"]))]


def test_models_say_what_they_do(client: TestClient) -> None:
    translation, masked, puzzles = client.get("/api/models").json()["models"]
    assert [translation["kind"], masked["kind"], puzzles["kind"]] == ["translation", "infill", "puzzle"]
    assert masked["name"] == MASKED  # neither its path nor hf:
    assert masked["orders"]["infill"][0] == "learned"
    assert [list(info["orders"]) for info in (masked, puzzles)] == [["infill"], [PUZZLES]]
    assert masked["lengths"] == puzzles["lengths"] == []
    assert translation["grid"] is masked["grid"] is None
    assert puzzles["grid"] == {"columns": 4, "rows": 4, "box": 2, "symbols": ["1", "2", "3", "4"]}
    assert puzzles["longest"] == 16


@pytest.mark.parametrize("schedule", ["one", 2, "threshold:0.1"])
def test_infilling_is_the_library_s(client: TestClient, decoder: Decoder, schedule: str | int) -> None:
    orders = ["learned", "margin", "right-to-left", "uniform", "outer-in:stride=2"]
    runs = infill(client, orders=orders, schedule=schedule).json()["runs"]
    assert [run["order"] for run in runs] == orders
    for run in runs:
        [trajectory] = decoder.fill(TEXT, run["order"], schedule=schedule)
        assert [run.pop(name) for name in ("bleu", "solved", "wrong")] == [None] * 3
        assert run == {name: getattr(trajectory, name) for name in run}
    assert runs[0]["canvas"] == ["w1", None, "w3", None, None, "w7"]
    assert runs[0]["positions"] == [1, 3, 4]


def test_revisions_are_the_library_s(client: TestClient, decoder: Decoder) -> None:
    [run] = infill(client, revision="mask-predict:3").json()["runs"]
    [trajectory] = decoder.fill(TEXT, "margin", revision="mask-predict:3")
    assert (run["tokens"], run["steps"], run["signature"]) == (
        trajectory.tokens,
        trajectory.steps,
        trajectory.signature,
    )
    assert [write["position"] for write in run["writes"][:3]] == [1, 3, 4]  # on the canvas, as `positions`
    [answer] = solve(client, revision="gibbs", reference=SOLUTION).json()["runs"]
    assert len(answer["writes"]) == 2 * len(EMPTY)
    assert {write["position"] for write in answer["writes"]} == set(EMPTY)


def test_schedules_fit_the_kind_of_model(client: TestClient) -> None:
    for info, size in zip(client.get("/api/models").json()["models"], (8, 4, 8), strict=True):
        names = [choice["name"] for choice in info["schedules"]]
        assert {f"steps:{size}", f"cosine:{size}", f"blocks:{size}", f"blocks:{size}+threshold:0.7"} < set(names)
        for name in names:
            assert post(client, "check", model=info["name"], schedule=name).status_code == 200


def test_a_block_causal_model_is_filled_in_its_blocks_by_default(tmp_path: Path) -> None:
    checkpoints.save("Qwen3ForCausalLM", tmp_path / "blocks")
    config = tmp_path / "blocks" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "block_size": 2}))
    model = str(tmp_path / "blocks")
    with TestClient(create_app([model], device="cpu"), base_url="http://localhost:8600") as client:
        [info] = client.get("/api/models").json()["models"]
        assert [choice["name"] for choice in info["schedules"][:2]] == ["blocks:2", "one"]
        usual = {choice["name"]: choice["usual_schedule"] for choice in info["revisions"]}
        assert usual == {"none": "blocks:2", "mask-predict:4": "steps:1", "p2:4": "steps:1", "gibbs": "one"}
        assert (
            post(client, "check", model="blocks", schedule="auto")
            .json()["schedule"]
            .startswith("Blocks of b positions")
        )
        [run] = infill(client, model="blocks", orders=["right-to-left"]).json()["runs"]
        assert "|schedule:blocks:2|" in run["signature"]
    served = ServedModel("blocks", anyorder.load(model, device="cpu"))
    keys = {}
    for schedule in ("auto", "blocks:2", "one"):
        query = DecodeQuery(model="blocks", text=TEXT, orders=["right-to-left"], schedule=schedule)
        [call], _ = served.decode(query)
        keys[schedule] = call.batch_key
    assert keys["auto"] == keys["blocks:2"] != keys["one"]  # or one request would get what another one asked for


def test_puzzles_are_solved_and_judged(client: TestClient) -> None:
    orders = ["margin", "uniform", "left-to-right"]
    for seed in range(3):
        puzzle = post(client, "puzzle", model=PUZZLES, seed=seed).json()
        assert post(client, "puzzle", model=PUZZLES, seed=seed).json() == puzzle
        for run in solve(client, **puzzle, orders=orders).json()["runs"]:
            cells = [given or token for given, token in zip(run["canvas"], on_canvas(run, "tokens"), strict=True)]
            assert "".join(cells) == run["text"]
            different = [i for i in range(16) if cells[i] != puzzle["reference"][i]]
            assert (run["wrong"], run["solved"]) == (different, not different)
    assert solve(client).json()["runs"][0]["wrong"] is None  # nobody said what would be right
    assert solve(client, reference=" ").json() == solve(client).json()


def test_a_rule_decides_where_no_solution_is_given(client: TestClient) -> None:
    [run] = solve(client).json()["runs"]
    assert run["solved"] == (run["text"] == SOLUTION)
    other = "2" + SOLUTION[1:]  # a puzzle with several solutions: this one is not what was expected, and right
    assert solve(client, text="4132234114233200", reference=other).json()["runs"][0]["wrong"] == []
    unsolvable = "1100000000000000"
    [run] = solve(client, text=unsolvable).json()["runs"]
    assert not run["solved"]


@pytest.mark.parametrize("order", ["margin", "uniform", "left-to-right"])
@pytest.mark.parametrize("model", [MASKED, PUZZLES])
def test_every_step_of_a_run_is_found_again(client: TestClient, model: str, order: str) -> None:
    text, request = (TEXT, infill) if model == MASKED else (PUZZLE, solve)
    [run] = request(client, orders=[order]).json()["runs"]
    steps, tokens = on_canvas(run, "steps"), on_canvas(run, "tokens")
    chosen = sorted(run["positions"], key=lambda position: steps[position])
    for count in (0, 1, len(chosen) - 1, len(chosen)):
        state = fill(client, model, text, *chosen[:count], order=order).json()
        there = [at is not None and at <= count for at in steps]
        assert state["steps"] == [at if here else None for at, here in zip(steps, there, strict=True)]
        assert state["tokens"] == [
            token if here else given for token, here, given in zip(tokens, there, run["canvas"], strict=True)
        ]
        assert state["given"] == [given is not None for given in run["canvas"]]
        assert state["next"]["position"] == (chosen[count] if count < len(chosen) else None)
        assert [here is None for here in state["candidates"]] == [token is not None for token in state["tokens"]]
    assert state["text"] == run["text"]
    assert state["bleu"] is None


def test_a_token_is_chosen_by_hand(client: TestClient) -> None:
    state = fill(client, MASKED, TEXT, filled=[{"position": 3, "token": "w12"}]).json()
    assert state["tokens"] == ["w1", None, "w3", "w12", None, "w7"]
    wrong = [{"position": i, "token": "1"} for i in EMPTY]
    state = fill(client, PUZZLES, PUZZLE, filled=wrong, reference=SOLUTION).json()
    assert state["solved"] is False
    assert state["wrong"] == [i for i in EMPTY if SOLUTION[i] != "1"]
    assert state["text"] == PUZZLE.replace("0", "1")
    right = [{"position": i, "token": SOLUTION[i]} for i in EMPTY]
    state = fill(client, PUZZLES, PUZZLE, filled=right).json()
    assert (state["solved"], state["wrong"]) == (True, None)
    assert fill(client, PUZZLES, PUZZLE, *EMPTY[1:]).json()["solved"] is None


@pytest.mark.parametrize(
    ("verb", "changes", "expected"),
    [
        ("decode", {"text": "w1 w2"}, "text: has no mask, so there is nothing to fill"),
        ("decode", {"text": " "}, "text: is empty, expected a text"),
        ("decode", {"text": "[MASK]" * 66}, "text: 66 tokens, the model has room for 62"),
        ("decode", {"model": "small"}, "task is missing: small is for de-en, en-de"),
        ("decode", {"model": "small", "task": "infill"}, "unknown task 'infill'"),
        ("decode", {"task": "de-en"}, "unknown task 'de-en' (known: infill)"),
        ("decode", {"length": 4}, "length is given, but this model does not translate"),
        ("decode", {"length": "predicted"}, "length is given, but this model does not translate"),
        ("decode", {"orders": ["learned:/etc"]}, "unknown order 'learned:/etc'"),
        ("decode", {"schedule": 63}, "schedule 63: expected at most 62 positions per step"),
        ("decode", {"model": PUZZLES}, "text: 29 characters, expected the 16 cells of sudoku-4x4"),
        (
            "decode",
            {"model": PUZZLES, "text": "5" * 16},
            "text: '5', expected the 16 cells of sudoku-4x4: 1 to 4, or 0 for an empty cell",
        ),
        ("decode", {"model": PUZZLES, "text": "1" * 16}, "text: has no empty cell"),
        ("decode", {"model": PUZZLES, "text": PUZZLE, "reference": PUZZLE}, "reference: has empty cells"),
        (
            "decode",
            {"model": PUZZLES, "text": PUZZLE, "reference": "1"},
            "reference: 1 character, expected the 16 cells",
        ),
        ("puzzle", {"orders": ..., "text": ..., "seed": 1}, "model masked: expected a model that solves puzzles"),
        ("puzzle", {"model": PUZZLES, "orders": ..., "text": ..., "seed": -1}, "seed: "),
        ("puzzle", {"model": PUZZLES, "orders": ..., "text": ..., "seed": 1 << 53}, "seed: "),
        ("puzzle", {"model": PUZZLES, "orders": ..., "text": ...}, "seed: Field required"),
        ("step", {"orders": ..., "task": "de-en"}, "unknown task 'de-en'"),
        ("step", {"orders": ..., "length": 4}, "length is given, but this model does not translate"),
        ("step", {"orders": ..., "filled": [{"position": 0}]}, "position 0 is already filled"),
        ("step", {"orders": ..., "filled": [{"position": 1, "token": "[SEP]"}]}, "token '[SEP]'"),
        ("step", {"orders": ..., "model": PUZZLES, "text": PUZZLE, "reference": "1"}, "reference: 1 character, "),
        ("step", {"orders": ..., "model": "small"}, "task is missing: small is for de-en, en-de"),
    ],
)
def test_wrong_queries(client: TestClient, verb: str, changes: dict[str, object], expected: str) -> None:
    response = post(client, verb, **{"model": MASKED, "text": TEXT, "orders": ["margin"], **changes})
    assert response.status_code == 422
    assert list(response.json()) == ["error"]
    assert expected in response.json()["error"]


def test_two_models_of_one_name_are_refused(masked_folder: Path) -> None:
    with pytest.raises(InputError, match="two models are called 'masked'"):
        create_app([str(masked_folder), f"hf:{masked_folder}"], device="cpu")


class Rotations(anyorder.PuzzleTask):
    """A row of three letters, each once: a task as a user would write it."""

    symbols, columns, rows = ("A", "B", "C"), 3, 1

    def generate(self, count: int, seed: int) -> Examples:
        solutions = 1 + (np.arange(3) + np.arange(seed, seed + count)[:, None]) % 3
        return Examples(np.where(np.arange(3) == 0, solutions, 0), solutions)

    def is_solved(self, puzzles: np.ndarray, answers: np.ndarray) -> np.ndarray:
        return ((puzzles == 0) | (puzzles == answers)).all(1) & (np.sort(answers) == [1, 2, 3]).all(1)


def test_a_user_s_own_task_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registering it is enough: as grids, with its own puzzles, answers judged, filled by hand, and in the report."""
    monkeypatch.setitem(TASKS, "rotations", Rotations)
    task = make_task("rotations")
    save_encoder(new_encoder(task, EncoderConfig(16, 1, 1), seed=1), task, tmp_path / "mine")
    with TestClient(create_app([str(tmp_path / "mine")], device="cpu"), base_url="http://localhost:8600") as client:
        [info] = client.get("/api/models").json()["models"]
        assert (info["kind"], list(info["orders"])) == ("puzzle", ["rotations"])
        assert info["grid"] == {"columns": 3, "rows": 1, "box": 0, "symbols": ["A", "B", "C"]}
        puzzle = post(client, "puzzle", model="mine", seed=1).json()
        assert puzzle == {"text": "B00", "reference": "BCA"}
        for run in post(client, "decode", model="mine", orders=["margin", "uniform"], **puzzle).json()["runs"]:
            answer = run["text"]
            assert (answer[0], len(answer)) == ("B", 3)
            assert run["solved"] == (answer == "BCA" or answer == "BAC")
        filled = [{"position": 1, "token": "A"}, {"position": 2, "token": "C"}]
        state = fill(client, "mine", "B00", filled=filled).json()
        assert (state["text"], state["solved"], state["wrong"]) == ("BAC", True, None)
    grid = pack_grid({"margin": anyorder.load(tmp_path / "mine", device="cpu").solve(["B00", "0A0"])})
    assert grid is not None
    assert (grid["columns"], grid["rows"], len(grid["solved"][0])) == (3, 1, 2)
