"""Every setting in config.json gives what the original computes, is refused by name, or is known to have no effect."""

from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from anyorder.errors import InputError
from anyorder.models.hf.families import FAMILIES, family_of
from anyorder.models.hf.pretrained import class_of, wrap_transformers
from anyorder.models.hf.settings import check_attention, check_settings
from anyorder.records import Record
from tests.models.checkpoints import MASK, logits_of, tokenizer
from tests.models.test_encoders import ENCODERS, plain_network

TOKENS = [1, MASK, 3, MASK, 14, 6, MASK, 0, 2]
NATIVE = [*ENCODERS, "llama", "gpt2", "qwen2", "qwen3", "qwen3_moe"]

# Settings of native classes. All of a list are changed at once: with the first two, logits must change and be those of
# the class itself; with the third, they must stay.
CHANGED: dict[str, Any] = {
    "hidden_act": "relu", "layer_norm_eps": 0.3, "rms_norm_eps": 0.3, "norm_eps": 0.3, "layer_norm_epsilon": 0.3,
    "type_vocab_size": 3, "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True, "norm_bias": True,
    "intermediate_size": 32, "hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 40,
    "pad_token_id": 9, "max_position_embeddings": 80, "num_key_value_heads": 2, "head_dim": 16, "embedding_size": 20,
    "activation": "relu", "hidden_activation": "relu", "activation_function": "relu",
}  # fmt: skip
SPECIAL: dict[str, dict[str, Any]] = {
    "albert": {"inner_group_num": 2, "num_hidden_groups": 3},
    "convbert": {"conv_kernel_size": 3, "head_ratio": 4, "num_groups": 2},
    "deberta": {"legacy": False, "max_relative_positions": 5, "pos_att_type": ["p2c"], "position_biased_input": False,
                "relative_attention": True},
    "deberta-v2": {"legacy": False, "max_relative_positions": 5, "pos_att_type": ["p2c"],
                   "position_biased_input": False, "relative_attention": True},
    "distilbert": {"dim": 48, "n_heads": 4, "n_layers": 3, "hidden_dim": 32, "sinusoidal_pos_embds": True},
    "ernie": {"use_task_id": True, "task_type_vocab_size": 4},
    "esm": {"emb_layer_norm_before": True, "rope_theta": 50.0, "token_dropout": False,
            "position_embedding_type": "absolute"},
    "flaubert": {"emb_dim": 48, "n_heads": 4, "n_layers": 3, "gelu_activation": False,
                 "sinusoidal_embeddings": True, "n_langs": 2, "use_lang_emb": False, "lang_id": 1},
    "gpt2": {"n_embd": 48, "n_head": 4, "n_layer": 3, "n_inner": 30, "n_positions": 80,
             "scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False, "reorder_and_upcast_attn": True},
    "longformer": {"attention_window": [4, 8, 4]},
    "luke": {"entity_emb_size": 20, "entity_vocab_size": 7, "use_entity_aware_attention": False},
    "mobilebert": {"embedding_size": 24, "intra_bottleneck_size": 24, "true_hidden_size": 24, "use_bottleneck": True, "key_query_shared_bottleneck": False, "normalization_type": "layer_norm",
                   "num_feedforward_networks": 2, "trigram_input": False, "use_bottleneck_attention": True},
    "modernbert": {"classifier_activation": "relu", "classifier_bias": True, "decoder_bias": False, "local_attention": 4, "global_attn_every_n_layers": 3,
                   "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "esmc": {"num_key_value_heads": 4, "head_dim": 12},
    "ibert": {"hidden_act": "gelu"},
    "qwen3_moe": {"decoder_sparse_step": 2, "mlp_only_layers": [0], "moe_intermediate_size": 20,
                  "norm_topk_prob": True, "num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 3},
    "rembert": {"input_embedding_size": 20, "output_embedding_size": 24},
    "roformer": {"rotary_value": True},
    "squeezebert": {"embedding_size": 48, "q_groups": 4, "k_groups": 4, "v_groups": 4, "post_attention_groups": 2,
                    "intermediate_groups": 4, "output_groups": 4},
    "ultrabert": {"prediction_head_size": 20, "sliding_window": 4,
                  "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
}  # fmt: skip
ROPE = {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0}
TWO_ROPES = {"full_attention": ROPE, "sliding_attention": ROPE | {"factor": 3.0}}
NO_EFFECT: dict[str, Any] = {
    # Training
    **dict.fromkeys(("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "dropout", "embd_pdrop",
                     "embedding_dropout", "hidden_dropout_prob", "layerdrop", "mlp_dropout", "resid_pdrop"), 0.5),
    "initializer_range": 0.5, "initializer_cutoff_factor": 1.0, "init_std": 0.5, "embed_init_std": 0.5,
    "output_router_logits": True, "router_aux_loss_coef": 0.5, "sparse_pred_ignore_index": 3, "sparse_prediction": True,
    # Other tasks
    **dict.fromkeys(("classifier_dropout", "classifier_dropout_prob", "pooler_dropout", "qa_dropout",
                     "seq_classif_dropout", "summary_first_dropout", "summary_last_dropout"), 0.5),
    "classifier_activation": "relu", "classifier_bias": True, "classifier_pooling": "mean", "end_n_top": 2,
    "start_n_top": 2, "summary_activation": "relu", "summary_proj_to_labels": False, "summary_type": "mean",
    "summary_use_proj": False, "pooler_hidden_act": "relu", "pooler_hidden_size": 20,
    # How the same is computed and returned
    "use_cache": True, "pretraining_tp": 2, "deterministic_flash_attn": True, "onnx_export": True, "return_dict": False,
    "output_hidden_states": True, "output_attentions": True, "chunk_size_feed_forward": 4,
    "tpu_short_seq_length": 64,
    # Ids, of which only the mask's and the padding's are looked at; those are read before
    "bos_token_id": 4, "cls_token_id": 4, "eos_token_id": 9, "mask_index": 3, "sep_token_id": 4, "unk_index": 4,
    # Only with `quant_mode`, `is_folding_model`, and `use_sliding_window`, which are refused
    "force_dequant": "gelu", "vocab_list": ["a"], "max_window_layers": 1,
}  # fmt: skip
NAMES = {"architectures", "dtype", "id2label", "label2id", "model_type", "problem_type", "transformers_version"}
REFUSED: dict[str, Any] = {
    "is_decoder": True, "add_cross_attention": True, "causal": True, "asm": True, "quant_mode": True,
    "pre_norm": True, "relative_attention_num_buckets": 8, "use_tpu_fourier_optimizations": True,
    "use_sliding_window": True, "is_encoder_decoder": True, "is_folding_model": True,
    "is_encoder": False,
}  # fmt: skip


def settings_of(kind: str) -> set[str]:
    """All that its class has."""
    return set(getattr(transformers, FAMILIES[kind].class_name).config_class().to_dict())


def changes(kind: str) -> dict[str, Any]:
    own = SPECIAL.get(kind, {})
    rope = {"rope_parameters": TWO_ROPES if kind in ("modernbert", "ultrabert") else ROPE}
    return {key: value for key, value in (CHANGED | rope | own).items() if key in settings_of(kind) or key in own}


def expected_logits(network: Any, kind: str) -> Tensor:
    """By the class itself, attention written out, one text alone: (T, vocab_size)."""
    plain, is_decoder = deepcopy(network), FAMILIES[kind].is_language_model
    plain.set_attn_implementation("eager")
    plain.config.is_causal = plain.config.is_causal if not is_decoder and hasattr(plain.config, "is_causal") else False
    ids = TOKENS if is_decoder else [7, *TOKENS, 9]
    with torch.inference_mode():
        logits = plain(input_ids=torch.tensor([ids])).logits[0]
    if FAMILIES[kind].is_shifted:
        return torch.cat([logits[:1], logits[:-1]])
    return logits if is_decoder else logits[1:-1]


def wrapped_logits(network: Any, kind: str) -> Tensor:
    model = wrap_transformers(network, tokenizer(delimiters=not FAMILIES[kind].is_language_model))
    return logits_of(model, TOKENS)


@pytest.mark.parametrize("kind", NATIVE)
def test_settings_of_native_classes_are_computed(kind: str) -> None:
    base = expected_logits(plain_network(kind), kind)
    network = plain_network(kind, **changes(kind))
    expected = expected_logits(network, kind)
    assert expected.shape != base.shape or not torch.allclose(expected, base, atol=0.1)
    torch.testing.assert_close(wrapped_logits(network, kind), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", NATIVE)
def test_settings_without_effect(kind: str) -> None:
    base = expected_logits(plain_network(kind), kind)
    mine = {key: value for key, value in NO_EFFECT.items() if key in settings_of(kind)}
    mine = {key: value for key, value in mine.items() if key not in SPECIAL.get(kind, {})}
    if kind == "mobilebert":
        mine["classifier_activation"] = False
    torch.testing.assert_close(wrapped_logits(plain_network(kind, **mine), kind), base, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", NATIVE)
def test_no_setting_is_left_out(kind: str) -> None:
    listed = {*CHANGED, *SPECIAL.get(kind, {}), *NO_EFFECT, *NAMES, *REFUSED, "rope_parameters", "_name_or_path"}
    assert settings_of(kind) - listed - {"mask_token_id", "esmfold_config", "sliding_window", "layer_types"} == set()


@pytest.mark.parametrize("kind", NATIVE)
def test_what_a_native_class_does_not_compute_is_refused_by_name(kind: str) -> None:
    has, expects = settings_of(kind), FAMILIES[kind].expects
    refused = {key: value for key, value in REFUSED.items() if key in has or key in expects}
    if FAMILIES[kind].is_language_model:
        refused = {key: value for key, value in refused.items() if key not in ("is_decoder", "add_cross_attention")}
    assert set(expects) - {"hidden_act"} <= set(refused)
    record = plain_network(kind).config.to_dict()
    for key, value in (refused | {"quantization_config": {"quant_method": "bitsandbytes"}}).items():
        with pytest.raises(InputError, match=f"^config.json: {key}: .*, expected .* as in '{kind}' models$"):
            check_settings(Record("config.json", record | {key: value}), FAMILIES[kind])


# Published configurations of networks whose code is not in Transformers; sizes and what only names files are left out.
_LLADA_8B = {
    "activation_type": "silu", "alibi": False, "alibi_bias_max": 8.0, "architectures": ["LLaDAModelLM"],
    "attention_dropout": 0.0, "attention_layer_norm": False, "attention_layer_norm_with_affine": True,
    "auto_map": {"AutoConfig": "configuration_llada.LLaDAConfig"}, "bias_for_layer_norm": False,
    "block_group_size": 1, "block_type": "llama", "d_model": 4096, "embedding_dropout": 0.0,
    "embedding_size": 126464, "eos_token_id": 126081, "flash_attention": False, "include_bias": False,
    "include_qkv_bias": False, "init_cutoff_factor": None, "init_device": "meta", "init_fn": "mitchell",
    "init_std": 0.02, "input_emb_norm": False, "layer_norm_type": "rms", "layer_norm_with_affine": True,
    "mask_token_id": 126336, "max_sequence_length": 4096, "mlp_hidden_size": 12288, "mlp_ratio": 4,
    "model_type": "llada", "multi_query_attention": None, "n_heads": 32, "n_kv_heads": 32, "n_layers": 32,
    "pad_token_id": 126081, "precision": "amp_bf16", "residual_dropout": 0.0, "rms_norm_eps": 1e-05, "rope": True,
    "rope_full_precision": True, "rope_theta": 500000.0, "scale_logits": False, "transformers_version": "4.46.3",
    "use_cache": False, "vocab_size": 126464, "weight_tying": False,
}  # fmt: skip
_LLADA_MOE = {
    "architectures": ["LLaDAMoEModelLM"], "attention_bias": False, "attention_dropout": 0.0, "clip_qkv": None,
    "dense_intermediate_size": 8192, "eos_token_id": 156892, "expert_intermediate_size": 1024, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "max_position_embeddings": 8192, "model_type": "llada",
    "moe_layer_freq": [1] * 16, "moe_router_enable_expert_bias": False, "moe_router_score_function": "softmax",
    "norm_topk_prob": None, "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
    "num_hidden_layers": 16, "num_key_value_heads": 16, "output_router_logits": False, "pad_token_id": 156892,
    "partial_rotary_factor": 1, "qk_layernorm": True, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 50000, "routed_scaling_factor": 1.0, "router_aux_loss_coef": 0.01, "router_num_group": None,
    "router_topk_group": None, "shared_expert_intermediate_size": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.53.2", "use_cache": False, "vocab_size": 157184,
}  # fmt: skip
_LLADA2_MINI = {
    "architectures": ["LLaDA2MoeModelLM"], "attention_dropout": 0.0, "num_hidden_layers": 20, "hidden_size": 2048,
    "auto_map": {"AutoConfig": "configuration_llada2_moe.LLaDA2MoeConfig"}, "intermediate_size": 5120,
    "first_k_dense_replace": 1, "hidden_act": "silu", "max_position_embeddings": 32768, "model_type": "llada2_moe",
    "moe_intermediate_size": 512, "norm_topk_prob": True, "num_experts_per_tok": 8, "norm_head": False,
    "num_attention_heads": 16, "num_experts": 256, "num_key_value_heads": 4, "rope_theta": 600000,
    "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_bias": False,
    "use_rmsnorm": True, "rms_norm_eps": 1e-06, "head_dim": 128, "num_shared_experts": 1, "use_cache": False,
    "use_qkv_bias": False, "use_qk_norm": True, "embedding_dropout": 0.0, "norm_softmax": False,
    "output_dropout": 0.0, "vocab_size": 157184, "rotary_dim": 64, "using_split_qkv_in_self_attention": False,
    "router_dtype": "fp32", "moe_router_enable_expert_bias": True, "routed_scaling_factor": 2.5, "n_group": 8,
    "topk_group": 4, "score_function": "sigmoid", "initializer_range": 0.02, "max_window_layers": 28,
    "output_router_logits": False, "pad_token_id": 156892, "partial_rotary_factor": 0.5,
    "use_sliding_window": False, "sliding_window": 4096,
}  # fmt: skip
_DREAM = {
    "architectures": ["DreamModel"], "attention_dropout": 0.0, "auto_map": {"AutoModel": "modeling_dream.DreamModel"},
    "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 3584,
    "initializer_range": 0.02, "intermediate_size": 18944, "mask_token_id": 151666,
    "max_position_embeddings": 131072, "max_window_layers": 28, "model_type": "Dream", "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "pad_token_id": 151643, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.46.2", "use_cache": True, "use_mrope": False,
    "use_sliding_window": False, "vocab_size": 152064,
}  # fmt: skip
_SDAR = {
    "architectures": ["SDARForCausalLM"], "auto_map": {"AutoConfig": "configuration_sdar.SDARConfig"},
    "attention_bias": False, "attention_dropout": 0.0, "attn_implementation": "flex_attention",
    "bos_token_id": 151643, "debug": False, "eos_token_id": 151643, "block_size": 4, "mask_token_id": 151669,
    "ep_size": 1, "fuse_cross_entropy": True, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 12288, "max_position_embeddings": 32768,
    "max_window_layers": 36, "micro_forward": False, "model_type": "sdar", "num_attention_heads": 32,
    "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000, "skip_checkpoint": False, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.52.4", "use_cache": False, "use_deepep": False,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
_RND1 = {
    "architectures": ["RND1LM"], "attention_bias": False, "attention_dropout": 0.0, "decoder_sparse_step": 1,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 6144, "is_causal": False, "mask_token_id": 151669, "max_position_embeddings": 40960,
    "max_window_layers": 48, "mlp_only_layers": [], "model_type": "rnd1", "moe_backend": "hf",
    "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32, "num_diffusion_steps": 256,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": False, "pad_token_id": 151643, "rms_norm_eps": 1e-06, "rope_scaling": False,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": False, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
_MDLM = {
    "_name_or_path": "kuleshov-group/mdlm-owt", "architectures": ["MDLM"], "cond_dim": 128, "dropout": 0.1,
    "auto_map": {"AutoConfig": "configuration_mdlm.MDLMConfig"}, "hidden_dim": 768, "model_length": 1024,
    "model_type": "mdlm", "n_blocks": 12, "n_heads": 12, "return_dict": False, "time_conditioning": False,
    "torch_dtype": "float32", "transformers_version": "4.38.2", "vocab_size": 50258,
}  # fmt: skip
_BD3LM = {
    **_MDLM, "model_type": "bd3lm", "block_size": 4, "cross_attn": True, "adaln": True, "attn_backend": "flex",
    "causal": False, "var_min": True, "sampling_eps_min": 1e-3, "sampling_eps_max": 0.999,
}  # fmt: skip
_QWEN2 = {key: value for key, value in _DREAM.items() if key not in ("mask_token_id", "auto_map")}
PUBLISHED = {
    "LLaDA-8B": _LLADA_8B, "LLaDA-MoE": _LLADA_MOE, "LLaDA2.0-mini": _LLADA2_MINI, "Dream-7B": _DREAM,
    "SDAR-8B": _SDAR, "RND1": _RND1, "MDLM": _MDLM, "BD3-LM": _BD3LM,
    "Fast-dLLM v2": _QWEN2 | {"model_type": "Fast_dLLM_Qwen", "bd_size": 32, "layer_types": ["full_attention"] * 28},
    "A2D Qwen2": _QWEN2 | {"model_type": "a2d-qwen2", "sliding_window": 32768},
    "A2D Qwen3": _SDAR | {"model_type": "a2d-qwen3", "attn_implementation": None},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_load(name: str) -> None:
    record = Record("config.json", dict(PUBLISHED[name]))
    family = family_of(record)
    check_settings(record, family)
    config = class_of(family).config_class.from_dict(family.native_config(record))
    check_attention("config.json", config, family)
    values = record.values
    assert config.hidden_size == (values.get("hidden_size") or values.get("d_model") or values.get("hidden_dim"))
    assert config.rope_parameters["rope_theta"] == values.get("rope_theta", 10_000)
    assert config.rope_parameters["rope_type"] == "default"


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_that_nobody_knows_are_refused_where_the_code_is_not_known(name: str) -> None:
    """Another version of the code may read them. What is off cannot change anything."""
    family = family_of(Record("config.json", dict(PUBLISHED[name])))
    check_settings(Record("config.json", PUBLISHED[name] | {"gate": False, "_comment": "x", "my_dropout": 0.1}), family)
    with pytest.raises(InputError, match=r"^config.json: unknown gate, window, which may change the results of a"):
        check_settings(Record("config.json", PUBLISHED[name] | {"window": 4, "gate": True}), family)
    for key, value in family.expects.items():
        other = not value if isinstance(value, bool) else "other"
        with pytest.raises(InputError, match=f"^config.json: {key}: .*, expected .* as in"):
            check_settings(Record("config.json", PUBLISHED[name] | {key: other}), family)
