"""A damaged store is refused with one line that names the file; nothing hangs, and no memory is asked for first.

Several stores as one: which may go together, and how their directions and corpora are called.
"""

import json
import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyorder.data.store import ParallelText, Store, Stores, open_stores
from anyorder.data.text import TextConfig
from anyorder.data.vocabulary import SPECIALS, Vocabulary
from anyorder.errors import InputError
from anyorder.files import CHECKSUMS
from tests.stores import write_store

ODD = [None, True, -1, 10**30, 1.5, "", "../x", "a\nb", [], [1], {}, {"a": 1}, [[]], 1 << 40]


@pytest.fixture
def folder(store: Store, tmp_path: Path) -> Path:
    """A copy of a store without checksums, as older versions wrote it."""
    shutil.copytree(store.path, tmp_path / "store")
    (tmp_path / "store" / CHECKSUMS).unlink()
    return tmp_path / "store"


def open_all(folder: Path) -> None:
    """Everything that training reads."""
    opened = Store(folder)
    for name in ("train", "dev"):
        split = opened.split(name)
        opened.check_ids(split, len(opened.vocabulary))
        sum(int(side.lengths.sum()) for side in split.sides.values())


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as error:
        open_all(folder)
    assert str(folder) in str(error.value)
    return str(error.value)


def test_a_store_without_checksums_opens(folder: Path) -> None:
    open_all(folder)


@pytest.mark.parametrize(
    "name", ["manifest.json", "train.de.ids.bin", "train.en.ends.npy", "dev.corpus.npy", "tokenizer.json"]
)
def test_one_flipped_bit_is_found(store: Store, tmp_path: Path, name: str) -> None:
    shutil.copytree(store.path, tmp_path / "store")
    content = bytearray((store.path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "store" / name).write_bytes(content)
    message = refused(tmp_path / "store")
    assert name in message
    if name != "tokenizer.json":  # it has a fingerprint of its own
        assert "does not match" in message


def _paths(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    paths = [path] if path else []
    if isinstance(value, dict):
        for key, inner in value.items():
            paths += _paths(inner, (*path, key))
    return paths


USED = ("format", "languages", "text", "dtype", "vocabulary", "splits")


def test_every_field_of_the_manifest_is_checked(folder: Path) -> None:
    """Another type or a missing field is refused, or changes nothing; never anything but an `InputError`."""
    manifest = json.loads((folder / "manifest.json").read_text())
    messages: list[str] = []
    for path in _paths({key: manifest[key] for key in USED}):
        for odd in (*ODD, "missing"):
            altered = json.loads(json.dumps(manifest))
            inner = altered
            for key in path[:-1]:
                inner = inner[key]
            if odd == "missing":
                del inner[path[-1]]
            else:
                inner[path[-1]] = odd
            (folder / "manifest.json").write_text(json.dumps(altered))
            try:
                open_all(folder)
            except InputError as error:
                messages.append(str(error))
    assert len(messages) > 150
    assert all(str(folder) in message or "unknown split" in message for message in messages)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"languages": ["de", "de"]}, "languages: ['de', 'de'], expected different languages"),
        ({"languages": ["de", "xx"]}, "languages: unknown language 'xx'"),
        ({"languages": "de"}, 'languages: "de", expected a list'),
        ({"dtype": "float64"}, "dtype: \"float64\", expected 'uint16' or 'uint32'"),
        ({"format": 2}, "format: 2, expected 1; prepare the store again"),
        ({"text": {"normalize": 1}}, "text.normalize: 1, expected true or false"),
        ({"vocabulary": {"size": 10**30, "fingerprint": "x"}}, "vocabulary.size: 1000"),
        ({"splits": {"../dev": {}}}, "splits.../dev: cannot be the name of a split"),
        ({"splits": []}, "splits: [], expected an object"),
    ],
)
def test_the_field_is_named(folder: Path, change: dict[str, object], message: str) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | change))
    assert f"{folder}/manifest.json: {message}" in refused(folder)


def _saved(array: np.ndarray) -> bytes:
    stream = BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _header(shape: str, dtype: str = "<i8") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


ENDS: dict[str, Callable[[np.ndarray], bytes]] = {
    "decreasing": lambda ends: _saved(ends[::-1].copy()),
    "negative": lambda ends: _saved(ends - ends[0] - 5),
    "wraps": lambda ends: _saved(np.array([5, -(2**63) + 4, int(ends[-1])])),
    "float": lambda ends: _saved(ends.astype(float)),
    "int32": lambda ends: _saved(ends.astype(np.int32)),
    "table": lambda ends: _saved(ends[None]),
    "number": lambda ends: _saved(ends[0]),
    "shorter": lambda ends: _saved(ends[:-1]),
    "longer": lambda ends: _saved(np.append(ends, ends[-1] + 1)),
    "none": lambda ends: _saved(ends[:0]),
    "huge": lambda ends: _header("(10000000000000,)"),
    "absurd": lambda ends: _header(f"({10**30},)"),
    "minus": lambda ends: _header("(-4,)"),
    "many": lambda ends: _header("(99999999, 99999999, 99999999)"),
    "objects": lambda ends: _header("(3,)", "|O"),
    "no items": lambda ends: _header("(-1,)", "|V0"),
    "text": lambda ends: b"not numpy",
    "zip": lambda ends: b"PK\x03\x04" + bytes(40),
    "nested": lambda ends: _header("(" * 90),
    "empty": lambda ends: b"",
    "half": lambda ends: _saved(ends)[:-9],
}


@pytest.mark.parametrize("damage", ENDS)
def test_damaged_ends(folder: Path, damage: str) -> None:
    file = folder / "train.de.ends.npy"
    file.write_bytes(ENDS[damage](np.load(file)))
    message = refused(folder)
    assert "train.de" in message
    assert "\n" not in message


def test_damaged_ids_and_corpora(folder: Path, store: Store) -> None:
    ids, corpus = folder / "train.en.ids.bin", folder / "train.corpus.npy"
    whole, labels = ids.read_bytes(), np.load(corpus)
    for content, message in ((whole[:-2], "expected"), (whole[:-2] + b"\xff\xff", "the id 65535 is not one of")):
        ids.write_bytes(content)
        assert message in refused(folder)
    ids.write_bytes(whole)
    for array, message in (
        (labels[:-1], "it has 599 lines, manifest.json 600"),
        (labels + 1, "corpus 1 is not one of 1"),
        (labels.astype(np.int64), "int64 of shape (600,), expected a row of uint8"),
    ):
        corpus.write_bytes(_saved(array))
        assert message in refused(folder)
    corpus.unlink()
    corpus.mkdir()
    assert "train.corpus.npy: the store is damaged (no such file)" in refused(folder)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_bytes_is_refused_or_harmless(folder: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["manifest.json", "train.de.ends.npy", "train.corpus.npy", "dev.en.ids.bin"]))
    whole = (folder / name).read_bytes()
    at = data.draw(st.integers(0, min(len(whole), 400)))
    cut = data.draw(st.integers(0, 8))
    try:
        (folder / name).write_bytes(whole[:at] + data.draw(st.binary(max_size=8)) + whole[at + cut :])
        open_all(folder)
    except InputError:
        pass
    finally:
        (folder / name).write_bytes(whole)


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
