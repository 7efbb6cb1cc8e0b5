"""The settings in config.json: which are read, which are not computed and therefore refused, and which have no effect.

For networks whose own code is not in Transformers, all settings that this code reads are listed here.
"""

import json
from typing import TYPE_CHECKING, Any

from anyorder.errors import InputError
from anyorder.records import Record

if TYPE_CHECKING:
    from anyorder.models.hf.families import Family

IDS = ("mask_token_id", "eos_token_id", "pad_token_id", "bos_token_id")


def check_settings(record: Record, family: "Family") -> None:
    """Raise `InputError` for settings of config.json that would change the results, but are not computed."""
    expected = {**_EVERYWHERE, **(_DECODERS if family.is_language_model else _ENCODERS), **family.expects}
    for name, value in expected.items():
        if record.values.get(name) not in (value, None):
            found, kind = json.dumps(record.values[name])[:40], record.values.get("model_type")
            raise record.error(name, f"{found}, expected {json.dumps(value)} as in '{kind}' models")
    if family.settings is None:
        return
    known = {*family.settings, *expected, *_NO_EFFECT, *IDS, "block_size", family.block_key, "logits_shift"}
    unknown = [
        name
        for name, value in record.values.items()
        if value and name not in known and not name.startswith(("_", "init")) and "dropout" not in name
    ]
    if unknown:
        raise InputError(
            f"{record.where}: unknown {', '.join(sorted(unknown))}, which may change the results of a "
            f"'{record.values.get('model_type')}' model; remove them from the file if they do not"
        )


def check_attention(where: str, config: Any, family: "Family") -> None:
    """Raise `InputError` if a native class would compute something that depends on more than the text.

    config: the settings of the native class
    """
    ropes = getattr(config, "rope_parameters", None) or {}
    for rope in [ropes, *ropes.values()]:
        if isinstance(rope, dict) and rope.get("rope_type") == "longrope":
            raise InputError(f"{where}: rope_type longrope depends on the length of the text, and is not computed")
    own = type(config)().to_dict()  # other settings are kept, but have no effect
    layers = getattr(config, "layer_types", None) or []
    windows = "sliding_attention" in layers or getattr(config, "sliding_window", None)
    if family.is_language_model and "sliding_window" in own and windows:
        raise InputError(f"{where}: sliding_window is not computed; expected full attention in every layer")
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if kind != "absolute" and "position_embedding_type" not in own:
        raise InputError(
            f"{where}: position_embedding_type: '{kind}', expected 'absolute': Transformers 5 has no other"
        )


def _names(*lists: str) -> frozenset[str]:
    return frozenset(" ".join(lists).split())


_NO_EFFECT = _names(
    # Names, versions, other tasks, training
    "architectures auto_map model_type transformers_version torch_dtype dtype id2label label2id problem_type",
    "output_router_logits router_aux_loss_coef train_max_sequence_length fuse_cross_entropy skip_checkpoint var_min",
    # How the same numbers are computed and returned
    "use_cache flash_attention attn_backend attn_implementation precision rope_full_precision moe_backend ep_size",
    "use_deepep micro_forward debug pretraining_tp chunk_size_feed_forward output_attentions output_hidden_states",
    "return_dict unsloth_version unsloth_fixed",
    # Only together with others: `alibi`, `attention_layer_norm`, `use_sliding_window`; and see `check_attention`
    "alibi_bias_max attention_layer_norm_with_affine sliding_window max_window_layers layer_types",
    # Sampling
    "num_diffusion_steps sampling_eps_min sampling_eps_max temperature top_k top_p do_sample max_length",
)
_EVERYWHERE = {"is_encoder_decoder": False, "quantization_config": None}
_ENCODERS = {"is_decoder": False, "add_cross_attention": False}
_DECODERS = {"use_sliding_window": False}

_LLAMA_READS = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads hidden_act "
    "max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters tie_word_embeddings"
)
_QWEN3_READS = f"{_LLAMA_READS} head_dim attention_bias"
_MOE_READS = f"{_QWEN3_READS} num_experts num_local_experts num_experts_per_tok moe_intermediate_size norm_topk_prob"
LLADA_EXPECTS = {
    "block_type": "llama", "block_group_size": 1, "layer_norm_type": "rms", "layer_norm_with_affine": True,
    "bias_for_layer_norm": False, "activation_type": "silu", "rope": True, "alibi": False, "include_bias": False,
    "include_qkv_bias": False, "input_emb_norm": False, "attention_layer_norm": False, "scale_logits": False,
}  # fmt: skip
LLADA_READS = _names(
    "d_model n_heads n_kv_heads multi_query_attention n_layers mlp_ratio mlp_hidden_size vocab_size embedding_size",
    "max_sequence_length rms_norm_eps rope_theta weight_tying",
)
LLADA_MOE_EXPECTS = {
    "qk_layernorm": True, "moe_router_enable_expert_bias": False, "clip_qkv": None, "partial_rotary_factor": 1,
    "shared_expert_intermediate_size": None, "rope_scaling": None,
}  # fmt: skip
LLADA_MOE_READS = _names(
    _MOE_READS, "dense_intermediate_size expert_intermediate_size moe_layer_freq",
    "moe_router_score_function routed_scaling_factor router_num_group router_topk_group",  # without effect
)  # fmt: skip
LLADA2_EXPECTS = {
    "score_function": "sigmoid", "use_qkv_bias": False, "use_bias": False, "norm_head": False, "norm_softmax": False,
    "rope_scaling": None, "use_rmsnorm": True, "using_split_qkv_in_self_attention": False,
    "moe_router_enable_expert_bias": True,
}  # fmt: skip
LLADA2_READS = _names(
    _LLAMA_READS, "head_dim use_qk_norm partial_rotary_factor num_experts num_shared_experts num_experts_per_tok",
    "moe_intermediate_size first_k_dense_replace n_group topk_group routed_scaling_factor",
    "norm_topk_prob rotary_dim router_dtype",  # without effect
)  # fmt: skip
LLAMA_READS = _names(_LLAMA_READS)
QWEN3_READS = _names(_QWEN3_READS)
QWEN3_MOE_READS = _names(_MOE_READS)
DIT_READS = _names("vocab_size model_length hidden_dim cond_dim n_blocks n_heads adaln cross_attn")
