"""Other people's masked models decode as the plain Transformers classes do, one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast
from transformers.pytorch_utils import Conv1D

from anyorder.decoding.engine import decode
from anyorder.decoding.schedules import make_schedule
from anyorder.models.base import Canvas
from anyorder.models.hf.pretrained import TransformersModel, load_transformers, wrap_transformers
from anyorder.models.native.attention import QueryPositions, Segments
from anyorder.orders import ORDERS, make_order
from tests.models.checkpoints import (
    CLASSES,
    DECODERS,
    ENCODERS,
    MASK,
    PAD,
    POSITIONS,
    VOCABULARY,
    network,
    save,
    tokenizer,
)

ALLOWED = {i for i, token in enumerate(VOCABULARY) if token.startswith("w")}
HEURISTICS = sorted(set(ORDERS) - {"learned"})
TEXTS = [
    "w1 [MASK] w3 [MASK] [MASK]",
    "[MASK] w12",
    "w5 w6 w7 [MASK] " + "w8 " * 10,
    "w4 [MASK] " + "w3 " * 14,
    "[MASK] [MASK] w9 [MASK]",
]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, TransformersModel]]:
    """The plain network and the loaded model of every class."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return {name: (save(name, folder / name), load_transformers(folder / name)) for name in CLASSES}


def canvases(model: TransformersModel, seed: int = 1) -> list[Canvas]:
    return [Canvas(tokens, key=seed + i) for i, tokens in enumerate(model.encode(TEXTS))]


def reference_logits(name: str, network: Any, tokens: list[int], padding: int = 5) -> Tensor:
    """Logits of one text by the plain class, padded on the right: (T, vocab_size)."""
    before, after = ([VOCABULARY.index("[CLS]")], [VOCABULARY.index("[SEP]")]) if name in ENCODERS else ([], [])
    ids = torch.tensor([[*before, *tokens, *after, *[PAD] * padding]])
    real = torch.arange(ids.shape[1]) < ids.shape[1] - padding
    with torch.inference_mode():
        logits = network(input_ids=ids, attention_mask=real.long()[None]).logits[0]
    if name in ("LlamaForCausalLM", "Qwen2ForCausalLM", "GPT2LMHeadModel"):  # position i is predicted at i - 1
        logits = torch.cat([logits[:1], logits[:-1]])
    return logits[len(before) : len(before) + len(tokens)]


def reference_margin(name: str, network: Any, tokens: np.ndarray) -> tuple[list[int], list[int]]:
    """Ids and steps of the order `margin`, written as plainly as possible."""
    ids, steps = tokens.tolist(), [0] * len(tokens)
    for step in range(1, ids.count(MASK) + 1):
        probabilities = reference_logits(name, network, ids).softmax(-1)
        ranked = []
        for position in (i for i, token in enumerate(ids) if token == MASK):
            best = sorted(ALLOWED, key=lambda token, at=position: -float(probabilities[at, token]))
            margin = probabilities[position, best[0]] - probabilities[position, best[1]]
            ranked.append((float(margin), -position, best[0]))
        _, position, token = max(ranked)
        position = -position
        ids[position], steps[position] = token, step
    return ids, steps


@pytest.mark.parametrize("name", CLASSES)
def test_equals_the_plain_class_one_by_one(name: str, checkpoints: dict[str, tuple[Any, TransformersModel]]) -> None:
    network, model = checkpoints[name]
    filled = decode(model, canvases(model), make_order("margin"), make_schedule("one"))
    for canvas, hypothesis in zip(canvases(model), filled, strict=True):
        ids, steps = reference_margin(name, network, canvas.tokens)
        assert (hypothesis.ids.tolist(), hypothesis.steps.tolist()) == (ids, steps)


