"""Token ids in and out, as Transformers' `generate` takes and returns them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig

import anyorder
from anyorder import Decoder, InputError
from anyorder.tasks.tensors import GeneratedIds
from tests.conftest import tiny
from tests.tasks.test_prompts import BOS, EOS, MASK, byte_network, byte_tokenizer

PAD = 0
TEXTS = ["a", "What is it?\n", "", "b" * 9, "<mask>c"]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return anyorder.load(byte_network(), byte_tokenizer())


def padded(decoder: Decoder, side: str) -> dict[str, Tensor]:
    tokenizer = decoder.model.tokenizer
    return dict(tokenizer(TEXTS, return_tensors="pt", padding=True, padding_side=side, return_token_type_ids=False))


def ended(ids: list[int], ends: set[int]) -> list[int]:
    place = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    return ids[: place + 1]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("order", ["margin", "uniform"])
def test_rows_are_what_generate_gives_for_the_same_ids(decoder: Decoder, side: str, order: str) -> None:
    inputs = padded(decoder, side)
    out = decoder.generate_ids(**inputs, max_new_tokens=7, order=order, schedule=2)
    assert isinstance(out, Tensor)
    prompts = [ids[mask.bool()].tolist() for ids, mask in zip(*inputs.values(), strict=True)]
    width = inputs["input_ids"].shape[1]
    assert out[:, :width].equal(inputs["input_ids"])
    runs = decoder.generate(prompts, 7, order, schedule=2)
    new = [ended(decoder.model.tokenizer.convert_tokens_to_ids(one.tokens), {EOS}) for one in runs]
    assert out.shape[1] == width + max(map(len, new))
    assert out[:, width:].tolist() == [ids + [PAD] * (out.shape[1] - width - len(ids)) for ids in new]


def test_ids_with_the_delimiter_are_what_generate_gives_for_the_text(decoder: Decoder) -> None:
    """Which order and schedule fill what does not depend on whether the delimiter is part of the prompt."""
    inputs = decoder.model.tokenizer("What?\n", return_tensors="pt")
    assert inputs["input_ids"][0, 0] == BOS
    out = decoder.generate_ids(inputs["input_ids"], max_new_tokens=6, order="max-prob")
    [one] = decoder.generate("What?\n", 6, "max-prob")
    new = ended(decoder.model.tokenizer.convert_tokens_to_ids(one.tokens), {EOS})
    assert out[0, inputs["input_ids"].shape[1] :].tolist() == new


def test_no_row_depends_on_the_others(decoder: Decoder) -> None:
    inputs, options = padded(decoder, "left"), {"max_new_tokens": 6, "do_sample": True, "top_p": 0.9, "seed": 3}
    together = decoder.generate_ids(**inputs, return_dict_in_generate=True, **options)
    assert isinstance(together, GeneratedIds)
    width = inputs["input_ids"].shape[1]
    for row in range(len(TEXTS)):
        ids = inputs["input_ids"][row][inputs["attention_mask"][row].bool()]
        alone = decoder.generate_ids(ids[None], return_dict_in_generate=True, **options)
        assert isinstance(alone, GeneratedIds)
        count = alone.steps.shape[1]
        assert together.sequences[row, width : width + count].equal(alone.sequences[0, len(ids) :])
        assert together.steps[row, :count].equal(alone.steps[0])
        assert together.logprobs[row, :count].equal(alone.logprobs[0])
        assert not together.steps[row, count:].any()
    other = decoder.generate_ids(**inputs, **{**options, "seed": 4})
    assert not torch.equal(other[:, width:], together.sequences[:, width:])


def test_a_mask_in_a_prompt_stays(decoder: Decoder) -> None:
    out = decoder.generate_ids(torch.tensor([[BOS, MASK, 70]]), max_new_tokens=2)
    assert out[0, :3].tolist() == [BOS, MASK, 70]
    assert not (out[0, 3:] == MASK).any()


def test_a_generation_config_says_the_same(decoder: Decoder) -> None:
    inputs = padded(decoder, "left")
    expected = decoder.generate_ids(**inputs, max_new_tokens=5)
    width = inputs["input_ids"].shape[1]
    for config in (
        GenerationConfig(
            max_new_tokens=5, temperature=0.7, top_p=0.5, use_cache=True, num_beams=1, repetition_penalty=1.0
        ),
        GenerationConfig(max_length=width + 5, eos_token_id=EOS, pad_token_id=PAD, bos_token_id=BOS),
        GenerationConfig(max_new_tokens=9),
    ):
        given = {"max_new_tokens": 5} if config.max_new_tokens == 9 else {}
        assert torch.equal(decoder.generate_ids(**inputs, generation_config=config, **given), expected)
    beam = decoder.generate_ids(**inputs, max_new_tokens=5, num_beams=3, order="left-to-right")
    prompts = [ids[mask.bool()].tolist() for ids, mask in zip(*inputs.values(), strict=True)]
    runs = decoder.generate(prompts, 5, "left-to-right", beam=3)
    new = [ended(decoder.model.tokenizer.convert_tokens_to_ids(one.tokens), {EOS}) for one in runs]
    assert [row[: len(ids)] for row, ids in zip(beam[:, width:].tolist(), new, strict=True)] == new


def test_end_tokens_of_ones_own(decoder: Decoder) -> None:
    """A token that is common in the output ends a row; what follows is padding."""
    ids = torch.tensor([[BOS, 70, 71], [BOS, 80, 81]])
    free = decoder.generate_ids(ids, max_new_tokens=8, order="left-to-right")
    end, padding = int(free[0, 4]), 9
    out = decoder.generate_ids(ids, max_new_tokens=8, order="left-to-right", eos_token_id=[end], pad_token_id=padding)
    for row in out[:, 3:].tolist():
        if end in row:
            assert set(row[row.index(end) + 1 :]) <= {padding}
    assert out[0, 3:5].tolist() == free[0, 3:5].tolist()


@pytest.mark.parametrize(
    ("settings", "field", "message"),
    [
        ({}, "max_new_tokens", "is missing"),
        ({"max_new_tokens": 0}, "max_new_tokens", "0"),
        ({"max_length": 2}, "max_length", "2: the prompts have 3 tokens already"),
        ({"max_new_tokens": 2, "num_return_sequences": 2}, "num_return_sequences", "2: is not supported"),
        ({"max_new_tokens": 2, "stop_strings": ["a"]}, "stop_strings", "is not supported"),
        ({"max_new_tokens": 2, "min_new_tokens": 2}, "min_new_tokens", "2: is not supported"),
        ({"max_new_tokens": 2, "steps": 2}, "steps", "2: is not supported"),
        ({"max_new_tokens": 2, "eos_token_id": 10**6}, "eos_token_id", "1000000"),
        ({"max_new_tokens": 2, "do_sample": True, "temperature": -1.0}, "temperature", "-1"),
        ({"max_new_tokens": 2, "do_sample": True, "temperature": "hot"}, "temperature", "hot: expected a number"),
        ({"max_new_tokens": 2.5}, "max_new_tokens", "2.5: expected a whole number"),
        ({"max_length": "9"}, "max_length", "9: expected a whole number"),
        ({"max_new_tokens": 2, "eos_token_id": "a"}, "eos_token_id", "a: expected a whole number"),
        ({"max_new_tokens": 2, "pad_token_id": [0]}, "pad_token_id", r"\[0\]: expected a whole number"),
        ({"max_new_tokens": 2, "stop_ids": torch.ones(2)}, "stop_ids", "is not supported"),
        ({"max_new_tokens": 2, "attention_mask": [[1, 1]]}, "attention_mask", r"\(1, 2\), expected"),
        ({"max_new_tokens": 2, "attention_mask": [[1, 0, 1]]}, "attention_mask", "row 0: expected padding"),
        ({"max_new_tokens": 2, "attention_mask": [[0, 1, 0]]}, "attention_mask", "row 0: expected padding"),
    ],
)
def test_what_cannot_be_done_is_named(decoder: Decoder, settings: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        decoder.generate_ids(torch.tensor([[BOS, 70, 71]]), **settings)
    assert error.value.field == field


def test_wrong_prompts(decoder: Decoder, vocabulary: Any) -> None:
    wrong: list[Any] = [torch.tensor([BOS, 70]), torch.tensor(BOS), torch.ones(1, 2), [[BOS, 70]]]
    for ids in wrong:
        with pytest.raises(InputError, match="expected a tensor of whole numbers of shape"):
            decoder.generate_ids(ids, max_new_tokens=2)
    with pytest.raises(InputError, match="400 tokens"):
        decoder.generate_ids(torch.full((1, 398), 70), max_new_tokens=2)
    with pytest.raises(InputError, match="is not a token"):
        decoder.generate_ids(torch.full((1, 3), 10**5), max_new_tokens=2)
    with pytest.raises(InputError, match="is a translation model"):
        Decoder(tiny(vocabulary), "de-en").generate_ids(torch.full((1, 3), 7), max_new_tokens=2)
