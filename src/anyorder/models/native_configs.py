"""Settings of other projects' checkpoints as those of native Transformers classes. No torch here.

Settings that a native class does not support are rejected; the error names the setting.
"""

import json
from typing import Any

from anyorder.files.records import Record

_NOT_SETTINGS = ("architectures", "auto_map", "model_type", "transformers_version", "torch_dtype", "dtype")
_IDS = ("mask_token_id", "eos_token_id", "pad_token_id")


def same_config(record: Record) -> dict[str, Any]:
    """The settings of a checkpoint whose class differs from a native one only in its name and its attention."""
    return {key: value for key, value in record.values.items() if key not in _NOT_SETTINGS}


def llada_config(record: Record) -> dict[str, Any]:
    """LLaDA's settings as Llama's."""
    expected: dict[str, Any] = {"block_type": "llama", "layer_norm_type": "rms", "rope": True, "alibi": False}
    expected |= {"include_bias": False, "include_qkv_bias": False, "activation_type": "silu"}
    _expect(record, expected, "LLaDA")
    hidden_size, heads = record.integer("d_model", at_least=1), record.integer("n_heads", at_least=1)

    def given(key: str, default: int) -> int:
        return default if record.values.get(key) is None else record.integer(key, at_least=1)

    return _ids(record) | {
        "vocab_size": given("embedding_size", record.integer("vocab_size", at_least=1)),
        "hidden_size": hidden_size,
        "intermediate_size": given("mlp_hidden_size", int(record.number("mlp_ratio", default=4) * hidden_size)),
        "num_hidden_layers": record.integer("n_layers", at_least=1),
        "num_attention_heads": heads,
        "num_key_value_heads": given("n_kv_heads", heads),
        "max_position_embeddings": record.integer("max_sequence_length", at_least=1),
        "rms_norm_eps": record.number("rms_norm_eps", default=1e-5),
        "rope_theta": record.number("rope_theta", default=10_000.0),
        "tie_word_embeddings": record.boolean("weight_tying", default=False),
    }


def llada_moe_config(record: Record) -> dict[str, Any]:
    """LLaDA-MoE's settings as Qwen3-MoE's. Its routing weights are never normalized, whatever the settings say."""
    expected: dict[str, Any] = {"qk_layernorm": True, "moe_router_enable_expert_bias": False, "clip_qkv": None}
    expected |= {"shared_expert_intermediate_size": None, "partial_rotary_factor": 1, "rope_scaling": None}
    _expect(record, expected, "LLaDA-MoE")
    layers, heads = record.integer("num_hidden_layers", at_least=1), record.integer("num_attention_heads", at_least=1)
    hidden_size = record.integer("hidden_size", at_least=heads)
    has_experts = record.values.get("moe_layer_freq") or [1] * layers
    if not isinstance(has_experts, list) or len(has_experts) != layers:
        raise record.error("moe_layer_freq", f"expected a list of {layers} numbers, one a layer")
    return same_config(record) | {
        "head_dim": hidden_size // heads,
        "intermediate_size": record.values.get("dense_intermediate_size") or hidden_size,
        "moe_intermediate_size": record.integer("expert_intermediate_size", at_least=1),
        "mlp_only_layers": [layer for layer in range(layers) if not has_experts[layer]],
        "norm_topk_prob": False,
    }


def llada2_config(record: Record) -> dict[str, Any]:
    """LLaDA 2's settings as GLM-4.5's."""
    expected: dict[str, Any] = {"score_function": "sigmoid", "use_qkv_bias": False, "use_bias": False}
    expected |= {"norm_head": False, "rope_scaling": None, "use_sliding_window": False}
    _expect(record, expected, "LLaDA 2")
    return same_config(record) | {
        "n_routed_experts": record.integer("num_experts", at_least=1),
        "n_shared_experts": record.integer("num_shared_experts", at_least=1),
        "norm_topk_prob": record.integer("num_experts_per_tok", at_least=1) > 1,
        "use_qk_norm": record.boolean("use_qk_norm", default=True),
        "partial_rotary_factor": record.number("partial_rotary_factor", default=0.5),
        "num_mtp_layers": 0,
    }


def dit_config(record: Record) -> dict[str, Any]:
    """The settings of MDLM's and BD3-LM's diffusion transformer as StarCoder2's; its last token is the mask."""
    _expect(record, {"time_conditioning": False, "causal": False}, "MDLM")
    hidden_size, heads = record.integer("hidden_dim", at_least=1), record.integer("n_heads", at_least=1)
    vocab_size = record.integer("vocab_size", at_least=2)
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": 4 * hidden_size,
        "num_hidden_layers": record.integer("n_blocks", at_least=1),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": record.integer("model_length", at_least=1, default=1024),
        "norm_epsilon": 1e-5,
        "rope_theta": 10_000.0,
        "sliding_window": None,
        "use_bias": True,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "mask_token_id": vocab_size - 1,
    }


def _ids(record: Record) -> dict[str, Any]:
    return {key: record.values[key] for key in _IDS if key in record}


def _expect(record: Record, expected: dict[str, Any], name: str) -> None:
    """Raise `InputError` for settings that differ; missing and null ones are fine."""
    for key, value in expected.items():
        if record.values.get(key) not in (value, None):
            raise record.error(key, f"{json.dumps(record.values[key])}, expected {json.dumps(value)} as in {name}")