@pytest.mark.parametrize("name", CLASSES)
def test_every_order_fills_every_mask(name: str, checkpoints: dict[str, tuple[Any, TransformersModel]]) -> None:
    _, model = checkpoints[name]
    for order in HEURISTICS:
        for canvas, hypothesis in zip(
            canvases(model),
            decode(model, canvases(model), make_order(order), make_schedule("one")),
            strict=True,
        ):
            masked = canvas.tokens == MASK
            assert set(hypothesis.ids[masked].tolist()) <= set(np.flatnonzero(model.allowed_tokens).tolist()), order
            assert sorted(hypothesis.steps[masked].tolist()) == list(range(1, int(masked.sum()) + 1)), order
            assert (hypothesis.ids[~masked] == canvas.tokens[~masked]).all()
            assert np.isfinite(hypothesis.logprobs).all()


@pytest.mark.parametrize("name", CLASSES)
def test_a_canvas_does_not_depend_on_its_batch(
    name: str, checkpoints: dict[str, tuple[Any, TransformersModel]]
) -> None:
    _, model = checkpoints[name]
    for schedule in ("2", "threshold:0.5"):
        together = decode(model, canvases(model), make_order("margin"), make_schedule(schedule))
        for canvas, hypothesis in zip(canvases(model), together, strict=True):
            [alone] = decode(model, [canvas], make_order("margin"), make_schedule(schedule))
            assert alone.ids.tolist() == hypothesis.ids.tolist()
            assert alone.logprobs.tobytes() == hypothesis.logprobs.tobytes()


@pytest.mark.parametrize("name", ["BertForMaskedLM", "RobertaForMaskedLM", "EsmForMaskedLM", "GPT2LMHeadModel"])
def test_longest_canvas(name: str, checkpoints: dict[str, tuple[Any, TransformersModel]]) -> None:
    network, model = checkpoints[name]
    offset = PAD + 1 if name in ("RobertaForMaskedLM", "EsmForMaskedLM") else 0
    assert model.max_length == POSITIONS - offset - (2 if name in ENCODERS else 0)
    tokens = np.array([0] * (model.max_length - 1) + [MASK])
    [filled] = decode(model, [Canvas(tokens)], make_order("margin"), make_schedule("one"))
    expected = reference_logits(name, network, tokens.tolist(), padding=0)[-1].log_softmax(-1)
    assert filled.logprobs[-1] == pytest.approx(float(expected[filled.ids[-1]]), abs=1e-4)


def test_copies_of_a_canvas_are_decoded_alike(checkpoints: dict[str, tuple[Any, TransformersModel]]) -> None:
    _, model = checkpoints["BertForMaskedLM"]
    context = model.context(model.pack(canvases(model)))
    batch = model.pack(canvases(model))
    tokens = torch.from_numpy(batch.packed.tokens)
    rows = torch.from_numpy(batch.starts)
    at = QueryPositions(rows, Segments.of(np.ones(len(rows), np.int64)))
    states = context.hidden(tokens, at)
    copied = np.repeat(np.arange(len(rows)), 2)
    twice, doubled = context.select(copied), batch.take(copied)
    again = twice.hidden(
        torch.from_numpy(doubled.packed.tokens),
        QueryPositions(torch.from_numpy(doubled.starts), Segments.of(np.ones(2 * len(rows), np.int64))),
    )
    assert torch.equal(again, states.repeat_interleave(2, 0))


def test_only_a_text_that_is_generated_may_end(checkpoints: dict[str, tuple[Any, TransformersModel]]) -> None:
    end = VOCABULARY.index("[SEP]")
    for name in DECODERS:
        _, model = checkpoints[name]
        assert not model.allowed_tokens[end]
        assert model.generating().allowed_tokens[end]
        assert not model.generating().allowed_tokens[MASK]
    _, bert = checkpoints["BertForMaskedLM"]
    assert not bert.generating().allowed_tokens[end]
    assert not bert.allowed_tokens[len(VOCABULARY) :].any()


