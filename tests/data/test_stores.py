"""Several stores as one: which may go together, and how their directions and corpora are called."""

from pathlib import Path

import numpy as np
import pytest

from anyorder.data.store import Store
from anyorder.data.stores import ParallelText, Stores, open_stores
from anyorder.data.text import TextConfig
from anyorder.data.vocabulary import SPECIALS, Vocabulary
from anyorder.errors import InputError
from tests.stores import write_store


@pytest.fixture(scope="module")
def stores(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    folder = tmp_path_factory.mktemp("stores")
    corpora = {"de-en": ("news", "web"), "ro-en": ("news", "bible"), "zh-en": ("web",)}
    return open_stores(
        [write_store(folder / pair, vocabulary, {"train": 20}, names) for pair, names in corpora.items()]
    )


def test_languages_and_directions_are_those_of_all_stores(stores: Stores) -> None:
    assert stores.languages == ("de", "en", "ro", "zh")
    assert stores.directions == {"de-en": 0, "en-de": 0, "ro-en": 1, "en-ro": 1, "zh-en": 2, "en-zh": 2}
    assert stores.choose_directions(["en-zh", "de-en"]) == {"de-en": 0, "en-zh": 2}
    with pytest.raises(InputError, match="unknown direction 'de-ro'"):
        stores.choose_directions(["de-ro"])


def test_pairs_lie_end_to_end(stores: Stores) -> None:
    text = ParallelText(stores, tuple(store.split("train") for store in stores))
    assert len(text) == 60
    for number in (0, 19, 20, 59):
        store, row = stores[text.store[number]], text.row[number]
        side = text.side(text.store[number], "en")
        assert text.sides[side][row].tolist() == store.split("train").sides["en"][row].tolist()
        name = text.corpora[text.corpus[number]]
        own = store.split("train")
        assert name == f"{'-'.join(store.languages)}/{own.corpora[own.corpus[row]]}"  # type: ignore[index]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"news": 3}, {"de-en/news": 3, "ro-en/news": 3}),
        ({"ro-en/news": 3}, {"ro-en/news": 3}),
        ({"ro-en/news": 3, "news": 2, "bible": 0}, {"de-en/news": 2, "ro-en/news": 3, "ro-en/bible": 0}),
    ],
)
def test_a_corpus_is_named_in_all_stores_or_in_one(
    stores: Stores, given: dict[str, float], expected: dict[str, float]
) -> None:
    text = ParallelText(stores, tuple(store.split("train") for store in stores))
    assert text.by_corpus(given) == expected
    with pytest.raises(InputError, match="unknown corpus 'ro-en/web'"):
        text.by_corpus({"ro-en/web": 1})


def test_one_store_has_plain_names(stores: Stores) -> None:
    text = ParallelText(open_stores(stores[1]), (stores[1].split("train"),))
    assert text.corpora == ["news", "bible"]
    assert text.by_corpus({"ro-en/news": 2, "bible": 1}) == {"news": 2, "bible": 1}
    assert np.array_equal(text.corpus, stores[1].split("train").corpus)  # type: ignore[arg-type]


def test_stores_must_fit_together(stores: Stores, vocabulary: Vocabulary, tmp_path: Path) -> None:
    pieces = [*SPECIALS, *(f"w{i}</w>" for i in range(len(vocabulary)))]
    other = Vocabulary.from_merges({piece: i for i, piece in enumerate(pieces)}, [])
    with pytest.raises(InputError, match="another vocabulary than .*: prepare both with the same tokenizer"):
        open_stores([stores[0], write_store(tmp_path / "fr-en", other, {"train": 3})])
    with pytest.raises(InputError, match="other text rules"):
        open_stores(
            [stores[0], write_store(tmp_path / "it-en", vocabulary, {"train": 3}, text=TextConfig(normalize=False))]
        )
    again = open_stores([stores[0], Store(write_store(tmp_path / "en-de", vocabulary, {"train": 3}))])
    with pytest.raises(InputError, match="both hold en-de: prepare one store"):
        again.directions  # noqa: B018
    with pytest.raises(InputError, match="data names no store"):
        open_stores([])
