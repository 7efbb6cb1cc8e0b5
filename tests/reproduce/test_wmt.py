"""The paper's scale on small stand-ins: a data set as the hub's, and an XLM folder, through training to a table."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError
from anyorder.models.native.translation_model import TranslationModel
from anyorder.reproduce.reproduce import Request, list_jobs, reproduce, with_paper
from anyorder.reproduce.wmt import MASKED_TRANSLATION, keep_languages, load_splits
from tests.conftest import toy_pairs
from tests.models.test_xlm import write_xlm


def use_datasets(patch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package `datasets` that reads JSON lines: FOLDER/CONFIG/SPLIT.jsonl."""

    def load(path: str, name: str) -> dict[str, list[dict[str, object]]]:
        files = (Path(path) / name).iterdir()
        return {file.stem: list(map(json.loads, file.read_text().splitlines())) for file in files}

    patch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))  # type: ignore[arg-type]


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
        scale="paper", datasets={"de-en": str(stand_ins / "wmt")}, xlm={"de-en": str(stand_ins / "xlm")}, train_steps=2,
        seeds=1, steps=1, sentences=12, samples=20, device="cpu",
    )  # fmt: skip
    assert [job.done for job in list_jobs([request])] == [False]
    lines: list[str] = []
    assert reproduce([request], (2, 2), on_line=lines.append) == []
    assert lines == ["part 2 of 2 is done, but 1 job of other parts is not; run the command again after them"]
    (report,) = reproduce([request])
    assert report.notes == ["De→En: there is no test set."]
    assert [row.row for row in report.parts[0].rows] == ["left-to-right", "learned:hidden"]
    assert {one.kind for one in report.costs} == {"train", "learn", "decode"}
    assert all(job.done for job in list_jobs([request]))
    model = TranslationModel.from_pretrained(tmp_path / "paper" / "de-en" / "run" / "model")
    assert model.config.languages == ("de", "en")
    assert model.config.transformer.source_sees_target
    torch.manual_seed(MASKED_TRANSLATION.seed)
    fresh = TranslationModel.from_pretrained(stand_ins / "xlm").length.state_dict()
    init = TranslationModel.from_pretrained(tmp_path / "paper" / "de-en" / "init").length.state_dict()
    assert fresh["outer.weight"].equal(init["outer.weight"])  # XLM has none, so it is new, but the same in every run
    assert (tmp_path / "paper" / "de-en" / "text" / "train.de").read_text().count("\n") == 60
    assert reproduce([request]) == [report]


def test_a_model_with_fewer_languages_computes_the_same(stand_ins: Path) -> None:
    model = TranslationModel.from_pretrained(stand_ins / "xlm")
    small = keep_languages(model, ("de", "en"))
    source, target = torch.tensor([1, 2]), torch.tensor([0, 1])
    assert torch.equal(model.transformer.languages(source), small.transformer.languages(target))
    assert small.config.languages == ("de", "en")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="through the package datasets: pip install datasets"):
        load_splits("wmt/wmt14", "de-en")


def test_data_sets_that_cannot_be_used(stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_datasets(monkeypatch)
    folder = tmp_path / "wmt" / "de-en"
    folder.mkdir(parents=True)
    sources = {"datasets": {"de-en": str(folder.parent)}, "xlm": {"de-en": str(stand_ins / "xlm")}}
    request = Request("table1", tmp_path / "out", scale="paper", directions=["de-en"], device="cpu", **sources)
    (job,), (full,) = with_paper([request])
    for file, content, message in (
        ("train", '{"text": "Hund"}', "expected rows with a translation into de and en"),
        ("train", '{"translation": {"de": "Hund", "en": "dog"}}', "has no split 'validation'"),
        ("test", "no JSON", "cannot be loaded"),
    ):
        (folder / f"{file}.jsonl").write_text(content + "\n")
        with pytest.raises(InputError, match=message):
            job.run()
        assert not full.data[0].exists()


def test_pairs_of_directions(tmp_path: Path) -> None:
    request = Request("table1", tmp_path, scale="paper", directions=["en-de", "de-en"], device="cpu")
    jobs, full = with_paper([request, replace(request, directions=["en-zh"])])
    assert [job.folder for job in jobs] == [tmp_path / "paper" / pair / "run" for pair in ("de-en", "zh-en")]
    assert [one.models for one in full] == [[str(job.result) for job in jobs]] * 2
    assert with_paper([replace(request, scale="here")]) == ([], [replace(request, scale="here")])
    with pytest.raises(InputError, match="unknown direction 'fr-en'"):
        with_paper([replace(request, directions=["fr-en"])])


def test_the_papers_settings_of_masked_translation() -> None:
    """Its appendix: Adam at 1e-4 after a warm-up of 4,000 steps, clipped at 5."""
    settings = MASKED_TRANSLATION
    assert (settings.learning_rate, settings.warmup, settings.max_grad_norm) == (1e-4, 4000, 5.0)
