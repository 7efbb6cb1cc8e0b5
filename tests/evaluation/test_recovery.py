"""Orders on a masked language model: which masked tokens of plain text come back, against a plain Transformers loop."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from anyorder.cli import main
from anyorder.decoder import Decoder, load
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.signature import Signature
from anyorder.errors import InputError
from anyorder.evaluation.evaluate import Evaluation
from anyorder.evaluation.evaluate_orders import MASKED_ORDERS, evaluate_orders
from anyorder.evaluation.significance import bootstrap_intervals, compare
from anyorder.evaluation.test_set import read_test_set
from anyorder.learning.data import text_data
from anyorder.report.tables import evaluation_table
from anyorder.tasks import Generate
from anyorder.tasks.masked import mask_positions
from tests.models.checkpoints import MASK, network, save

SHARE, SEED = 0.4, 3
LIKED = ["w4", "w4", "w4", "w11", "w17"]


def random_lines(count: int, seed: int = 0) -> list[str]:
    """Of words that the model, whose weights are random, likes to fill in."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(LIKED, random.integers(3, 9))) for _ in range(count)]


LINES = random_lines(14)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    save("BertForMaskedLM", folder)
    return folder


@pytest.fixture(scope="module")
def decoder(folder: Path) -> Decoder:
    return load(folder, device="cpu")


def scores(decoder: Decoder, lines: list[str], orders: list[str], **options: object) -> Evaluation:
    options = {"samples": 200, "mask_share": SHARE, "config": DecodingConfig(seed=SEED), **options}
    return evaluate_orders(decoder, lines, orders=orders, **options)  # type: ignore[arg-type]


def recovered_from_the_left(decoder: Decoder, line: str, number: int) -> tuple[list[bool], list[float]]:
    """Of each masked token whether it comes back, filled from the left, and the log-probability of what was filled."""
    model, allowed = network("BertForMaskedLM"), np.flatnonzero(decoder.model.allowed_tokens)
    [ids] = decoder.model.encode([line])
    masked = np.flatnonzero(mask_positions(len(ids), SHARE, SEED, number))
    given = torch.tensor([decoder.model.tokenizer.cls_token_id, *ids, decoder.model.tokenizer.sep_token_id])
    given[torch.from_numpy(masked) + 1] = MASK
    logprobs = []
    for position in masked:
        with torch.no_grad():
            logits = model(given[None]).logits[0, position + 1]
        best = allowed[logits[allowed].argmax()]
        given[position + 1] = best
        logprobs.append(float(logits.log_softmax(-1)[best]))
    return [int(given[position + 1]) == ids[position] for position in masked], logprobs


def test_scores_are_those_of_a_plain_loop(decoder: Decoder) -> None:
    result = scores(decoder, LINES, ["left-to-right", "uniform", "right-to-left"])
    found = [recovered_from_the_left(decoder, line, number) for number, line in enumerate(LINES)]
    tokens = [is_right for line, _ in found for is_right in line]
    row = result.rows[0]
    assert (row.lines, row.tokens) == (14, len(tokens))
    assert 0 < row.recovered < 100
    assert row.recovered == round(100 * sum(tokens) / len(tokens), 4)
    assert row.exact == round(100 * sum(all(line) for line, _ in found) / 14, 4)
    assert row.logprob == pytest.approx(np.mean([value for _, line in found for value in line]), abs=1e-4)
    assert row.forwards == round(len(tokens) / 14, 4)
    counts = np.array([[sum(line), len(line)] for line, _ in found])

    def percent(sums: np.ndarray) -> np.ndarray:
        return 100 * sums[..., 0] / sums[..., 1]

    expected = bootstrap_intervals({"": counts}, percent, 200)[""]
    assert row.recovered_interval == pytest.approx(expected, abs=1e-4)
    test_set = read_test_set(decoder, LINES, mask_share=SHARE, seed=SEED)
    other = test_set.metrics(test_set.within())[0].counts(
        test_set.decode(DecodingConfig("uniform", seed=SEED), range(14))
    )
    compared = compare({"left-to-right": counts, "uniform": other}, ["left-to-right"], percent, samples=200)["uniform"]
    assert result.rows[1].p_values == {"left-to-right": compared["left-to-right"].p_value}
    assert result.rows[1].differences["left-to-right"].value == round(compared["left-to-right"].value, 4)
    assert list(result.rows[1].p_values_holm) == ["left-to-right"]