def test_a_chat_model_that_was_an_encoder_may_end(checkpoints: dict[str, tuple[Any, TransformersModel]]) -> None:
    """dLLM's ModernBERT chat models end a text with an end token of their own, the padding token."""
    _, bert = checkpoints["BertForMaskedLM"]
    words = tokenizer()
    for token, ends in ((None, []), ("[SEP]", []), ("[PAD]", [PAD])):
        words.eos_token = token
        chat = TransformersModel(bert.network, words, bert.family, MASK)
        assert sorted(chat.end_tokens) == ends
        assert not chat.allowed_tokens[PAD]
        assert chat.generating().allowed_tokens[PAD] == (token == "[PAD]")


def test_a_space_before_a_mask_belongs_to_the_masked_token(tmp_path: Path) -> None:
    """In vocabularies of bytes a word begins with its space, so a mask must not leave a lone space behind."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_level = Tokenizer(models.BPE({token: i for i, token in enumerate([*alphabet, "<mask>", "<pad>"])}, []))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    with_bytes = PreTrainedTokenizerFast(tokenizer_object=byte_level, mask_token="<mask>", pad_token="<pad>")
    config = BertConfig(
        vocab_size=300,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=16,
        pad_token_id=257,
    )
    BertForMaskedLM(config).save_pretrained(tmp_path)
    with_bytes.save_pretrained(tmp_path)
    model = load_transformers(tmp_path)
    [ids] = model.encode(["ä [MASK] [MASK] c"])
    assert model.to_tokens(ids) == ["Ã", "¤", "<mask>", "<mask>", "Ġ", "c"]
    ids[ids == model.mask_token] = model.encode(["b"])[0][0]
    assert model.to_text(ids, "infill") == "äbb c"


@pytest.mark.parametrize("name", ["BertForMaskedLM", "LlamaForCausalLM", "GPT2LMHeadModel"])
def test_every_linear_layer_sums_in_a_fixed_order(
    name: str, checkpoints: dict[str, tuple[Any, TransformersModel]]
) -> None:
    """Some matrix libraries split long sums by the number of rows; a tiny model would never show it."""
    network, model = checkpoints[name]
    kinds = {type(module) for module in model.network.modules()}
    assert not kinds & {torch.nn.Linear, Conv1D}
    states = torch.randn(2, 3, 24)
    for plain, ours in zip(network.modules(), model.network.modules(), strict=True):
        if type(plain) in (torch.nn.Linear, Conv1D) and plain.weight.shape[type(plain) is torch.nn.Linear] == 24:
            torch.testing.assert_close(ours(states), plain(states))


def test_logits_on_the_cpu_keep_the_order_of_half_precision() -> None:
    """The output layer returns the precision of its input, as the plain one: what a head adds is added in it."""
    plain = network("EsmForMaskedLM").bfloat16()
    model = wrap_transformers(plain, tokenizer())
    assert model.network.get_output_embeddings()(torch.randn(3, 24, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert model.logits(torch.randn(3, 24, dtype=torch.bfloat16)).dtype == torch.float32


def test_the_end_of_a_tensor_is_nobody_s_last_token(checkpoints: dict[str, tuple[Any, TransformersModel]]) -> None:
    """Elementwise kernels compute the last few numbers of a tensor in another way; only padding may lie there."""
    _, model = checkpoints["LlamaForCausalLM"]
    numbers = np.random.default_rng(1).integers(0, 7, (20, 17))
    with torch.inference_mode():
        together = _hidden(model, numbers).view(20, 17, -1)
        for tokens, states in zip(numbers, together, strict=True):
            assert torch.equal(_hidden(model, tokens[None]), states)


def _hidden(model: TransformersModel, numbers: np.ndarray) -> Tensor:
    """All hidden states of canvases of one length: (B * T, hidden_size). numbers: (B, T)"""
    batch = model.pack([Canvas(tokens) for tokens in numbers])
    rows = torch.arange(numbers.size)
    at = QueryPositions(rows, Segments.of(np.full(len(numbers), numbers.shape[1])))
    return model.context(batch).hidden(torch.from_numpy(batch.packed.tokens), at)
