import numpy as np
import pytest

import anyorder
from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.lengths import make_length
from anyorder.errors import InputError
from anyorder.models.length import LengthTable
from anyorder.translator import Translator
from tests.conftest import tiny, toy_pairs

PAIRS = toy_pairs(12, seed=3)
SOURCES, REFERENCES = [source for source, _ in PAIRS], [target for _, target in PAIRS]


@pytest.fixture(scope="module")
def translator(vocabulary: Vocabulary) -> Translator:
    return Translator(tiny(vocabulary))


def test_trajectories_are_complete(translator: Translator) -> None:
    made = translator.translate(SOURCES, "de-en", "outer-in:stride=2", length="gold", references=REFERENCES)
    for trajectory, source, reference in zip(made, SOURCES, REFERENCES, strict=True):
        assert trajectory.source == source
        assert trajectory.length == len(translator.encode([reference], "en")[0]) == len(trajectory.tokens)
        assert sorted(trajectory.steps) == list(range(1, trajectory.length + 1))
        assert max(trajectory.logprobs) <= 0
        assert trajectory.order == "outer-in:stride=2"
        assert "|length:gold|" in trajectory.signature


def test_an_order_object_will_do(translator: Translator) -> None:
    by_name = translator.translate(SOURCES, "de-en", "margin")
    assert translator.translate(SOURCES, "de-en", anyorder.orders.make_order("margin")) == by_name


def test_empty_lines_stay_empty(translator: Translator) -> None:
    made = translator.translate(["", SOURCES[0], "  "], "de-en")
    assert [trajectory.length == 0 for trajectory in made] == [True, False, True]
    assert made[0].text == ""
    assert made[1] == translator.translate([SOURCES[0]], "de-en")[0]


def test_candidates_keep_the_likeliest_per_token(translator: Translator) -> None:
    ids = translator.encode(SOURCES, "de")
    tried = translator.model.predict_lengths(ids, "de-en", 3)
    best = translator.translate(SOURCES, "de-en", "left-to-right", length="candidates:3")
    for i, chosen in enumerate(best):
        each = [
            translator.decode(
                [SOURCES[i]], [ids[i]], "de-en", DecodingConfig.of("left-to-right", length="gold"), [length]
            )[0]
            for length in tried[i]
        ]
        assert chosen.mean_logprob == pytest.approx(max(one.mean_logprob for one in each), abs=1e-5)
        assert chosen.length in tried[i]


def test_predicted_is_the_first_candidate(translator: Translator) -> None:
    lengths = translator.model.predict_lengths(translator.encode(SOURCES, "de"), "de-en", 1)
    made = translator.translate(SOURCES, "de-en", "left-to-right")
    assert [[trajectory.length] for trajectory in made] == lengths


def test_the_table_of_counts(vocabulary: Vocabulary) -> None:
    model = tiny(vocabulary)
    with pytest.raises(InputError, match="no table of lengths"):
        Translator(model).translate(SOURCES, "de-en", length="table:2")
    model.length_table = LengthTable({"de-en": {10: [12, 11, 9]}})
    found = make_length("table:2").candidates(model, [np.arange(10), np.arange(8)], "de-en", None)
    assert found == [[12, 11], [10, 9]]


def test_the_seed_matters_to_uniform_alone(translator: Translator) -> None:
    def steps(order: str, seed: int) -> list[list[int]]:
        return [trajectory.steps for trajectory in translator.translate(SOURCES, "de-en", order, seed=seed)]

    assert steps("uniform", 1) == steps("uniform", 1)
    assert steps("uniform", 1) != steps("uniform", 2)
    assert steps("margin", 1) == steps("margin", 2)


def test_too_long_a_sentence_is_named(translator: Translator) -> None:
    with pytest.raises(InputError, match=r"input, line 2: \d+ subwords, the model has room for 62"):
        translator.translate([SOURCES[0], "Hund " * 80], "de-en")


@pytest.mark.parametrize("name", ["golden", "gold:2", "candidates:0", "candidates:x", "table:-1", ""])
def test_wrong_lengths(name: str) -> None:
    with pytest.raises(InputError, match="unknown length"):
        make_length(name)


def test_gold_needs_references(translator: Translator) -> None:
    with pytest.raises(InputError, match="needs references"):
        translator.translate(SOURCES, "de-en", length="gold")
    with pytest.raises(InputError, match="12 sentences but 1 references"):
        translator.translate(SOURCES, "de-en", length="gold", references=REFERENCES[:1])


def test_a_given_length(translator: Translator) -> None:
    made = translator.translate(SOURCES, "de-en", "left-to-right", length="fixed:7")
    assert {trajectory.length for trajectory in made} == {7}
    assert "|length:fixed:7|" in made[0].signature
    with pytest.raises(InputError, match="length 63: the model has room for 62 subwords"):
        translator.translate(SOURCES, "de-en", length="fixed:63")
    for name in ("fixed", "fixed:", "fixed:0", "fixed:²", "candidates:²"):
        with pytest.raises(InputError, match="unknown length"):
            make_length(name)