def test_the_masks_are_those_of_learning(decoder: Decoder) -> None:
    """Whatever lines each of them leaves out."""
    lines = [LINES[0], "", "w1 w2", *LINES[1:], "w1 [MASK] w2 w3"]
    data = text_data(lines, decoder.model, SHARE, (3, 20), validation=2, seed=SEED)
    test_set = read_test_set(decoder, lines, mask_share=SHARE, seed=SEED)
    assert test_set.within() == [0, *range(2, 16)]
    validated = data.validations["infill"]._test_set.examples
    assert [len(data), len(validated)] == [12, 2]
    for number, i in enumerate([0, *range(3, 16)]):
        masked = test_set.examples[i].tokens == MASK
        expected = data._masks[number] if number < 12 else validated[number - 12].tokens == MASK
        assert (masked == expected).all()
    one = mask_positions(9, 0.01, SEED, 0)
    assert one.sum() == 2  # with one mask there would be no order
    assert mask_positions(9, 1.0, SEED, 0).all()
    assert mask_positions(1, 0.5, SEED, 0).tolist() == [True]


def test_the_json(decoder: Decoder) -> None:
    result = scores(decoder, LINES, ["uniform", "margin"], schedules=["one", "2"], against=["uniform one"])
    record = json.loads(json.dumps(result.as_json()))
    assert set(record) == {"signature", "task", "rows", "notes", "lines"}
    assert record["task"] == "infill"
    assert Signature.parse(record["signature"])["mask.share"] == "0.4"
    assert set(record["rows"][0]) == {
        "system", "order", "max_length", "lines", "recovered", "recovered_interval", "exact", "logprob", "tokens",
        "p_values", "p_values_holm", "differences", "schedule", "revision", "forwards",
    }  # fmt: skip
    assert set(record["rows"][1]["differences"]["uniform one"]) == {"recovered", "low", "high"}
    assert record == json.loads(json.dumps(scores(decoder, LINES, ["uniform", "margin"], schedules=["one", "2"], against=["uniform one"]).as_json()))  # fmt: skip
    table = evaluation_table(result)
    assert table.title == "infill, compared with uniform one (14 lines)"
    assert [column.heading for column in table.groups["all"]] == [
        "recovered %", "95% interval", "exact %", "log p", "Δ", "p", "forwards", "lines/s",
    ]  # fmt: skip
    assert set(result.timings()["rows"][0]) == {"system", "max_length", "lines", "seconds"}


def test_lines_that_cannot_be_used_are_left_out(decoder: Decoder) -> None:
    lines = ["w1 w2 w3", "", "w1 [MASK] w2", "w1 " * 70, "w1\x00w2 w3"]
    result = scores(decoder, lines, ["margin"])
    assert [(line.line, line.scored) for line in result.lines] == [(2, False), (3, False), (4, False), (5, True)]
    assert result.lines[1].note == "masked source"
    assert result.lines[2].note.startswith("oversized source")
    assert result.rows[0].lines == 2
    with pytest.raises(InputError, match="a.txt, line 3: holds a mask already, expected a plain text"):
        scores(decoder, [lines[0], lines[0], lines[2]], ["margin"], names=["a.txt"], strict=True)
    with pytest.raises(InputError, match="sources: no line has text"):
        scores(decoder, lines[1:4], ["margin"])


