"""A small model with its data: two directions, a store, and the same test sets as text."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from anyorder.data.store import Store
from anyorder.models.native.length import LengthTable
from anyorder.reproduce.plan import Request
from tests.conftest import tiny, toy_pairs, write_pairs

DEV = 100


@dataclass(frozen=True)
class Laboratory:
    model: Path
    store: Path
    text: Path

    def small_table(self, out: Path, sentences: int) -> Request:
        """A heuristic row and a learned one of two seeds, one direction, one length rule."""
        return Request(
            "table2", out, [str(self.model)], [self.store, self.text], ["de-en"], ["gold"],
            ["margin", "learned:hidden"], seeds=2, steps=1, sentences=sentences, samples=20, device="cpu",
        )  # fmt: skip


@pytest.fixture(scope="session")
def laboratory(tmp_path_factory: pytest.TempPathFactory, corpus: Path, store: Store) -> Laboratory:
    folder = tmp_path_factory.mktemp("laboratory")
    text = folder / "text" / "de-en"
    text.mkdir(parents=True)
    for language in ("de", "en"):
        shutil.copy(corpus / f"dev.{language}", text)
    write_pairs(text, "test", toy_pairs(20, seed=12))
    model = tiny(store.vocabulary, hidden_size=64, num_layers=1)
    german, english = (store.split("train").sides[language].lengths for language in ("de", "en"))
    model.length_table = LengthTable.count({"de-en": (german, english), "en-de": (english, german)})
    model.save_pretrained(folder / "toy")
    return Laboratory(folder / "toy", store.path, folder / "text")
