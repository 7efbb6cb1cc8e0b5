"""What a run says about itself: its sizes, which fit its time, and at the end whether the order is better."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from anyorder.cli import main
from anyorder.errors import InputError
from anyorder.learning.config import RLConfig
from anyorder.learning.data import LearningData, text_data
from anyorder.learning.verdict import LEARNED, verdict
from anyorder.models.hf.pretrained import TransformersModel, load_transformers
from anyorder.training.run_folder import append_to_log
from tests.evaluation.test_recovery import LINES
from tests.models.checkpoints import save

CPU = RLConfig().with_sizes(torch.device("cpu"), (512, 32), (1000, 200))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    save("BertForMaskedLM", folder)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> TransformersModel:
    return load_transformers(folder)


def learn(folder: Path, out: Path, *more: object) -> int:
    text = out.with_name("lines.txt")
    text.write_text("\n".join(LINES) + "\n")
    run = ["--run.device", "cpu", "--run.log-every", 1, "--run.warmup", 1, "--policy.kind", "linear"]
    arguments = ["learn-order", "--model", f"hf:{folder}", "--text", text, "--out", out, *run, *more]
    return main([str(one) for one in arguments])


@pytest.mark.parametrize(
    ("seconds", "minutes", "sizes"),
    [
        (0.001, 1, (32, 0, 200)),  # a step of 256 rollouts takes 0.3 of the 3 seconds that it may
        (0.1, 1, (4, 4, 50)),  # 4 times 8 rollouts would take 3.2 s, more than 3
        (1.0, 1, (4, 4, 12)),
        (1.0, 1000, (32, 0, 200)),
        (1000.0, 1, (4, 4, 12)),  # never fewer
    ],
)
def test_sizes_fit_the_time(seconds: float, minutes: float, sizes: tuple[int, int, int]) -> None:
    fitted = CPU.for_time(RLConfig(), seconds, 60 * minutes)
    assert (fitted.sentences, fitted.rollouts, fitted.validation_sentences) == sizes


def test_chosen_sizes_stay() -> None:
    chosen = replace(CPU, sentences=64, rollouts=16, validation_sentences=300)
    assert chosen.for_time(chosen, 1000.0, 60) == chosen
    several = replace(CPU, num_minibatches=16)
    assert several.for_time(RLConfig(num_minibatches=16), 1000.0, 60).sentences == 16
    single = RLConfig("a2c").with_sizes(torch.device("cpu"))
    assert single.for_time(RLConfig("a2c"), 1000.0, 60).rollouts_per_sentence == 1


def test_it_says_what_it_does_and_keeps_its_sizes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sizes are those of the first session, however fast the machine is in the next."""
    monkeypatch.setattr(LearningData, "seconds_to_fill", lambda self: 1.0)
    out = tmp_path / "run"
    assert learn(folder, out, "--run.minutes", 0.02) == 0
    printed = capsys.readouterr()
    first, slow, second, *_ = printed.err.splitlines()
    assert first == f"learning an order for hf:{folder} on 14 lines of text, on the CPU (1 thread), for 0.02 minutes"
    assert slow == "a step takes about 16 s: only about 1 fit into the time, and hundreds are usual"
    assert second == "learns from 12 lines, 4 of them with 4 orders each per step; validates on the 2 after these"
    assert re.search(r"^result: .* on 2 lines", printed.out, re.MULTILINE) or "too little time" in printed.out
    assert f"--text OTHER-LINES.txt --orders margin,learned:{out}/order" in printed.out
    monkeypatch.setattr(LearningData, "seconds_to_fill", lambda self: 1e-9)
    assert learn(folder, out, "--run.minutes", 0.03, "--resume") == 0
    assert "4 of them with 4 orders each per step" in capsys.readouterr().err
    state = json.loads((max(out.glob("checkpoint-*")) / "state.json").read_text())
    rl = state["fingerprint"]["rl"]
    assert (rl["sentences"], rl["rollouts"], rl["min_length"]) == (4, 4, 2)


def test_the_time_to_fill_is_measured(model: TransformersModel) -> None:
    data = text_data(LINES, model, 0.5, (2, None), validation=4, seed=1)
    assert 0 < data.seconds_to_fill() < 10