def test_length_limits(decoder: Decoder) -> None:
    result = scores(decoder, LINES, ["left-to-right"], max_lengths=[5, None])
    short = [line for line in LINES if len(line.split()) <= 5]
    assert [(row.max_length, row.lines) for row in result.rows] == [(5, len(short)), (None, 14)]
    masks = read_test_set(decoder, LINES, mask_share=SHARE, seed=SEED)
    tokens = sum(int((masks.examples[i].tokens == MASK).sum()) for i in masks.within(5))
    assert result.rows[0].tokens == tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_share": 0.0}, "mask_share 0.0: expected a number of more than 0"),
        ({"mask_share": 1.5}, "mask_share 1.5: .* at most 1"),
        ({"references": LINES}, "references are for other tasks"),
        ({"tokenize": "13a"}, "tokenize is for translation, not for infill"),
    ],
)
def test_impossible_requests(decoder: Decoder, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scores(decoder, LINES, ["margin"], **options)


def test_a_line_with_one_token_leaves_no_choice(decoder: Decoder) -> None:
    result = scores(decoder, [*LINES, LINES[0].split()[0]], ["margin"])
    assert result.rows[0].lines == len(LINES)
    assert [line.note for line in result.lines if not line.scored] == ["short source"]


def test_an_evaluation_prints_its_scores(decoder: Decoder) -> None:
    printed = str(scores(decoder, LINES, ["left-to-right", "margin"])).splitlines()
    assert printed[0] == "infill (14 lines)"
    assert re.fullmatch(r"left-to-right  recovered \d+\.\d\d, .*", printed[1])
    assert re.fullmatch(r"margin         recovered .* p \d\.\d{3} against left-to-right", printed[2])
    assert printed[3].startswith("order:*|schedule:one|")
    limited = str(scores(decoder, LINES, ["margin"], max_lengths=[5, None])).splitlines()
    assert [line.split("  ")[0].strip() for line in limited[1:3]] == ["margin ≤5", "margin"]


def test_progress_is_told_within_a_batch(decoder: Decoder) -> None:
    """All lines are one batch; the bar moves while it is filled, and ends at their number."""
    told: list[int] = []
    scores(decoder, LINES, ["margin", "uniform"], on_progress=told.append)
    assert sum(told) == 2 * len(LINES)
    assert len(told) > 2
    assert min(told) > 0


def test_other_tasks_have_no_masks(decoder: Decoder) -> None:
    with pytest.raises(InputError, match="generate: has no right answers"):
        evaluate_orders(decoder.with_task(Generate(2)), LINES, orders=["margin"])
    with pytest.raises(InputError, match="mask_share is for texts, not for generate"):
        evaluate_orders(decoder.with_task(Generate(2)), LINES, orders=["margin"], mask_share=0.5)


def run(folder: Path, tmp_path: Path, *arguments: object) -> int:
    (tmp_path / "lines.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return main(["evaluate", "--model", f"hf:{folder}", "--device", "cpu", "--samples", "50", *map(str, arguments)])


def test_the_command(folder: Path, decoder: Decoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--text", tmp_path / "lines.txt", "--mask-share", SHARE, "--seed", SEED]
    files = ["--json", tmp_path / "out.json", "--table", tmp_path / "t.md", "--timings", tmp_path / "times.json"]
    regimes = ["--schedule", "one,2", "--against", "margin one", "--limit", 12, "--test", "bootstrap"]
    assert run(folder, tmp_path, *options, *files, *regimes, "--orders", "left-to-right,margin") == 0
    expected = scores(
        decoder, LINES[:12], ["left-to-right", "margin"], schedules=["one", "2"], against=["margin one"],
        test="bootstrap", samples=50,
    )  # fmt: skip
    expected = replace(expected, signature="")
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["rows"] == json.loads(json.dumps(expected.as_json()))["rows"]
    assert (
        "| system | recovered % | 95% interval | exact % | log p | Δ | p | forwards |\n"
        in (tmp_path / "t.md").read_text()
    )
    assert "12 lines" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "times.json").read_text())["rows"]) == 4
    assert run(folder, tmp_path, "--text", tmp_path / "lines.txt", "--limit", 2, "--json", tmp_path / "all.json") == 0
    assert [row["order"] for row in json.loads((tmp_path / "all.json").read_text())["rows"]] == list(MASKED_ORDERS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "{}/lines.txt", "--direction", "de-en"], "--direction does not go together with --text"),
        (["--text", "{}/lines.txt", "--source", "{}/lines.txt"], "--source does not go together with --text"),
        (["--text", "{}/lines.txt", "--reference", "{}/lines.txt"], "--reference does not go together with --text"),
        (["--text", "{}/lines.txt", "--task", "sudoku-4x4"], "--task does not go together with --text"),
        (["--text", "{}/lines.txt", "--tokenize", "13a"], "--tokenize does not go together with --text"),
        (["--text", "{}/lines.txt", "--mask-share", "2"], "--mask-share 2.0: expected a number"),
        (["--text", "{}/lines.txt", "--json", "{}/lines.txt"], "would replace a file that is read"),
        (["--text", "{}/nowhere.txt"], "nowhere.txt: no such file"),
        (["--text", "{}/lines.txt", "--orders", "margn"], "unknown order 'margn'"),
        ([], "fills masks: give --text with plain text, or --task with the puzzles that it solves"),
        (["--mask-share", "0.5"], "--mask-share is for --text"),
        (["--trajectories", "{}/lines.txt", "--text", "{}/lines.txt"], "does not go together with --trajectories"),
    ],
)
def test_errors_are_one_line(
    folder: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, tmp_path, *[argument.format(tmp_path) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


# Tokens that the tokenizer does not know


def test_unknown_tokens_are_neither_masked_nor_scored(decoder: Decoder) -> None:
    unknown = decoder.model.unknown_token
    lines = ["w1 x w2 y w3", "x w4 w5 w6 y w7 w8 z", "x y z", *LINES[:4]]
    test_set = read_test_set(decoder, lines, mask_share=SHARE, seed=SEED)
    for example, masked in zip(test_set.examples, (2, 2), strict=False):
        assert (example.tokens == MASK).sum() == masked
    known = [np.flatnonzero(ids != unknown) for ids in decoder.model.encode(lines)]
    for number, i in enumerate((0, 1)):
        expected = known[i][mask_positions(len(known[i]), SHARE, SEED, number)]
        assert np.flatnonzero(test_set.examples[i].tokens == MASK).tolist() == expected.tolist()
    assert test_set.within() == [0, 1, 3, 4, 5, 6]
    notes = test_set.notes(test_set.within())
    assert [(note.line, note.scored, note.note) for note in notes] == [(3, False, "unknown source")]
    with pytest.raises(InputError, match="sources, line 3: has only tokens that the tokenizer does not know"):
        test_set.notes(test_set.within(), strict=True)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("W1 W2 W3 W4", "write it in lower case"),
        ("1w 2w", "which knows tokens such as w0 w1 w2 w3 w4 w5 w6 w7 w8 w9"),
    ],
)
def test_text_that_is_mostly_unknown_is_refused(
    line: str, advice: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise every order recovers 0% of it, or all, and nothing says why."""
    text = tmp_path / "lines.txt"
    text.write_text(f"{line}\n" * 10)
    learn = ["learn-order", "--out", tmp_path / "out", "--run.steps", 1]
    for command in (["evaluate"], learn):
        assert main([*map(str, [*command, "--model", f"hf:{folder}", "--text", text])]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        found = f"--text is mostly unknown to the tokenizer of {folder.name} (100% of its tokens; '{line}' is read as"
        assert error.startswith(f"anyorder {command[0]}: {found} [UNK] [UNK]")
        assert error.endswith(advice)


def test_text_that_should_be_spaced(tmp_path: Path) -> None:
    save("BertForMaskedLM", tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace('"w1"', '"A"').replace('"w2"', '"C"'))
    decoder = load(tmp_path, device="cpu")
    with pytest.raises(InputError, match="write it with a space between any two characters"):
        evaluate_orders(decoder, ["ACCA", "CCAC"], orders=["margin"])
    with pytest.raises(InputError, match="write it in capitals with a space between any two characters"):
        evaluate_orders(decoder, ["acca", "ccac"], orders=["margin"])


def test_filling_a_text_that_is_mostly_unknown_says_so(decoder: Decoder) -> None:
    notes = [one.note for one in decoder.fill(["x y w1 [MASK] [MASK] [MASK]", "x w1 [MASK]"])]
    assert notes == ["unknown tokens in source (2 of 3)", ""]
    [one] = decoder.fill("x y [MASK]", strict=True)
    assert one.note == "unknown tokens in source (2 of 2)"
