"""Every family of encoders decodes as its class in Transformers does, one text at a time; batches change nothing."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from anyorder.decoding.engine import decode
from anyorder.decoding.schedules import make_schedule
from anyorder.models.base import Canvas
from anyorder.models.hf.families import FAMILIES
from anyorder.models.hf.pretrained import TransformersModel, load_transformers
from anyorder.orders import make_order
from tests.models.checkpoints import MASK, PAD, POSITIONS, VOCAB_SIZE, VOCABULARY, logits_of, tokenizer

SIZES = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 40, "max_position_embeddings": POSITIONS, "pad_token_id": PAD,
}  # fmt: skip
_XLM = {"emb_dim": 24, "n_layers": 2, "n_heads": 2, "n_words": VOCAB_SIZE, "pad_index": PAD}
_DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "pad_token_id": PAD}
_NARROW = {"embedding_size": 16}
_SQUEEZED = ("q_groups", "k_groups", "v_groups", "intermediate_groups", "output_groups")
SPECIAL: dict[str, dict[str, Any]] = {
    "albert": _NARROW,
    "convbert": {**_NARROW, "conv_kernel_size": 5},
    "deberta": _DEBERTA,
    "deberta-v2": {**_DEBERTA, "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    "distilbert": {"dim": 24, "n_layers": 2, "n_heads": 2, "hidden_dim": 40},
    "electra": _NARROW,
    "esm": {"mask_token_id": MASK, "token_dropout": True, "position_embedding_type": "rotary"},
    "flaubert": _XLM,
    "gpt2": {"n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": POSITIONS},
    "longformer": {"attention_window": [8, 4]},
    "luke": {"entity_vocab_size": 9, "entity_emb_size": 16},
    "mobilebert": {**_NARROW, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    "modernbert": {"local_attention": 6, "global_attn_every_n_layers": 2},
    "qwen2": {"num_key_value_heads": 1},
    "qwen3": {"num_key_value_heads": 1},
    "qwen3_moe": {"num_key_value_heads": 1, "num_experts": 8, "moe_intermediate_size": 16},
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 20},
    "roformer": _NARROW,
    "squeezebert": {"embedding_size": 24, "post_attention_groups": 1, **dict.fromkeys(_SQUEEZED, 2)},
}  # fmt: skip
ENCODERS = sorted(name for name, family in FAMILIES.items() if not family.is_language_model)
TEXTS = ["w1 [MASK] w3 [MASK] [MASK]", "[MASK] w12", "w5 w6 w7 [MASK] w8 w8 w9", "w4 [MASK] " + "w3 " * 16]
ALLOWED = [i for i, token in enumerate(VOCABULARY) if token.startswith("w")]


def plain_network(kind: str, **changes: Any) -> Any:
    """A tiny one with random weights."""
    network_class = getattr(transformers, FAMILIES[kind].class_name)
    network = network_class(network_class.config_class(**SIZES | SPECIAL.get(kind, {}) | changes)).eval()
    torch.manual_seed(3)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    network.tie_weights()
    return network


@pytest.fixture(scope="module", params=ENCODERS)
def plain_and_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, network = tmp_path_factory.mktemp("encoder"), plain_network(request.param)
    network.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return network, load_transformers(folder)


def plain_logits(network: Any, tokens: list[int]) -> Tensor:
    """Of one text alone: (T, vocab_size)."""
    ids = [VOCABULARY.index("[CLS]"), *tokens, VOCABULARY.index("[SEP]")]
    with torch.inference_mode():
        return network(input_ids=torch.tensor([ids])).logits[0, 1:-1]


def slow_margin(network: Any, tokens: list[int]) -> tuple[list[int], list[int]]:
    """Ids and steps of the order `margin`: one text, one forward pass and one token at a time."""
    ids, steps = list(tokens), [0] * len(tokens)
    for step in range(1, ids.count(MASK) + 1):
        probabilities = plain_logits(network, ids).softmax(-1)
        ranked = []
        for position in (i for i, token in enumerate(ids) if token == MASK):
            first, second = sorted(ALLOWED, key=lambda token, at=position: -float(probabilities[at, token]))[:2]
            ranked.append((float(probabilities[position, first] - probabilities[position, second]), position, first))
        _, position, token = max(ranked)
        ids[position], steps[position] = token, step
    return ids, steps


def test_equals_a_slow_loop(plain_and_model: tuple[Any, TransformersModel]) -> None:
    network, model = plain_and_model
    canvases = [Canvas(tokens) for tokens in model.encode(TEXTS)]
    filled = decode(model, canvases, make_order("margin"), make_schedule("one"))
    for canvas, hypothesis in zip(canvases, filled, strict=True):
        assert (hypothesis.ids.tolist(), hypothesis.steps.tolist()) == slow_margin(network, canvas.tokens.tolist())
        expected = plain_logits(network, canvas.tokens.tolist())
        torch.testing.assert_close(logits_of(model, canvas.tokens.tolist()), expected, rtol=0, atol=1e-4)


def test_a_text_does_not_depend_on_its_batch(plain_and_model: tuple[Any, TransformersModel]) -> None:
    _, model = plain_and_model
    rows = [*np.random.default_rng(0).choice(ALLOWED, (5, 11)).tolist(), [MASK, 1, MASK]]
    together = logits_of(model, *rows).split([len(row) for row in rows])
    for row, logits in zip(rows, together, strict=True):
        assert torch.equal(logits_of(model, row), logits)


def test_every_masked_model_of_transformers_is_a_family_or_is_refused_for_a_reason() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    assert set(ENCODERS) <= set(MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    assert set(MODEL_FOR_MASKED_LM_MAPPING_NAMES) - set(ENCODERS) == {
        "bart", "mbart", "mvp",  # write the missing text from left to right
        "big_bird", "mra", "reformer", "yoso",  # attention is random, or needs a compiled kernel
        "funnel", "nystromformer", "perceiver",  # one length, or no maximum
        "layoutlm", "modernvbert", "neomme", "roc_bert", "tapas", "ultravbert", "xmod",  # need more than tokens
        "xlm",  # the name of translation models here
    }  # fmt: skip
