from dataclasses import replace
from itertools import count, islice

import numpy as np
import pytest
import torch
from torch import Tensor

import anyorder
from anyorder.data.vocabulary import Vocabulary
from anyorder.decoder import Decoder
from anyorder.decoding.config import DEFAULT_LENGTH, DecodingConfig, make_length
from anyorder.decoding.revision import Revision, RevisionState
from anyorder.decoding.signature import Signature
from anyorder.decoding.state import Hypothesis
from anyorder.decoding.stepper import Step
from anyorder.errors import InputError
from anyorder.models.native.translation_model import LengthTable
from anyorder.orders import ORDERS, Order, State
from anyorder.tasks.translation import Sentence
from tests.conftest import tiny, toy_pairs

PAIRS = toy_pairs(12, seed=3)
SOURCES, REFERENCES = [source for source, _ in PAIRS], [target for _, target in PAIRS]


@pytest.fixture(scope="module")
def translator(vocabulary: Vocabulary) -> Decoder:
    return Decoder(tiny(vocabulary), "de-en")


def test_trajectories_are_complete(translator: Decoder) -> None:
    trajectories = translator.translate(SOURCES, "de-en", "outer-in:stride=2", length="gold", references=REFERENCES)
    for trajectory, source, reference in zip(trajectories, SOURCES, REFERENCES, strict=True):
        assert trajectory.source == source
        assert trajectory.length == len(translator.model.encode([reference], "en")[0]) == len(trajectory.tokens)
        assert sorted(trajectory.steps) == list(range(1, trajectory.length + 1))
        assert max(trajectory.logprobs) <= 0
        assert trajectory.order == "outer-in:stride=2"
        assert trajectory.task == "de-en"
        assert trajectory.canvas is None
        assert trajectory.writes is None
        signature = Signature.parse(trajectory.signature)
        assert signature["order"] == "outer-in:stride=2"
        assert signature["length"] == "gold"


def test_a_string_is_one_sentence(translator: Decoder) -> None:
    assert translator.translate(SOURCES[0], "de-en") == translator.translate([SOURCES[0]], "de-en")
    assert len(translator.n_best(SOURCES[0], 2)) == 1


def test_an_order_object_will_do(translator: Decoder) -> None:
    class Backwards(Order):
        def scores(self, state: State) -> Tensor:
            return state.positions.float().expand(state.masked.shape)

    by_name = translator.translate(SOURCES, "de-en", "margin")
    assert translator.translate(SOURCES, "de-en", anyorder.orders.make_order("margin")) == by_name
    [unnamed] = translator.translate(SOURCES[0], "de-en", Backwards())
    [named] = translator.translate(SOURCES[0], "de-en", "right-to-left")
    assert unnamed.steps == named.steps
    assert unnamed.order == "Backwards"


def test_a_function_will_do(translator: Decoder) -> None:
    @anyorder.register_order("backwards")
    def backwards(state: State) -> Tensor:
        """Last position first."""
        return state.positions.float().expand(state.masked.shape)

    try:
        [by_function] = translator.translate(SOURCES[0], "de-en", "backwards")
        [by_class] = translator.translate(SOURCES[0], "de-en", "right-to-left")
        assert (by_function.order, by_function.steps) == ("backwards", by_class.steps)
        assert ORDERS["backwards"].__doc__ == "Last position first."
    finally:
        del ORDERS["backwards"]


def test_empty_lines_stay_empty(translator: Decoder) -> None:
    trajectories = translator.translate(["", SOURCES[0], "  "], "de-en")
    assert [trajectory.length == 0 for trajectory in trajectories] == [True, False, True]
    assert trajectories[0].text == ""
    assert trajectories[1] == translator.translate([SOURCES[0]], "de-en")[0]


