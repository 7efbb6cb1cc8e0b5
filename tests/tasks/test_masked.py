"""The front door for texts with masks: whatever the lines hold, every one that can be filled is."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors

import anyorder
from anyorder import Decoder, InputError, Step, Trajectory
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.search import search
from anyorder.orders.learned import save_order
from anyorder.orders.policy import PolicyConfig, PolicyNetwork
from tests.models.checkpoints import VOCABULARY, network, save, tokenizer

TEXTS = ["w1 [MASK] w3 [MASK]", "[MASK] w12 w2", "w5 w6 [MASK] [MASK] [MASK] w7"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fillers")
    for name in ("BertForMaskedLM", "Qwen3ForCausalLM"):
        save(name, folder / name)
    return folder


@pytest.fixture(scope="module")
def bert(folder: Path) -> Decoder:
    filler = anyorder.load(f"hf:{folder / 'BertForMaskedLM'}", device="cpu")
    assert isinstance(filler, Decoder)
    return filler


@pytest.fixture(scope="module")
def qwen(folder: Path) -> Decoder:
    filler = anyorder.load(folder / "Qwen3ForCausalLM", device="cpu")  # the folder says what it holds
    assert isinstance(filler, Decoder)
    return filler


def test_fills_masks_and_says_where_they_were(bert: Decoder) -> None:
    first, *_ = bert.fill(TEXTS, order="margin")
    assert first.source == TEXTS[0]
    assert first.positions == [1, 3]
    assert first.canvas == ["w1", None, "w3", None]
    assert first.text.split() == ["w1", first.tokens[0], "w3", first.tokens[1]]
    assert sorted(first.steps) == [1, 2]
    assert len(first.logprobs) == 2
    assert (first.task, first.model, first.order, first.length) == ("infill", "BertForMaskedLM", "margin", 2)
    assert "length:given" in first.signature
    again = Trajectory.from_json(first.to_json())
    assert (again.positions, again.canvas, again.text) == (first.positions, first.canvas, first.text)


def test_left_to_right_fills_in_reading_order(bert: Decoder) -> None:
    for trajectory in bert.fill(TEXTS, order="left-to-right"):
        assert trajectory.steps == list(range(1, trajectory.length + 1))


@pytest.mark.parametrize(
    "options",
    [{"schedule": 2}, {"schedule": "threshold:0.5"}, {"beam": 3}, {"revision": "mask-predict:3"}, {"temperature": 1.0}],
    ids=str,
)
def test_every_regime_gives_the_same_in_any_batch(bert: Decoder, options: dict) -> None:
    together = bert.fill(TEXTS, "margin", **options)
    assert all(trajectory.length == trajectory.source.count("[MASK]") for trajectory in together)
    alone = [trajectory for text in TEXTS for trajectory in bert.fill(text, "margin", **options)]
    assert [one.to_json() for one in alone] == [one.to_json() for one in together]


def test_bad_lines_never_stop_the_others(bert: Decoder) -> None:
    long = "w1 " * 70 + "[MASK]"
    texts = ["no mask here", TEXTS[0], "", long, "w1\n\t[MASK]", TEXTS[1]]
    trajectories = bert.fill(texts, "margin")
    notes = [trajectory.note for trajectory in trajectories]
    room = bert.model.max_length
    assert notes == [
        "unmasked source", "", "empty source", f"oversized source (71 tokens, the model has room for {room})",
        "", "",
    ]  # fmt: skip
    assert trajectories[0].text == "no mask here"
    assert trajectories[4].source == texts[4]
    assert [len(trajectory.tokens) for trajectory in trajectories] == [0, 2, 0, 0, 1, 1]
    assert trajectories[1].to_json() == bert.fill(TEXTS[0], "margin")[0].to_json()
    with pytest.raises(InputError, match="input, line 1: has no mask, so there is nothing to fill"):
        bert.fill(texts, "margin", strict=True)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(st.characters(codec=None), max_size=8), min_size=1, max_size=4), st.integers(0, 3))
def test_any_text_gives_one_trajectory(bert: Decoder, pieces: list[str], masked: int) -> None:
    texts = ["[MASK]".join(pieces[: masked + 1]), *pieces]
    trajectories = bert.fill(texts, "left-to-right")
    assert len(trajectories) == len(texts)
    for trajectory in trajectories:
        assert trajectory.source.count("[MASK]") == trajectory.length or trajectory.note
        assert Trajectory.from_json(trajectory.to_json()) == trajectory


def test_the_model_s_own_mask_token_works_too(bert: Decoder, qwen: Decoder) -> None:
    for filler in (bert, qwen):
        own = filler.model.tokenizer.mask_token
        assert filler.fill(f"w1 {own} w3", "margin")[0].text == filler.fill("w1 [MASK] w3", "margin")[0].text


def test_generates_after_the_prompt(qwen: Decoder) -> None:
    [one] = qwen.generate("w1 w2", length=5, order="left-to-right")
    assert (one.source, one.task, one.length) == ("w1 w2", "generate", 5)
    assert one.canvas == ["w1", "w2", None, None, None, None, None]
    assert one.positions == [2, 3, 4, 5, 6]
    assert "length:fixed:5" in one.signature
    [unconditional] = qwen.generate("", length=3, order="uniform")
    assert unconditional.length == 3
    with pytest.raises(InputError, match="length 0"):
        qwen.generate("w1", length=0)


def test_block_causal_models_fill_block_after_block(qwen: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qwen.model, "block_size", 2)
    [one] = Decoder(qwen.model).generate("w1 w2", length=6, order="right-to-left", early_stop=False)
    assert one.steps == [2, 1, 4, 3, 6, 5]
    assert "|schedule:blocks:2|" in one.signature
    for options in ({"schedule": "one"}, {"revision": "gibbs"}):
        [other] = Decoder(qwen.model).generate("w1 w2", length=6, order="right-to-left", **options)
        assert "blocks" not in other.signature
    [left] = Decoder(qwen.model).generate("w1 w2", length=6, order="left-to-right", beam=2)
    assert left.steps == [1, 2, 3, 4, 5, 6]
    with pytest.raises(InputError, match=r"filled in blocks, so the order must be left-to-right"):
        Decoder(qwen.model).generate("w1 w2", length=6, beam=2)


def test_block_causal_models_count_blocks_from_the_start_of_the_text(
    qwen: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three words of the prompt: the first block that is filled holds the third."""
    monkeypatch.setattr(qwen.model, "block_size", 2)
    found = {
        schedule: Decoder(qwen.model).generate("w1 w2 w3", length=4, order="right-to-left", schedule=schedule)[0]
        for schedule in ("auto", "blocks:2", "blocks:2+steps:2", "blocks:2@text", "blocks:2@answer")
    }
    answer = found.pop("blocks:2@answer")
    assert [one.steps for one in found.values()] == [[1, 3, 2, 4]] * 4
    assert answer.steps == [2, 1, 4, 3]
    assert "|schedule:blocks:2@answer|" in answer.signature
    assert found["auto"].signature == found["blocks:2"].signature
    monkeypatch.setattr(qwen.model, "block_size", None)
    assert (
        Decoder(qwen.model).generate("w1 w2 w3", length=4, order="right-to-left", schedule="blocks:2")[0].steps
        == answer.steps
    )


