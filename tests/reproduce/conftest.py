"""A small model with its data: two directions, a store, and the same test sets as text."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from anyorder.data.store import Store
from anyorder.decoder import Decoder
from anyorder.decoding.trajectory import Trajectory
from anyorder.evaluation.test_set import TestSet
from anyorder.models.native.translation_model import LengthTable, TranslationModel
from anyorder.reproduce import autoregressive
from anyorder.reproduce.data_folders import SplitSet
from anyorder.reproduce.reproduce import Request
from anyorder.tasks.translation import Sentence
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


def decode_with_baseline(
    folder: Path, model: TranslationModel, direction: str, sentences: Sequence[Sentence], beam: int
) -> list[Trajectory]:
    """What the rows of a table for an autoregressive model decode."""
    test_set = TestSet(Decoder(model, direction), sentences, np.ones(len(sentences)), lambda indices: [])
    data = SplitSet(direction, "test", test_set)
    return autoregressive.decode_with_baseline(folder, data, beam, range(len(sentences)), lambda count: None)