def test_lines_of_any_length_are_learned_from(model: TransformersModel) -> None:
    lengths = [len(ids) for ids in model.encode(LINES)]
    assert len(text_data(LINES, model, 0.5, (2, None), validation=0, seed=1)) == len(LINES)
    data = text_data(LINES, model, 0.5, (2, min(lengths)), validation=0, seed=1)
    assert data.note == f"{14 - len(data)} of 14 lines are left out: they do not have 2 to {min(lengths)} tokens"
    long = [" ".join(LINES * 9)]
    with pytest.raises(
        InputError, match=rf"text no line .* they have .*, and the model has room for {model.max_length}"
    ):
        text_data(long, model, 0.5, (2, None), validation=0, seed=1)
    with pytest.raises(InputError, match=r"max_length 3: no line of the text has 2 to 3 tokens; they have"):
        text_data(LINES[:1], model, 0.5, (2, 3), validation=0, seed=1)


class Compared:
    """A validation of 50 lines with known p-values."""

    def __init__(self, p_value: float | None):
        self.p = p_value

    def __len__(self) -> int:
        return 50

    def p_value(self, one: np.ndarray, other: np.ndarray) -> float | None:
        return self.p


@pytest.mark.parametrize(
    ("learned", "p_value", "steps", "expected"),
    [
        (20.73, None, 8, "no better than margin, the best of 2 orders: 20.73 and 20.73% on 50 lines; 8 steps were made, "
         "about 400 are usual"),
        (20.0, 0.2, 500, "no better than margin, the best of 2 orders: 20.00 and 20.73% on 50 lines (p = 0.200)"),
        (22.0, 0.01, 500, "better than margin, the best of 2 orders: 22.00 and 20.73% on 50 lines (p = 0.010)"),
        (22.0, 0.3, 500, "not significantly better than margin, the best of 2 orders: 22.00 and 20.73% on 50 lines "
         "(p = 0.300)"),
        (22.0, 0.0001, 500, "better than margin, the best of 2 orders: 22.00 and 20.73% on 50 lines (p < 0.001)"),
    ],
)  # fmt: skip
def test_the_verdict(tmp_path: Path, learned: float, p_value: float | None, steps: int, expected: str) -> None:
    first = {"accuracy infill": 19.0, "left-to-right infill": 12.0, "margin infill": 20.73}
    for step, scores in ((2, first), (4, {"accuracy infill": learned}), (6, {"accuracy infill": 1.0})):
        append_to_log(tmp_path, {"step": step, **scores})
    counts = {"infill": dict.fromkeys((LEARNED, "margin"), np.zeros((50, 2)))}
    validations = {"infill": Compared(p_value)}
    said = verdict(tmp_path, steps, "accuracy", "lines", validations, ["left-to-right", "margin"], counts)  # type: ignore[arg-type]
    assert said == expected


def test_the_verdict_is_on_the_order_that_was_saved(tmp_path: Path) -> None:
    """That may not be the one with the best score, if another score selects."""
    for step, accuracy, product in ((2, 30.0, 5.0), (4, 20.0, 9.0), (6, 25.0, 9.0), (8, 40.0, 1.0)):
        scores = {"accuracy infill": accuracy, "product infill": product, "margin infill": 28.0}
        append_to_log(tmp_path, {"step": step, **scores})
    validations = {"infill": Compared(None)}
    said = verdict(tmp_path, 500, "accuracy", "lines", validations, ["margin"], {}, "product")  # type: ignore[arg-type]
    assert said == "no better than margin: 25.00 and 28.00% on 50 lines"


def test_a_verdict_without_a_comparison(tmp_path: Path) -> None:
    validations = {"infill": Compared(None)}
    known = ("accuracy", "lines", validations, ["margin"], {})
    assert verdict(tmp_path, 0, *known) == "nothing was learned: no step was finished"  # type: ignore[arg-type]
    assert "there was too little time" in verdict(tmp_path, 3, *known)  # type: ignore[arg-type]
    assert "nothing to validate on" in verdict(tmp_path, 3, "accuracy", "lines", {}, ["margin"], {})
    assert "no orders to compare" in verdict(tmp_path, 3, "accuracy", "lines", validations, [], {})  # type: ignore[arg-type]
