"""The paper's scale on small stand-ins: a data set as the hub's, and an XLM folder, through training to a table."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError
from anyorder.models.translation import TranslationModel
from anyorder.reproduce.plan import Request
from anyorder.reproduce.reproduce import PaperSource, preview, reproduce
from anyorder.reproduce.wmt import PAIRS, keep_languages, pairs_of, read_wmt
from tests.conftest import toy_pairs
from tests.models.test_xlm import write_xlm


def use_datasets(patch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package `datasets` that reads JSON lines: FOLDER/CONFIG/SPLIT.jsonl."""

    def load(path: str, name: str, split: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in (Path(path) / name / f"{split}.jsonl").read_text().splitlines()]

    def names(path: str, name: str) -> list[str]:
        return [file.stem for file in (Path(path) / name).iterdir()]

    patch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load, get_dataset_split_names=names))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory, vocabulary: Vocabulary) -> Path:
    folder = tmp_path_factory.mktemp("paper")
    (folder / "wmt" / "de-en").mkdir(parents=True)
    pairs = toy_pairs(80, seed=3)
    for split, part in (("train", pairs[:60]), ("validation", pairs[60:])):
        lines = (json.dumps({"translation": {"de": german, "en": english}}) for german, english in part)
        (folder / "wmt" / "de-en" / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    languages = {"lang2id": {"ar": 0, "de": 1, "en": 2}, "id2lang": {"0": "ar", "1": "de", "2": "en"}, "n_langs": 3}
    write_xlm(folder / "xlm", vocabulary, emb_dim=64, n_layers=1, **languages)
    return folder


def test_from_the_hub_to_a_table(stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_datasets(monkeypatch)
    request = Request(
        "table1", tmp_path, directions=["de-en"], rules=["table:4"], rows=["left-to-right", "learned:hidden"],
        scale="paper", seeds=1, steps=1, sentences=12, samples=20, device="cpu",
    )  # fmt: skip
    paper = PaperSource({"de-en": str(stand_ins / "wmt")}, {"de-en": str(stand_ins / "xlm")}, steps=2)
    assert [state.done for state in preview([request], paper)] == [False]
    report = reproduce(request, paper)
    assert report is not None
    assert report.notes == ["De→En: there is no test set."]
    assert [row.row for row in report.parts[0].rows] == ["left-to-right", "learned:hidden"]
    assert {one.kind for one in report.spent} == {"train", "learn", "decode"}
    assert all(state.done for state in preview([request], paper))
    model = TranslationModel.from_pretrained(tmp_path / "paper" / "de-en" / "run" / "model")
    assert model.config.languages == ("de", "en")
    assert model.config.transformer.source_sees_target
    assert (tmp_path / "paper" / "de-en" / "text" / "train.de").read_text().count("\n") == 60
    assert reproduce(request, paper) == report


def test_a_model_with_fewer_languages_computes_the_same(stand_ins: Path) -> None:
    model = TranslationModel.from_pretrained(stand_ins / "xlm")
    small = keep_languages(model, ("de", "en"))
    source, target = torch.tensor([1, 2]), torch.tensor([0, 1])
    assert torch.equal(model.transformer.languages(source), small.transformer.languages(target))
    assert small.config.languages == ("de", "en")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="through the package datasets: pip install datasets"):
        read_wmt(PAIRS["de-en"], "train", ("de", "en"))


def test_rows_that_are_no_translations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_datasets(monkeypatch)
    (tmp_path / "de-en").mkdir()
    (tmp_path / "de-en" / "train.jsonl").write_text('{"text": "Hund"}\n')
    from dataclasses import replace

    source = replace(PAIRS["de-en"], dataset=str(tmp_path))
    pairs = read_wmt(source, "train", ("de", "en"))
    assert pairs is not None
    with pytest.raises(InputError, match="expected rows with a translation into de and en"):
        next(pairs)
    assert read_wmt(source, "test", ("de", "en")) is None
    with pytest.raises(InputError, match="cannot be loaded"):
        read_wmt(replace(source, config="ro-en"), "train", ("ro", "en"))


def test_pairs_of_directions() -> None:
    assert pairs_of(["en-de", "de-en", "en-zh"]) == ["de-en", "zh-en"]
    with pytest.raises(InputError, match="unknown direction 'fr-en'"):
        pairs_of(["fr-en"])
