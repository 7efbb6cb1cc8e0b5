"""Checkpoints whose networks have other names and other parts than native classes give what their formulas say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from anyorder.errors import InputError
from anyorder.models.hf.families import FAMILIES, llada_config
from anyorder.models.hf.pretrained import TransformersModel, load_transformers
from anyorder.records import Record
from tests.models.checkpoints import DECODERS, MASK, VOCAB_SIZE, VOCABULARY, logits_of, save, tokenizer
from tests.models.slow_networks import Weights, decoder_logits, dit_logits, llada_logits, random_weights

TOKENS = [1, MASK, 3, MASK, 14, 6, MASK]
HIDDEN, HEADS, KEY_HEADS, LAYERS, EXPERTS = 24, 2, 1, 2, 8


def attention_shapes(layer: str) -> dict[str, tuple[int, ...]]:
    size = HIDDEN // HEADS
    return {
        f"{layer}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": (KEY_HEADS * size, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": (KEY_HEADS * size, HIDDEN),
        f"{layer}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        f"{layer}.self_attn.q_norm.weight": (size,),
        f"{layer}.self_attn.k_norm.weight": (size,),
    }


def swiglu_shapes(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.gate_proj.weight": (width, HIDDEN),
        f"{name}.up_proj.weight": (width, HIDDEN),
        f"{name}.down_proj.weight": (HIDDEN, width),
    }


def llada(key_heads: int = KEY_HEADS) -> tuple[dict[str, Any], Weights]:
    config = {
        "model_type": "llada", "block_type": "llama", "layer_norm_type": "rms", "rope": True, "activation_type": "silu",
        "d_model": HIDDEN, "n_heads": HEADS, "n_kv_heads": key_heads, "n_layers": LAYERS, "mlp_hidden_size": 48,
        "mlp_ratio": 4, "vocab_size": VOCAB_SIZE, "embedding_size": VOCAB_SIZE, "max_sequence_length": 64,
        "rope_theta": 500.0, "rms_norm_eps": 1e-5, "weight_tying": False, "mask_token_id": MASK,
    }  # fmt: skip
    shapes = {"wte.weight": (VOCAB_SIZE, HIDDEN), "ff_out.weight": (VOCAB_SIZE, HIDDEN), "ln_f.weight": (HIDDEN,)}
    for i in range(LAYERS):
        block, keys = f"blocks.{i}", (HIDDEN // HEADS * key_heads, HIDDEN)
        shapes |= {f"{block}.q_proj.weight": (HIDDEN, HIDDEN), f"{block}.attn_out.weight": (HIDDEN, HIDDEN)}
        shapes |= {f"{block}.k_proj.weight": keys, f"{block}.v_proj.weight": keys}
        shapes |= {f"{block}.{name}_proj.weight": (48, HIDDEN) for name in ("ff", "up")}
        shapes |= {f"{block}.ff_out.weight": (HIDDEN, 48)}
        shapes |= {f"{block}.{name}_norm.weight": (HIDDEN,) for name in ("attn", "ff")}
    return config, random_weights({f"model.transformer.{name}": shape for name, shape in shapes.items()})


def llada_moe() -> tuple[dict[str, Any], Weights]:
    """As on the hub, where it calls itself `llada`; the first layer has no experts."""
    config = {
        "model_type": "llada", "architectures": ["LLaDAMoEModelLM"], "hidden_size": HIDDEN, "hidden_act": "silu",
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS,
        "vocab_size": VOCAB_SIZE, "dense_intermediate_size": 40, "expert_intermediate_size": 16,
        "shared_expert_intermediate_size": None, "num_experts": EXPERTS, "num_experts_per_tok": 2,
        "moe_layer_freq": [0, 1], "norm_topk_prob": None, "qk_layernorm": True, "partial_rotary_factor": 1,
        "moe_router_enable_expert_bias": False, "moe_router_score_function": "softmax", "rope_theta": 50_000,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "tie_word_embeddings": False, "mask_token_id": MASK,
    }  # fmt: skip
    shapes = {"model.embed_tokens.weight": (VOCAB_SIZE, HIDDEN), "lm_head.weight": (VOCAB_SIZE, HIDDEN)}
    shapes["model.norm.weight"] = (HIDDEN,)
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        shapes |= attention_shapes(layer)
        shapes |= {f"{layer}.{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
    shapes |= swiglu_shapes("model.layers.0.mlp", 40)
    shapes["model.layers.1.mlp.gate.weight"] = (EXPERTS, HIDDEN)
    for expert in range(EXPERTS):
        shapes |= swiglu_shapes(f"model.layers.1.mlp.experts.{expert}", 16)
    return config, random_weights(shapes)


def llada2() -> tuple[dict[str, Any], Weights]:
    config = {
        "model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"], "hidden_size": HIDDEN, "hidden_act": "silu",
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": 16,
        "vocab_size": VOCAB_SIZE, "intermediate_size": 40, "moe_intermediate_size": 16, "num_shared_experts": 1,
        "num_experts": EXPERTS, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1, "score_function": "sigmoid", "use_qkv_bias": False, "use_bias": False,
        "use_qk_norm": True, "partial_rotary_factor": 0.5, "rope_theta": 600_000, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 64, "tie_word_embeddings": False, "mask_token_id": MASK, "block_size": 4,
    }  # fmt: skip
    shapes = {"model.word_embeddings.weight": (VOCAB_SIZE, HIDDEN), "lm_head.weight": (VOCAB_SIZE, HIDDEN)}
    shapes["model.norm.weight"] = (HIDDEN,)
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        shapes[f"{layer}.attention.query_key_value.weight"] = (16 * (HEADS + 2 * KEY_HEADS), HIDDEN)
        shapes[f"{layer}.attention.dense.weight"] = (HIDDEN, 16 * HEADS)
        shapes |= {f"{layer}.attention.{name}_layernorm.weight": (16,) for name in ("query", "key")}
        shapes |= {f"{layer}.{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
    shapes |= swiglu_shapes("model.layers.0.mlp", 40)
    shapes["model.layers.1.mlp.gate.weight"] = (EXPERTS, HIDDEN)
    shapes["model.layers.1.mlp.gate.expert_bias"] = (EXPERTS,)
    shapes |= swiglu_shapes("model.layers.1.mlp.shared_experts", 16)
    for expert in range(EXPERTS):
        shapes |= swiglu_shapes(f"model.layers.1.mlp.experts.{expert}", 16)
    return config, random_weights(shapes)


def dit(model_type: str, adaln: bool = True, **settings: Any) -> tuple[dict[str, Any], Weights]:
    config = {
        "model_type": model_type, "hidden_dim": HIDDEN, "cond_dim": 8, "n_blocks": LAYERS, "n_heads": HEADS,
        "vocab_size": len(VOCABULARY) + 1, "model_length": 64, "dropout": 0.1, "time_conditioning": False, **settings,
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"vocab_embed.embedding": (len(VOCABULARY) + 1, HIDDEN)}
    shapes |= {"rotary_emb.inv_freq": (HIDDEN // HEADS // 2,), "output_layer.norm_final.weight": (HIDDEN,)}
    shapes |= {"output_layer.linear.weight": (len(VOCABULARY) + 1, HIDDEN)}
    shapes |= {"output_layer.linear.bias": (len(VOCABULARY) + 1,)}
    if adaln:
        shapes |= {"sigma_map.mlp.0.weight": (8, 20), "sigma_map.mlp.0.bias": (8,)}
        shapes |= {"sigma_map.mlp.2.weight": (8, 8), "sigma_map.mlp.2.bias": (8,)}
        shapes |= {"output_layer.adaLN_modulation.weight": (2 * HIDDEN, 8)}
        shapes |= {"output_layer.adaLN_modulation.bias": (2 * HIDDEN,)}
    else:
        config["adaln"] = False
    for i in range(LAYERS):
        block = f"blocks.{i}"
        shapes |= {f"{block}.norm1.weight": (HIDDEN,), f"{block}.norm2.weight": (HIDDEN,)}
        shapes |= {f"{block}.attn_qkv.weight": (3 * HIDDEN, HIDDEN), f"{block}.attn_out.weight": (HIDDEN, HIDDEN)}
        shapes |= {f"{block}.mlp.0.weight": (4 * HIDDEN, HIDDEN), f"{block}.mlp.0.bias": (4 * HIDDEN,)}
        shapes |= {f"{block}.mlp.2.weight": (HIDDEN, 4 * HIDDEN), f"{block}.mlp.2.bias": (HIDDEN,)}
        if adaln:
            shapes |= {f"{block}.adaLN_modulation.weight": (6 * HIDDEN, 8)}
            shapes |= {f"{block}.adaLN_modulation.bias": (6 * HIDDEN,)}
    return config, random_weights({f"backbone.{name}": shape for name, shape in shapes.items()})


def write(folder: Path, config: dict[str, Any], weights: Weights, has_mask: bool = True) -> Path:
    words = tokenizer(delimiters=False)
    if not has_mask:
        words.mask_token = None
    words.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_llada_moe_is_qwen3_moe(tmp_path: Path) -> None:
    config, weights = llada_moe()
    model = load_transformers(write(tmp_path, config, weights))
    assert type(model.network).__name__ == "Qwen3MoeForCausalLM"
    expected = decoder_logits(weights, config, TOKENS, "lladamoe").float()
    torch.testing.assert_close(logits_of(model, TOKENS), expected, rtol=0, atol=1e-4)


def test_llada2_is_glm4_moe_with_block_causal_attention(tmp_path: Path) -> None:
    config, weights = llada2()
    model = load_transformers(write(tmp_path, config, weights))
    assert (type(model.network).__name__, model.block_size) == ("Glm4MoeForCausalLM", 4)
    expected = decoder_logits(weights, config, TOKENS, "llada2_moe").float()
    torch.testing.assert_close(logits_of(model, TOKENS), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("config_and_weights", "block"),
    [
        (dit("mdlm"), None),
        (dit("bd3lm", adaln=False, block_size=2, cross_attn=True), 2),
        (dit("bd3lm", block_size=4), 4),
        (dit("bd3lm", block_size=4, cross_attn=False), None),
    ],
    ids=["mdlm", "bd3lm", "bd3lm-adaln", "bd3lm-full"],
)
def test_mdlm_is_starcoder2(
    tmp_path: Path, config_and_weights: tuple[dict[str, Any], Weights], block: int | None
) -> None:
    """The numbers that the noise level decides are constants of the layers, and the mask is never predicted."""
    config, weights = config_and_weights
    model = load_transformers(write(tmp_path, config, weights, has_mask=False))
    assert (model.mask_token, model.block_size) == (len(VOCABULARY), block)
    tokens = [model.mask_token if token == MASK else token for token in TOKENS]
    found, expected = logits_of(model, tokens), dit_logits(weights, config, tokens, block).float()
    torch.testing.assert_close(found[:, :-1], expected[:, :-1], rtol=0, atol=1e-4)
    assert (found[:, -1] < -9e5).all()
    assert model.encode(["w1 [MASK]"])[0].tolist() == [1, model.mask_token]


@pytest.mark.parametrize(
    ("name", "experts"),
    [("Qwen3Moe", {"num_experts": 8}), ("Glm4Moe", {"n_routed_experts": 8, "first_k_dense_replace": 0})],
)
def test_experts_sum_in_a_fixed_order(name: str, experts: dict[str, int]) -> None:
    """Which other tokens an expert sees in a batch changes nothing, bit by bit."""
    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCAB_SIZE, hidden_size=256, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, intermediate_size=64, moe_intermediate_size=192, num_experts_per_tok=2,
        max_position_embeddings=64, **experts,
    )  # fmt: skip
    config.is_causal = False
    torch.manual_seed(0)
    network = getattr(transformers, f"{name}ForCausalLM")(config)
    model = TransformersModel(network, tokenizer(delimiters=False), FAMILIES["lladamoe"], MASK)
    numbers = np.random.default_rng(0).integers(0, 7, (6, 21))
    together = logits_of(model, *numbers.tolist())
    for tokens, logits in zip(numbers.tolist(), together.view(6, 21, -1), strict=True):
        assert torch.equal(logits_of(model, tokens), logits)


@pytest.mark.parametrize(
    ("model_type", "name", "extra", "is_shifted", "block"),
    [
        ("a2d-llama", "LlamaForCausalLM", {}, False, None),
        ("a2d-qwen2", "Qwen2ForCausalLM", {}, False, None),
        ("a2d-qwen3", "Qwen3ForCausalLM", {}, False, None),
        ("a2d-qwen3", "Qwen3ForCausalLM", {"block_size": 32}, False, 32),
        ("Fast_dLLM_Qwen", "Qwen2ForCausalLM", {"bd_size": 8, "mask_token_id": MASK}, True, 8),
        ("Fast_dLLM_Qwen", "Qwen2ForCausalLM", {"mask_token_id": MASK}, True, 32),
    ],
)
def test_native_weights_under_another_name(
    tmp_path: Path, model_type: str, name: str, extra: dict[str, Any], is_shifted: bool, block: int | None
) -> None:
    """dLLM's conversions (A2D), whose mask is the first id behind the vocabulary, and Fast-dLLM v2."""
    network = save(name, tmp_path)
    words = tokenizer(delimiters=False)
    words.mask_token = None
    words.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**DECODERS[name], "model_type": model_type, **extra}))
    model = load_transformers(tmp_path)
    mask = extra.get("mask_token_id", len(VOCABULARY))
    assert (model.mask_token, model.is_shifted, model.block_size) == (mask, is_shifted, block)
    tokens = [mask if token == MASK else token for token in TOKENS]  # fewer than a block, so all of them see each other
    with torch.inference_mode():
        expected = network(input_ids=torch.tensor([tokens])).logits[0]
    expected = torch.cat([expected[:1], expected[:-1]]) if is_shifted else expected
    torch.testing.assert_close(logits_of(model, tokens), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "change", "message"),
    [
        (llada_moe, {"shared_expert_intermediate_size": 8}, "shared_expert_intermediate_size: 8, expected null"),
        (llada_moe, {"moe_router_enable_expert_bias": True}, "moe_router_enable_expert_bias: true, expected false"),
        (llada_moe, {"moe_layer_freq": [1]}, "moe_layer_freq: expected a list of 2 numbers, one a layer"),
        (llada2, {"use_bias": True}, "use_bias: true, expected false as in 'llada2_moe' models"),
        (
            lambda: dit("mdlm"),
            {"time_conditioning": True},
            "time_conditioning: true, expected false as in 'mdlm' models",
        ),
        (lambda: dit("mdlm"), {"n_blocks": 3}, "its weights lack backbone.blocks.2.adaLN_modulation.weight"),
        (lambda: dit("mdlm"), {"hidden_dim": 48}, "has the shape 26x24, expected 26x48 by its config.json"),
    ],
)
def test_what_no_native_class_computes_is_refused_in_one_line(
    tmp_path: Path, make: Any, change: dict[str, Any], message: str
) -> None:
    config, weights = make()
    write(tmp_path, {**config, **change}, weights)
    with pytest.raises(InputError) as raised:
        load_transformers(tmp_path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_tokenizer_that_must_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints of MDLM come without one: GPT-2's is taken, from the hub or its cache."""
    config, weights = dit("mdlm")
    folder, cache = write(tmp_path / "mdlm", config, weights), tmp_path / "cache"
    fetched = cache / "models--openai-community--gpt2"
    (fetched / "snapshots" / "abc").mkdir(parents=True)
    (fetched / "refs").mkdir()
    (fetched / "refs" / "main").write_text("abc")
    for file in folder.glob("*token*"):
        file.rename(fetched / "snapshots" / "abc" / file.name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    assert load_transformers(folder).tokenizer.get_vocab().keys() >= set(VOCABULARY)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    with pytest.raises(InputError, match="has no tokenizer; put the tokenizer.json of openai-community/gpt2") as raised:
        load_transformers(folder)
    assert "\n" not in str(raised.value)


def test_llada_without_a_size_of_its_layers_takes_the_ratio() -> None:
    sizes = {"d_model": 24, "n_heads": 2, "n_layers": 2, "vocab_size": 90, "max_sequence_length": 32}
    record = Record("config.json", {**sizes, "mlp_ratio": 3})
    assert llada_config(record)["intermediate_size"] == 72


MAKERS: dict[str, tuple[Any, Any]] = {
    "llada": (llada, llada_logits),
    "lladamoe": (llada_moe, lambda *given: decoder_logits(*given, "lladamoe")),
    "llada2_moe": (llada2, lambda *given: decoder_logits(*given, "llada2_moe")),
    "mdlm": (lambda: dit("mdlm"), lambda *given: dit_logits(*given, None)),
}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("llada", {"rope_theta": 50.0, "rms_norm_eps": 0.3, "mlp_hidden_size": None, "mlp_ratio": 2}),
        ("llada", {"n_kv_heads": None, "multi_query_attention": True, "embedding_size": None, "weight_tying": True}),
        ("lladamoe", {"rope_theta": 50.0, "rms_norm_eps": 0.3, "num_experts_per_tok": 3, "hidden_act": "relu"}),
        ("lladamoe", {"tie_word_embeddings": True, "norm_topk_prob": True, "routed_scaling_factor": 3.0}),
        ("llada2_moe", {"rope_theta": 50.0, "rms_norm_eps": 0.3, "num_experts_per_tok": 2, "hidden_act": "relu"}),
        ("llada2_moe", {"n_group": 2, "topk_group": 1, "routed_scaling_factor": 1.5, "partial_rotary_factor": 1.0}),
        ("llada2_moe", {"use_qk_norm": False, "tie_word_embeddings": True, "norm_topk_prob": False}),
        ("mdlm", {"n_heads": 3}),
    ],
)
def test_changed_settings_give_what_the_original_s_formula_gives(
    tmp_path: Path, kind: str, change: dict[str, Any]
) -> None:
    make, formula = MAKERS[kind]
    config, weights = make()
    changed = {**config, **change}
    if changed.get("weight_tying") or changed.get("tie_word_embeddings"):
        weights = {name: value for name, value in weights.items() if name not in _OUTPUTS}
    if changed.get("use_qk_norm") is False:
        weights = {name: value for name, value in weights.items() if "y_layernorm" not in name}
    expected = formula(weights, changed, TOKENS).float()
    found = logits_of(load_transformers(write(tmp_path, changed, weights)), TOKENS)
    torch.testing.assert_close(found[:, :-1], expected[:, :-1], rtol=0, atol=2e-4)
    base = formula(make()[1], config, TOKENS).float()
    assert not torch.allclose(expected[:, :-1], base[:, :-1], atol=0.01)


