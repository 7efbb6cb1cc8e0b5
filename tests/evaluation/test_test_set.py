"""Test sets of pairs from a store, and of a task of one's own."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyorder.analysis.analyze import analyze
from anyorder.data.store import Store
from anyorder.data.text import Text
from anyorder.data.vocabulary import Vocabulary
from anyorder.decoder import Decoder, load
from anyorder.decoding.config import DecodingConfig
from anyorder.errors import InputError
from anyorder.evaluation.bleu import multi_bleu
from anyorder.evaluation.evaluate import evaluate
from anyorder.evaluation.evaluate_orders import evaluate_orders
from anyorder.evaluation.test_set import read_test_set, stored_test_set
from anyorder.report.terminal import trace
from anyorder.tasks import TASKS, Infill, Task
from tests.conftest import tiny
from tests.models.checkpoints import save
from tests.stores import write_store


def test_pairs_of_a_store(tmp_path: Path, vocabulary: Vocabulary) -> None:
    split = Store(write_store(tmp_path / "de-en", vocabulary, {"dev": 9})).split("dev")
    decoder = Decoder(tiny(vocabulary), "de-en")
    source, target = split.sides["de"], split.sides["en"]
    longer = np.maximum(source.lengths, target.lengths)
    test_set = stored_test_set(decoder, split)
    assert test_set.sizes.tolist() == longer.tolist()
    limit = int(np.sort(longer)[4])
    chosen = test_set.within(limit)
    assert chosen == np.flatnonzero(longer <= limit).tolist()
    trajectories = test_set.decode(DecodingConfig("margin", length="gold"), chosen)
    assert [one.length for one in trajectories] == target.lengths[chosen].tolist()
    words = [vocabulary.words(target[i]) for i in chosen]
    hypotheses = [" ".join(one.words) for one in trajectories]
    expected = multi_bleu().corpus_score(hypotheses, [[" ".join(one) for one in words]])
    assert test_set.value(trajectories, chosen) == expected.score
    assert [test_set.references[0][i] for i in chosen] == [Text("en").sentence(one) for one in words]
    some = stored_test_set(decoder, split, chosen)
    assert [np.array_equal(a.ids, source[i]) for a, i in zip(some.examples, chosen, strict=True)] == [True] * len(
        chosen
    )
    assert some.notes(range(len(chosen))) == []
    with pytest.raises(InputError, match="dev: no .* at most 1 subwords"):
        test_set.within(1)


INFILL = Infill()


class Own(Task):
    """Fills masks, and is scored by texts that equal their references."""

    name, mode = "own", "infill"

    def complete(self, config: DecodingConfig, model: Any) -> DecodingConfig:
        return INFILL.complete(config, model)

    def examples(self, model: Any, lines: Sequence[str], *arguments: Any, **options: Any) -> list[Any]:
        return INFILL.examples(model, lines)

    def canvases(self, *arguments: Any) -> Any:
        return INFILL.canvases(*arguments)

    def trajectory(self, *arguments: Any) -> Any:
        return INFILL.trajectory(*arguments)


def test_a_task_of_ones_own_is_scored_by_its_references(tmp_path: Path) -> None:
    save("BertForMaskedLM", tmp_path)
    decoder = load(tmp_path, task=Own(), device="cpu")
    lines = ["w1 [MASK] w2", "[MASK] w3", "w4"]
    filled = [run.text for run in decoder.with_task("infill").fill(lines, "margin")]
    table = evaluate_orders(decoder, lines, [filled[0], "something else", lines[2]], ["margin"])
    assert (table.task, table.rows[0].lines, table.rows[0].exact) == ("own", 3, pytest.approx(200 / 3, abs=1e-3))
    assert [(line.line, line.scored) for line in table.lines] == [(3, True)]
    with pytest.raises(InputError, match="references are missing: own is scored against them"):
        read_test_set(decoder, lines)


def test_a_registered_task_that_is_no_puzzle_is_scored_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "own", Own)
    save("BertForMaskedLM", tmp_path)
    decoder = load(tmp_path, task="own", device="cpu")
    lines = ["w1 [MASK] w2", "[MASK] w3"]
    runs = decoder.run(lines, "margin")
    runs = [replace(run, task="own") for run in runs]  # `Infill` made these trajectories
    assert evaluate({"margin": runs}, [run.text for run in runs]).rows[0].chrf == pytest.approx(100)
    assert analyze({"margin": runs}).sentences == 2
    assert trace(runs[0])[-1].startswith("1  ")
    with pytest.raises(InputError, match="own: cannot be filled by hand"):
        decoder.canvas(lines[0])
