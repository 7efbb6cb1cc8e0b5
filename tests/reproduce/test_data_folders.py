"""Test sets from text files and from stores are the same sentences."""

from pathlib import Path

import numpy as np
import pytest

from anyorder.decoder import Decoder, load
from anyorder.errors import InputError
from anyorder.reproduce.data_folders import DataFolders, SplitSet
from tests.reproduce.conftest import DEV, Laboratory


@pytest.fixture(scope="module")
def toy(laboratory: Laboratory) -> Decoder:
    return load(laboratory.model, device="cpu")


def dev(toy: Decoder, direction: str, *folders: Path, count: int | None = None) -> SplitSet:
    return DataFolders(folders).split_set(toy.with_task(direction), "dev", count)


@pytest.mark.parametrize("direction", ["de-en", "en-de"])
def test_text_and_store_agree(laboratory: Laboratory, toy: Decoder, direction: str) -> None:
    text, stored = (dev(toy, direction, folder) for folder in (laboratory.text, laboratory.store))
    assert len(text.test_set.examples) == len(stored.test_set.examples) == DEV
    for ours, theirs in zip(text.test_set.examples, stored.test_set.examples, strict=True):
        assert np.array_equal(ours.ids, theirs.ids)
        assert ours.reference_length == theirs.reference_length
    assert text.test_set.references == stored.test_set.references
    assert text.test_set.sizes.tolist() == stored.test_set.sizes.tolist()
    both = dev(toy, direction, laboratory.store, laboratory.text)
    assert both.fingerprint == text.fingerprint


@pytest.mark.parametrize("kind", ["text", "store"])
def test_the_first_sentences(laboratory: Laboratory, toy: Decoder, kind: str) -> None:
    whole, first = (dev(toy, "de-en", getattr(laboratory, kind), count=count) for count in (None, 5))
    assert [one.text for one in first.test_set.examples] == [one.text for one in whole.test_set.examples[:5]]
    assert first.test_set.within() == list(range(5))
    assert first.fingerprint != whole.fingerprint
    with pytest.raises(InputError, match="dev.*has at most 1 subwords"):
        first.test_set.within(1)


def test_a_split_of_its_own_comes_first(tmp_path: Path, toy: Decoder) -> None:
    for name, line in (("dev", "Ein Baum."), ("dev-ende", "Das Haus.")):
        for language in ("de", "en"):
            (tmp_path / f"{name}.{language}").write_text(f"{line}\n")
    assert dev(toy, "en-de", tmp_path).test_set.references == [["Das Haus."]]
    assert dev(toy, "de-en", tmp_path).test_set.references == [["Ein Baum."]]
    assert DataFolders([tmp_path]).find("en-de", "dev") == [tmp_path / f"dev-ende.{code}" for code in ("en", "de")]
    assert DataFolders([tmp_path]).find("en-de", "test") is None


def test_what_is_missing_is_named(laboratory: Laboratory, toy: Decoder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no dev set for de-en"):
        dev(toy, "de-en", tmp_path)
    with pytest.raises(InputError, match="has no prepared store for de-en"):
        DataFolders([laboratory.text]).store("de-en", toy.model)
    with pytest.raises(InputError, match="no such folder"):
        DataFolders([tmp_path / "nowhere"])