_OUTPUTS = ("lm_head.weight", "model.transformer.ff_out.weight")


@pytest.mark.parametrize("kind", MAKERS)
def test_a_size_that_is_not_that_of_the_weights_is_refused(tmp_path: Path, kind: str) -> None:
    config, weights = MAKERS[kind][0]()
    folder = write(tmp_path, config, weights)
    sizes = ("d_model", "hidden_size", "hidden_dim", "n_layers", "num_hidden_layers", "n_blocks", "vocab_size")
    sizes += ("n_kv_heads", "num_key_value_heads", "head_dim", "moe_intermediate_size", "expert_intermediate_size")
    sizes += ("num_experts", "mlp_hidden_size", "embedding_size", "first_k_dense_replace", "num_shared_experts")
    for key in sizes:
        if key in config and (kind, key) != ("llada", "vocab_size"):  # `embedding_size` says it
            (folder / "config.json").write_text(json.dumps({**config, key: 2 * config[key]}))
            with pytest.raises(InputError):
                load_transformers(folder)


def test_weights_that_the_settings_leave_out_are_refused(tmp_path: Path) -> None:
    """Biases of a layer that has none would be ignored, and every number be wrong."""
    config, weights = llada()
    weights["model.transformer.blocks.1.q_proj.bias"] = torch.ones(HIDDEN)
    with pytest.raises(InputError, match=r"layers.1.self_attn.q_proj.bias, which a LlamaForCausalLM with its config"):
        load_transformers(write(tmp_path / "llada", config, weights))