def test_given_words_stay_even_if_the_model_does_not_know_them(bert: Decoder) -> None:
    [one] = bert.fill("elephants [MASK] w3", order="margin")
    assert one.text.split() == ["[UNK]", one.tokens[0], "w3"]


def test_a_text_stops_at_the_first_end_token(qwen: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    only_end = qwen.model.generating()
    only_end.allowed_tokens = np.arange(qwen.model.vocab_size) == VOCABULARY.index("[SEP]")
    monkeypatch.setattr(type(qwen.model), "generating", lambda model, may_end: only_end)
    [ended] = qwen.generate("w1 w2", length=4, order="margin")
    assert ended.tokens == ["[SEP]"] * 4
    assert ended.text == "w1 w2"
    assert "[SEP]" not in qwen.fill("w1 w2 [MASK]", order="margin")[0].tokens


def test_streams_any_number_of_lines(bert: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyorder.decoder.CHUNK", 2)
    read = 0

    def texts() -> object:
        nonlocal read
        for i in range(6):
            read += 1
            yield f"w{i} [MASK]"

    stream = bert.stream(texts(), DecodingConfig("margin"))  # type: ignore[arg-type]
    next(stream)
    assert read == 2
    assert [trajectory.source for trajectory in stream] == [f"w{i} [MASK]" for i in range(1, 6)]


def test_the_first_results_come_first(bert: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few lines are decoded before the first result, then twice as many, within so many batches."""
    sizes: list[int] = []

    def counting(model: object, canvases: list, *rest: object) -> object:
        sizes.append(len(canvases))
        return search(model, canvases, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("anyorder.decoder.search", counting)
    texts = [f"w{i % 20} w1 [MASK]" for i in range(100)]
    config = DecodingConfig("left-to-right", batch_tokens=25)
    stream = bert.stream(iter(texts), config)
    first = next(stream)
    assert sizes == [16]
    streamed = [first, *stream]
    assert sizes == [16, 32, 40, 12]  # 40 canvases of 5 tokens, with delimiters, fill 8 batches of 25
    sizes.clear()
    at_once = list(bert.stream(texts, config, eager=False))
    assert sizes == [100]
    assert [one.to_json() for one in streamed] == [one.to_json() for one in at_once]


def test_steps_can_be_watched(bert: Decoder) -> None:
    seen: list[Step] = []
    trajectories = bert.fill(["nothing", TEXTS[0]], "margin", on_step=seen.append, num_candidates=3)
    assert [step.sentence for step in seen] == [1, 1]
    for step in seen:
        for position, candidate in step.filled.items():
            assert (
                candidate.token == dict(zip(trajectories[1].positions, trajectories[1].tokens, strict=True))[position]
            )
            assert len(step.candidates[position]) == 3


def test_a_learned_order_beside_the_model_is_the_default(bert: Decoder, folder: Path) -> None:
    assert bert.fill(TEXTS[0])[0].order == "margin"
    torch.manual_seed(1)
    network = PolicyNetwork(PolicyConfig(kind="hidden", size=64), bert.model.hidden_size)
    place = folder / "BertForMaskedLM" / "learned" / "default" / "infill"
    save_order(network, place, bert.model, ["infill"])
    [learned] = bert.fill(TEXTS[0])
    assert learned.order == "learned"
    assert np.isfinite(learned.logprobs).all()
    assert bert.generate("w1", length=2)[0].order == "margin"  # it was learned for infilling only
    with pytest.raises(InputError, match="was learned for infill, not for generate"):
        bert.generate("w1", length=2, order=f"learned:{place}")


def test_damaged_weights_are_noticed(folder: Path) -> None:
    filler = anyorder.load(folder / "BertForMaskedLM", device="cpu")
    filler.model.network.bert.embeddings.word_embeddings.weight.data[:] = float("nan")
    with pytest.raises(InputError, match="its weights must be damaged"):
        filler.fill(TEXTS[0], "margin")


def test_tokens_that_the_model_lacks() -> None:
    """As after tokens were added to the tokenizer alone: a note, or an error if they are around every text."""
    bert, words = network("BertForMaskedLM"), tokenizer()
    size = bert.config.vocab_size
    words.add_tokens([f"new{number}" for number in range(size)])
    [filled, unfit] = anyorder.load(bert, words).fill(["w1 [MASK]", f"new{size - 1} [MASK]"], "margin")
    last = len(words) - 1
    assert filled.length == 1
    assert unfit.note == f"foreign tokens in source (has the token {last}, the model has {size} tokens)"
    words._tokenizer.post_processor = processors.TemplateProcessing(
        single=f"new{size - 1} $A", special_tokens=[(f"new{size - 1}", last)]
    )
    with pytest.raises(InputError, match=f"puts the token {last} around texts, and the model has {size} tokens"):
        anyorder.load(bert, words)
