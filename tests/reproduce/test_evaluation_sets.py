"""Test sets from text files and from stores are the same sentences."""

from pathlib import Path

import numpy as np
import pytest

from anyorder.errors import InputError
from anyorder.models.translation import TranslationModel
from anyorder.reproduce.evaluation_sets import DataFolders
from tests.reproduce.conftest import DEV, Laboratory


@pytest.fixture(scope="module")
def toy(laboratory: Laboratory) -> TranslationModel:
    return TranslationModel.from_pretrained(laboratory.model)


@pytest.mark.parametrize("direction", ["de-en", "en-de"])
def test_text_and_store_agree(laboratory: Laboratory, toy: TranslationModel, direction: str) -> None:
    text = DataFolders([laboratory.text]).evaluation_set(direction, "dev", toy)
    stored = DataFolders([laboratory.store]).evaluation_set(direction, "dev", toy)
    assert len(text.sentences) == len(stored.sentences) == DEV
    for ours, theirs in zip(text.sentences, stored.sentences, strict=True):
        assert np.array_equal(ours.ids, theirs.ids)
        assert ours.reference_length == theirs.reference_length
    assert list(text.words.values()) == list(stored.words.values())
    assert text.references == stored.references
    both = DataFolders([laboratory.store, laboratory.text]).evaluation_set(direction, "dev", toy)
    assert both.fingerprint == text.fingerprint != text.first(5).fingerprint


def test_limits_are_inclusive_on_both_sides(laboratory: Laboratory, toy: TranslationModel) -> None:
    data = DataFolders([laboratory.store]).evaluation_set("de-en", "dev", toy)
    longer = [max(len(one.ids), one.reference_length or 0) for one in data.sentences]
    limit = sorted(longer)[5]
    assert data.within(limit) == [i for i, size in enumerate(longer) if size <= limit]
    assert data.within(None) == list(range(DEV))
    with pytest.raises(InputError, match="no pair has at most 1 subwords on both sides"):
        data.within(1)


def test_a_split_of_its_own_comes_first(tmp_path: Path, toy: TranslationModel) -> None:
    for name, line in (("dev", "Ein Baum."), ("dev-ende", "Das Haus.")):
        for language in ("de", "en"):
            (tmp_path / f"{name}.{language}").write_text(f"{line}\n")
    folders = DataFolders([tmp_path])
    assert folders.evaluation_set("en-de", "dev", toy).references == ["Das Haus."]
    assert folders.evaluation_set("de-en", "dev", toy).references == ["Ein Baum."]
    assert folders.has("en-de", "dev")
    assert not folders.has("en-de", "test")


def test_what_is_missing_is_named(laboratory: Laboratory, toy: TranslationModel, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no dev set for de-en"):
        DataFolders([tmp_path]).evaluation_set("de-en", "dev", toy)
    with pytest.raises(InputError, match="has no prepared store for de-en"):
        DataFolders([laboratory.text]).store("de-en", toy)
    with pytest.raises(InputError, match="no such folder"):
        DataFolders([tmp_path / "nowhere"])
