"""`anyorder prepare`: how pairs are held out from the command line and from a recipe."""

from pathlib import Path

from anyorder.cli.prepare import _amounts, prepare
from anyorder.data.store import Store
from tests.conftest import toy_pairs, write_pairs


def test_hold_out_names_splits_corpora_and_numbers() -> None:
    assert _amounts("") == {}
    assert _amounts("selection=news:1000") == {"selection": {"news": 1000}}
    spec = "order=news-devsets:5000, order=europarl:5000,selection=news-devsets:1000"
    expected = {"order": {"news-devsets": 5000, "europarl": 5000}, "selection": {"news-devsets": 1000}}
    assert list(_amounts(spec).items()) == list(expected.items())


def test_a_selection_split(tmp_path: Path) -> None:
    pattern = write_pairs(tmp_path, "train", toy_pairs(50, seed=2))
    prepare("de,en", tmp_path / "store", f"news={pattern}", hold_out="selection=news:8", vocabulary=110, workers=1)
    store = Store(tmp_path / "store")
    assert (len(store.split("train")), len(store.split("selection"))) == (42, 8)