def test_any_number_of_sentences_in_bounded_memory(translator: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read that is not needed for the next chunk."""
    monkeypatch.setattr("anyorder.decoder.CHUNK", 4)
    taken = count()
    endless = (SOURCES[next(taken) % len(SOURCES)] for _ in count())
    first = list(islice(translator.stream(endless, DecodingConfig("left-to-right")), 6))
    assert next(taken) <= 9
    assert first == translator.translate(SOURCES[:6], "de-en", "left-to-right")


def test_references_must_be_as_many(translator: Decoder) -> None:
    config = DecodingConfig("margin", length="gold")
    for references, message in ((REFERENCES[:5], "more lines than"), ([*REFERENCES, "x"], "fewer lines than")):
        with pytest.raises(InputError, match=message):
            list(translator.stream(SOURCES, config, references))
    with pytest.raises(InputError, match="references are for the length rule gold, not for candidates:4"):
        translator.translate(SOURCES, "de-en", references=REFERENCES)
    with pytest.raises(InputError, match="12 sentences but 5 references"):
        translator.translate(SOURCES, "de-en", length="gold", references=REFERENCES[:5])


def test_candidates_keep_the_likeliest_per_token(translator: Decoder) -> None:
    ids = translator.model.encode(SOURCES, "de")
    tried = translator.model.predict_lengths(ids, "de-en", 3)
    best = translator.translate(SOURCES, "de-en", "left-to-right", length="candidates:3")
    for i, chosen in enumerate(best):
        each = [
            next(
                translator.decode(
                    [Sentence(SOURCES[i], ids[i], length)], DecodingConfig("left-to-right", length="gold")
                )
            )
            for length in tried[i]
        ]
        assert chosen.mean_logprob == pytest.approx(max(one.mean_logprob for one in each), abs=1e-5)
        assert chosen.length in tried[i]


def test_predicted_is_the_first_candidate(translator: Decoder) -> None:
    lengths = translator.model.predict_lengths(translator.model.encode(SOURCES, "de"), "de-en", 1)
    trajectories = translator.translate(SOURCES, "de-en", "left-to-right", length="predicted")
    assert [[trajectory.length] for trajectory in trajectories] == lengths


def test_one_default_length(translator: Decoder) -> None:
    assert DEFAULT_LENGTH == DecodingConfig().length == "candidates:4"
    assert translator.translate(SOURCES, "de-en") == translator.translate(SOURCES, "de-en", length="candidates:4")


def test_the_table_of_counts(vocabulary: Vocabulary) -> None:
    model = tiny(vocabulary)
    with pytest.raises(InputError, match="needs a model with a table of lengths"):
        Decoder(model).translate(SOURCES, "de-en", length="table:2")
    model.length_table = LengthTable({"de-en": {10: [12, 11, 9]}})
    found = make_length("table:2").candidates(model, [np.arange(10), np.arange(8)], "de-en", None)
    assert found == [[12, 11], [10, 9]]


def test_the_seed_matters_to_uniform_alone(translator: Decoder) -> None:
    def steps(order: str, seed: int) -> list[list[int]]:
        return [trajectory.steps for trajectory in translator.translate(SOURCES[:6], "de-en", order, seed=seed)]

    assert steps("uniform", 1) == steps("uniform", 1)
    assert steps("uniform", 1) != steps("uniform", 2)
    assert steps("margin", 1) == steps("margin", 2)


def test_too_long_a_sentence_is_split_or_truncated(translator: Decoder) -> None:
    sources = [SOURCES[0], "Hund " * 80, "Hund " * 40 + ". " + "Hund " * 30, "H\ud800nd"]
    alone, truncated, split, surrogate = translator.translate(sources, "de-en", "uniform", length="fixed:5")
    assert [alone] == translator.translate(SOURCES[:1], "de-en", "uniform", length="fixed:5")
    assert (truncated.note, truncated.length) == ("source truncated to 62 of 80 subwords", 5)
    assert (split.note, split.length) == ("source split into 2 parts", 10)
    assert (surrogate.source, surrogate.note) == ("H\ufffdnd", "invalid UTF-8 in source became U+FFFD")
    for trajectory in (truncated, split, surrogate):
        assert anyorder.Trajectory.from_json(trajectory.to_json()) == trajectory
    assert '"note"' not in alone.to_json()
    with pytest.raises(InputError, match=r"input, line 2: 80 subwords, the model has room for 62"):
        translator.translate(sources, "de-en", strict=True)
    with pytest.raises(InputError, match=r"the text has 80 subwords; the model has room for 62"):
        translator.canvas(sources[1], length=3)


def test_no_word_goes_on_in_the_next_part(translator: Decoder) -> None:
    ids = translator.model.vocabulary.encode(["Hund"])[0]
    piece = next(i for i in range(ids[0]) if translator.model.to_tokens([i])[0].endswith("@@"))
    part = Hypothesis(np.array([*ids, piece]), np.arange(1, len(ids) + 2), np.zeros(len(ids) + 1))
    decoding = translator.bind(DecodingConfig("margin"))
    trajectory = translator.task.trajectory(translator.model, Sentence("", np.array(ids)), [part, part], decoding)
    [unfinished] = translator.model.to_tokens([piece])
    assert trajectory.words == ["Hund", unfinished.removesuffix("@@")] * 2
    last = len(ids)
    written = replace(part, writes=[(last, 1, piece, -1.0), (last, 2, piece, -2.0)])
    revised = translator.task.trajectory(translator.model, Sentence("", np.array(ids)), [written, written], decoding)
    assert revised.tokens == trajectory.tokens
    assert revised.writes is not None
    assert [write.token for write in revised.writes] == [trajectory.tokens[last]] * 2 + [unfinished] * 2


@pytest.mark.parametrize("name", ["golden", "gold:2", "candidates:0", "candidates:x", "table:-1", ""])
def test_wrong_lengths(name: str) -> None:
    with pytest.raises(InputError, match="unknown length"):
        make_length(name)


def test_gold_needs_references(translator: Decoder) -> None:
    with pytest.raises(InputError, match="needs references"):
        translator.translate(SOURCES, "de-en", length="gold")
    with pytest.raises(InputError, match="12 sentences but 1 references"):
        translator.translate(SOURCES, "de-en", length="gold", references=REFERENCES[:1])


def test_a_given_length(translator: Decoder) -> None:
    trajectories = translator.translate(SOURCES, "de-en", "left-to-right", length="fixed:7")
    assert {trajectory.length for trajectory in trajectories} == {7}
    assert "|length:fixed:7|" in trajectories[0].signature
    with pytest.raises(InputError, match="length 63: the model has room for 62 subwords"):
        translator.translate(SOURCES, "de-en", length="fixed:63")
    for name in ("fixed", "fixed:", "fixed:0", "fixed:²", "candidates:²"):
        with pytest.raises(InputError, match="unknown length"):
            make_length(name)


def test_wrong_directions(translator: Decoder) -> None:
    with pytest.raises(InputError, match="this model translates de-en, en-de"):
        translator.translate(SOURCES, "de-fr")


@pytest.mark.parametrize("schedule", ["one", 3, "threshold:0.2"])
def test_a_callback_is_told_every_step(translator: Decoder, schedule: str | int) -> None:
    steps: list[Step] = []
    trajectories = translator.translate(
        SOURCES[:3], "de-en", "margin", schedule=schedule, length="predicted", on_step=steps.append, num_candidates=3
    )
    assert trajectories == translator.translate(SOURCES[:3], "de-en", "margin", schedule=schedule, length="predicted")
    for number, trajectory in enumerate(trajectories):
        own = [step for step in steps if step.sentence == number]
        assert [step.step for step in own] == list(range(1, max(trajectory.steps) + 1))
        still_masked = set(range(trajectory.length))
        for step in own:
            assert step.length == trajectory.length
            assert set(step.candidates) == still_masked
            for position, written in step.filled.items():
                assert written.token == trajectory.tokens[position] == step.candidates[position][0].token
                assert trajectory.steps[position] == step.step
                assert np.log(written.probability) == pytest.approx(trajectory.logprobs[position], abs=1e-5)
                assert len(step.candidates[position]) == 3
            still_masked -= set(step.filled)
        assert not still_masked


class RedoFirst(Revision):
    """Masks position 0 again after the second step."""

    name = "redo-first"

    def last_step(self, length: int) -> int:
        return 2

    def remask(self, state: RevisionState) -> Tensor:
        again = torch.zeros_like(state.filled)
        again[:, 0] = state.step == 2
        return again


def test_a_revised_trajectory_holds_every_write(translator: Decoder) -> None:
    [trajectory] = translator.translate(SOURCES[0], "de-en", "left-to-right", revision=RedoFirst(), length="predicted")
    assert trajectory.writes is not None
    assert [(write.position, write.step) for write in trajectory.writes[:3]] == [(0, 1), (1, 2), (0, 3)]
    assert trajectory.steps[:3] == [3, 2, 4]
    assert len(trajectory.writes) == trajectory.length + 1
    assert Signature.parse(trajectory.signature)["revision"] == "redo-first"
    assert anyorder.Trajectory.from_json(trajectory.to_json()) == trajectory


def test_reprs_say_what_it_is(translator: Decoder) -> None:
    assert repr(translator) == "Decoder('', task='de-en', device='cpu')"
    [trajectory] = translator.translate(SOURCES[0], "de-en", "margin")
    assert repr(trajectory).startswith("Trajectory('")
    assert "order='margin'" in repr(trajectory)


def test_public_names_are_there() -> None:
    assert set(anyorder.__all__) <= set(dir(anyorder))
    for name in anyorder.__all__:
        assert getattr(anyorder, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = anyorder.nothing


def test_probabilities_that_are_not_numbers(vocabulary: Vocabulary) -> None:
    """Weights may be finite and yet too large."""
    model = tiny(vocabulary)
    with torch.no_grad():
        model.transformer.tokens.weight.mul_(1e38)
    with pytest.raises(InputError, match="its probabilities are not numbers"):
        Decoder(model).translate(["Hund"], "de-en", "margin", length="fixed:2")


def test_a_decoder_has_a_task(translator: Decoder) -> None:
    other = translator.with_task("en-de")
    assert (translator.task.name, other.task.name, other.model) == ("de-en", "en-de", translator.model)
    with pytest.raises(InputError, match="direction is missing:  translates de-en, en-de"):
        _ = translator.with_task(None).task
    with pytest.raises(InputError, match="is a translation model, which does not fill masks"):
        translator.fill("w1 [MASK]")
    with pytest.raises(InputError, match="does not say which puzzles it solves"):
        translator.solve("0000")
    with pytest.raises(InputError, match="unknown task 'sudoku'"):
        translator.with_task("sudoku")
    with pytest.raises(InputError, match="Linear: is not a model to decode with"):
        Decoder(torch.nn.Linear(1, 1))


def test_progress_is_shown_on_request(translator: Decoder, capsys: pytest.CaptureFixture[str]) -> None:
    quiet = translator.translate(SOURCES[:2], "de-en", "margin")
    assert capsys.readouterr().err == ""
    assert translator.translate(SOURCES[:2], "de-en", "margin", progress=True) == quiet
