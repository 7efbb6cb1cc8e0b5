"""The families of Transformers models that can be decoded: native class, output layers, conventions.

A repository with its own model code is loaded by renaming or rearranging its weights to fit a native class; its code is
never run.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyorder.errors import InputError
from anyorder.models.hf.settings import (
    DIT_READS,
    IDS,
    LLADA2_EXPECTS,
    LLADA2_READS,
    LLADA_EXPECTS,
    LLADA_MOE_EXPECTS,
    LLADA_MOE_READS,
    LLADA_READS,
    LLAMA_READS,
    QWEN3_MOE_READS,
    QWEN3_READS,
)
from anyorder.records import Record

_NOT_SETTINGS = ("architectures", "auto_map", "model_type", "transformers_version", "torch_dtype", "dtype")
NEVER = -1e6
"""Added to the logit of a token that the model never predicts."""


def same_config(record: Record) -> dict[str, Any]:
    """The settings of a checkpoint whose class differs from a native one only in its name and its attention."""
    return {key: value for key, value in record.values.items() if key not in _NOT_SETTINGS}


@dataclass(frozen=True)
class Family:
    """Properties of the models with one `model_type`."""

    class_name: str
    """The class in Transformers."""
    is_language_model: bool = False
    """Whether it generates texts that may end early: end-of-sequence tokens may then be filled in."""
    is_shifted: bool = False
    """Whether position i is predicted by the output at i - 1, as in models that started out autoregressive.
    `logits_shift` (0 or 1) in config.json takes precedence."""
    block_size: int | None = None
    """Block-causal attention: a position sees its own block of this many positions and all earlier blocks, as in SDAR.
    None if every position sees all. In language models `block_size` in config.json takes precedence."""
    block_key: str = "block_size"
    """The name of `block_size` in config.json."""
    positions_after_padding: bool = False
    """Whether position ids start right after the padding token's id, as in RoBERTa."""
    is_padded: bool = True
    """False if padding would change results, in spite of an attention mask: texts then run at their own length."""
    tokenizer_class: str = "AutoTokenizer"
    tokenizer_name: str | None = None
    """The model on the hub whose tokenizer it uses, if checkpoints come without one."""
    mask_token: int | None = None
    """The mask token's id, if neither the tokenizer nor config.json names it."""
    appends_mask: bool = False
    """Whether the mask is the first id after the vocabulary, if nothing else names it."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions for weight names, and their replacements."""
    converts: Callable[[Mapping[str, Tensor], Record], dict[str, Tensor]] | None = None
    """Converts the checkpoint's weights to those of the native class, if renaming is not enough."""
    native_config: Callable[[Record], dict[str, Any]] = same_config
    """Converts config.json to the settings of the native class."""
    expects: Mapping[str, Any] = field(default_factory=dict)
    """Settings of which only this value is computed. Missing and null ones count as it."""
    settings: frozenset[str] | None = None
    """All others that are read, if the network's code is not in Transformers: unknown ones might change results and are
    refused. None for native classes, which ignore what they do not know."""


def llada_config(record: Record) -> dict[str, Any]:
    """LLaDA's settings as Llama's."""
    hidden_size, heads = record.integer("d_model", at_least=1), record.integer("n_heads", at_least=1)

    def given(key: str, default: int) -> int:
        return default if record.values.get(key) is None else record.integer(key, at_least=1)

    shares_keys = record.values.get("multi_query_attention")  # of all heads; null if `n_kv_heads` says how many
    key_heads = given("n_kv_heads", 1 if shares_keys else heads)
    if shares_keys is not None and key_heads != (1 if shares_keys else heads):
        raise record.error("multi_query_attention", f"{json.dumps(shares_keys)}, but n_kv_heads is {key_heads}")
    return {key: record.values[key] for key in IDS if key in record} | {
        "vocab_size": given("embedding_size", record.integer("vocab_size", at_least=1)),
        "hidden_size": hidden_size,
        "intermediate_size": given("mlp_hidden_size", int(record.number("mlp_ratio", default=4) * hidden_size)),
        "num_hidden_layers": record.integer("n_layers", at_least=1),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "max_position_embeddings": record.integer("max_sequence_length", at_least=1),
        "rms_norm_eps": record.number("rms_norm_eps", default=1e-5),
        "rope_theta": record.number("rope_theta", default=10_000.0),
        "tie_word_embeddings": record.boolean("weight_tying", default=False),
    }


def llada_moe_config(record: Record) -> dict[str, Any]:
    """LLaDA-MoE's settings as Qwen3-MoE's. Its routing weights are never normalized, whatever the settings say."""
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


def rnd1_config(record: Record) -> dict[str, Any]:
    """RND1's settings as Qwen3-MoE's. Published ones say false where Transformers expects null."""
    return {key: value for key, value in same_config(record).items() if value is not False or key not in _MAY_BE_FALSE}


_MAY_BE_FALSE = ("rope_scaling", "sliding_window")


def llada2_config(record: Record) -> dict[str, Any]:
    """LLaDA 2's settings as GLM-4.5's."""
    return same_config(record) | {
        "n_routed_experts": record.integer("num_experts", at_least=1),
        "n_shared_experts": record.integer("num_shared_experts", at_least=1),
        "norm_topk_prob": record.integer("num_experts_per_tok", at_least=1) > 1,
        "use_qk_norm": record.boolean("use_qk_norm", default=True),
        "partial_rotary_factor": record.number("partial_rotary_factor", default=0.5),
        "num_mtp_layers": 0,
    }


_LLADA2_NAMES = {
    r"^model\.word_embeddings\.": "model.embed_tokens.",
    r"\.attention\.dense\.": ".self_attn.o_proj.",
    r"\.attention\.query_layernorm\.": ".self_attn.q_norm.",
    r"\.attention\.key_layernorm\.": ".self_attn.k_norm.",
    r"\.mlp\.gate\.expert_bias$": ".mlp.gate.e_score_correction_bias",
}


def llada2_weights(weights: Mapping[str, Tensor], record: Record) -> dict[str, Tensor]:
    """LLaDA 2's weights as GLM-4.5's: its queries, keys and values come from one matrix."""
    heads = record.integer("num_attention_heads", at_least=1)
    key_heads = record.integer("num_key_value_heads", at_least=1)
    native = {}
    for name, weight in weights.items():
        if ".attention.query_key_value." in name:
            size = len(weight) // (heads + 2 * key_heads)
            parts = weight.split([heads * size, key_heads * size, key_heads * size])
            for part, values in zip("qkv", parts, strict=True):
                native[name.replace("attention.query_key_value", f"self_attn.{part}_proj")] = values
            continue
        for theirs, ours in _LLADA2_NAMES.items():
            name = re.sub(theirs, ours, name)
        native[name] = weight
    return native


def dit_config(record: Record) -> dict[str, Any]:
    """The settings of MDLM's and BD3-LM's diffusion transformer as StarCoder2's; its last token is the mask."""
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
    }


def dit_weights(weights: Mapping[str, Tensor], record: Record) -> dict[str, Tensor]:
    """MDLM's and BD3-LM's diffusion transformer as StarCoder2's layers.

    Each block scales and shifts its normalized states and scales its outputs by values computed from the noise
    level. A network trained without it (`time_conditioning` is false) always gets a noise level of zero, so these
    values are constants: they are folded into the weights and biases of the layer norms and the output projections.
    """
    get = {name: weight.float() for name, weight in weights.items() if name.startswith("backbone.")}.__getitem__
    hidden_size = get("backbone.vocab_embed.embedding").shape[1]
    condition = _noise_embedding(get) if record.boolean("adaln", default=True) else None
    zeros = torch.zeros(hidden_size)
    native = {"model.embed_tokens.weight": get("backbone.vocab_embed.embedding")}
    for layer in range(record.integer("n_blocks", at_least=1)):
        block, layers = f"backbone.blocks.{layer}", f"model.layers.{layer}"
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = _modulation(get, block, condition, hidden_size, 6)
        native[f"{layers}.input_layernorm.weight"] = get(f"{block}.norm1.weight") * (1 + scale)
        native[f"{layers}.input_layernorm.bias"] = shift
        for name, weight in zip("qkv", get(f"{block}.attn_qkv.weight").chunk(3), strict=True):
            native[f"{layers}.self_attn.{name}_proj.weight"] = weight
            native[f"{layers}.self_attn.{name}_proj.bias"] = zeros
        native[f"{layers}.self_attn.o_proj.weight"] = gate[:, None] * get(f"{block}.attn_out.weight")
        native[f"{layers}.self_attn.o_proj.bias"] = zeros
        native[f"{layers}.post_attention_layernorm.weight"] = get(f"{block}.norm2.weight") * (1 + mlp_scale)
        native[f"{layers}.post_attention_layernorm.bias"] = mlp_shift
        native[f"{layers}.mlp.c_fc.weight"] = get(f"{block}.mlp.0.weight")
        native[f"{layers}.mlp.c_fc.bias"] = get(f"{block}.mlp.0.bias")
        native[f"{layers}.mlp.c_proj.weight"] = mlp_gate[:, None] * get(f"{block}.mlp.2.weight")
        native[f"{layers}.mlp.c_proj.bias"] = mlp_gate * get(f"{block}.mlp.2.bias")
    shift, scale = _modulation(get, "backbone.output_layer", condition, hidden_size, 2)
    native["model.norm.weight"] = get("backbone.output_layer.norm_final.weight") * (1 + scale)
    native["model.norm.bias"] = shift
    native["lm_head.weight"] = get("backbone.output_layer.linear.weight")
    native["lm_head.bias"] = get("backbone.output_layer.linear.bias").clone()
    native["lm_head.bias"][-1] += NEVER  # the mask
    return native


def _noise_embedding(get: Callable[[str], Tensor]) -> Tensor:
    """(cond_dim,) the blocks' conditioning for a noise level of zero, whose cosines are 1 and whose sines are 0."""
    first = get("backbone.sigma_map.mlp.0.weight")
    waves = (torch.arange(first.shape[1]) < first.shape[1] // 2).float()
    states = F.silu(F.linear(waves, first, get("backbone.sigma_map.mlp.0.bias")))
    states = F.linear(states, get("backbone.sigma_map.mlp.2.weight"), get("backbone.sigma_map.mlp.2.bias"))
    return F.silu(states)


def _modulation(
    get: Callable[[str], Tensor], block: str, condition: Tensor | None, hidden_size: int, count: int
) -> list[Tensor]:
    """`count` times (hidden_size,): shift, scale and gate of each part of a block; the last part has no gate."""
    if condition is None:
        one = torch.tensor([0.0, 0.0, 1.0])
        return [one[i % 3].expand(hidden_size) for i in range(count)]
    layer = f"{block}.adaLN_modulation"
    return list(F.linear(condition, get(f"{layer}.weight"), get(f"{layer}.bias")).chunk(count))


_LLADA_LAYERS = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
}
_LLADA_WEIGHTS = {
    rf"^model\.transformer\.blocks\.(\d+)\.{theirs}\.": rf"model.layers.\1.{native}."
    for theirs, native in _LLADA_LAYERS.items()
} | {
    r"^model\.transformer\.wte\.": "model.embed_tokens.",
    r"^model\.transformer\.ln_f\.": "model.norm.",
    r"^model\.transformer\.ff_out\.": "lm_head.",
}


def _diffusion_weights(body: str, embeddings: str) -> dict[str, str]:
    """DiffuGPT's and DiffuLLaMA's names."""
    return {r"^denoise_model\.": f"{body}.", r"^embed_tokens\.": f"{body}.{embeddings}."}


_Roberta = partial(Family, positions_after_padding=True)
_Decoder = partial(Family, is_language_model=True)
_Qwen = partial(_Decoder, tokenizer_class="Qwen2Tokenizer")
_Generic = partial(_Decoder, tokenizer_class="PreTrainedTokenizerFast")
_Gpt2 = partial(_Decoder, tokenizer_class="GPT2Tokenizer", tokenizer_name="openai-community/gpt2")
_Dit = partial(
    _Gpt2,
    converts=dit_weights,
    native_config=dit_config,
    appends_mask=True,
    expects={"time_conditioning": False, "causal": False},
    settings=DIT_READS,
)

FAMILIES: dict[str, Family] = {
    "albert": Family("AlbertForMaskedLM"),
    "bert": Family("BertForMaskedLM"),
    "camembert": _Roberta("CamembertForMaskedLM"),
    "convbert": Family("ConvBertForMaskedLM", is_padded=False),
    "data2vec-text": _Roberta("Data2VecTextForMaskedLM"),
    "deberta": Family("DebertaForMaskedLM"),
    "deberta-v2": Family("DebertaV2ForMaskedLM"),
    "distilbert": Family("DistilBertForMaskedLM"),
    "electra": Family("ElectraForMaskedLM"),
    "ernie": Family("ErnieForMaskedLM"),
    "esm": _Roberta("EsmForMaskedLM", expects={"is_folding_model": False}),
    "esmc": Family("EsmcForMaskedLM"),
    "eurobert": Family("EuroBertForMaskedLM"),
    "flaubert": Family(
        "FlaubertWithLMHeadModel", expects={"causal": False, "asm": False, "pre_norm": False, "is_encoder": True}
    ),
    "fnet": Family("FNetForMaskedLM", is_padded=False, expects={"use_tpu_fourier_optimizations": False}),
    "gte": Family("GteForMaskedLM"),
    "ibert": _Roberta("IBertForMaskedLM", expects={"quant_mode": False, "hidden_act": "gelu"}),
    "jina_embeddings_v3": Family("JinaEmbeddingsV3ForMaskedLM"),
    "longformer": _Roberta("LongformerForMaskedLM"),
    "luke": _Roberta("LukeForMaskedLM"),
    "megatron-bert": Family("MegatronBertForMaskedLM"),
    "mobilebert": Family("MobileBertForMaskedLM", is_padded=False),
    "modernbert": Family("ModernBertForMaskedLM"),
    "mpnet": _Roberta("MPNetForMaskedLM", expects={"relative_attention_num_buckets": 32}),
    "nomic_bert": Family("NomicBertForMaskedLM"),
    "rembert": Family("RemBertForMaskedLM"),
    "roberta": _Roberta("RobertaForMaskedLM"),
    "roberta-prelayernorm": _Roberta("RobertaPreLayerNormForMaskedLM"),
    "roformer": Family("RoFormerForMaskedLM"),
    "squeezebert": Family("SqueezeBertForMaskedLM"),
    "ultrabert": Family("UltrabertForMaskedLM"),
    "xlm-roberta": _Roberta("XLMRobertaForMaskedLM"),
    "xlm-roberta-xl": _Roberta("XLMRobertaXLForMaskedLM"),
    "llama": _Decoder("LlamaForCausalLM", is_shifted=True, renames=_diffusion_weights("model", "embed_tokens")),
    "gpt2": _Decoder("GPT2LMHeadModel", is_shifted=True, renames=_diffusion_weights("transformer", "wte")),
    "qwen2": _Decoder("Qwen2ForCausalLM", is_shifted=True),
    "qwen3": _Decoder("Qwen3ForCausalLM"),
    "qwen3_moe": _Decoder("Qwen3MoeForCausalLM"),
    "sdar": _Qwen("Qwen3ForCausalLM", block_size=4, mask_token=151_669, settings=QWEN3_READS),
    "Dream": _Qwen(
        "Qwen2ForCausalLM",
        is_shifted=True,
        mask_token=151_666,
        expects={"use_mrope": False},
        settings=LLAMA_READS,
    ),
    "Fast_dLLM_Qwen": _Qwen(
        "Qwen2ForCausalLM",
        is_shifted=True,
        block_size=32,
        block_key="bd_size",
        mask_token=151_665,
        expects={"use_mrope": False},
        settings=LLAMA_READS,
    ),
    "rnd1": _Qwen(
        "Qwen3MoeForCausalLM",
        is_shifted=True,
        mask_token=151_669,
        native_config=rnd1_config,
        expects={"decoder_sparse_step": 1, "mlp_only_layers": [], "is_causal": False},
        settings=QWEN3_MOE_READS,
    ),
    "llada": _Generic(
        "LlamaForCausalLM",
        mask_token=126_336,
        renames=_LLADA_WEIGHTS,
        native_config=llada_config,
        expects=LLADA_EXPECTS,
        settings=LLADA_READS,
    ),
    "lladamoe": _Generic(
        "Qwen3MoeForCausalLM",
        mask_token=156_895,
        native_config=llada_moe_config,
        expects=LLADA_MOE_EXPECTS,
        settings=LLADA_MOE_READS,
    ),
    "llada2_moe": _Generic(
        "Glm4MoeForCausalLM",
        block_size=32,
        mask_token=156_895,
        converts=llada2_weights,
        native_config=llada2_config,
        expects=LLADA2_EXPECTS,
        settings=LLADA2_READS,
    ),
    "a2d-llama": _Generic("LlamaForCausalLM", appends_mask=True, settings=QWEN3_READS | {"mlp_bias"}),
    "a2d-qwen2": _Qwen("Qwen2ForCausalLM", appends_mask=True, expects={"use_mrope": False}, settings=LLAMA_READS),
    "a2d-qwen3": _Qwen("Qwen3ForCausalLM", appends_mask=True, settings=QWEN3_READS),
    "mdlm": _Dit("Starcoder2ForCausalLM"),
    "bd3lm": _Dit("Starcoder2ForCausalLM", block_size=1),
}
"""By `model_type` in config.json. Llama, GPT-2 and Qwen2 are shifted by default because their undirected descendants
(DiffuLLaMA, DiffuGPT, Dream) are; Qwen3 is not, and neither are dLLM's conversions of these models (`a2d-...`)."""

_BUILT_IN = frozenset(FAMILIES)


END_TOKENS = ("<|eot_id|>", "<|im_end|>", "<|role_end|>")
"""Tokens that end a dialog turn, besides the end-of-sequence token."""


def register_family(model_type: str, family: Family) -> None:
    """Load models with this `model_type` in their config.json as the family says."""
    if model_type in _BUILT_IN:
        raise InputError(f"there is already a family '{model_type}': choose another name")
    FAMILIES[model_type] = family


def family_of(record: Record) -> Family:
    """A model's family, from its config.json, which may say otherwise about shift and blocks."""
    kind = record.text("model_type", default="")
    if kind == "llada" and "num_experts" in record:  # LLaDA-MoE's checkpoints on the hub use this type
        kind = "lladamoe"
    if kind in ("anyorder", "xlm"):
        raise InputError(f"{record.where}: is a translation model, which is for translate, not for filling masks")
    if kind not in FAMILIES:
        raise InputError(
            f"{record.where}: model_type '{kind}' is not one of the masked models that can be loaded "
            f"({', '.join(sorted(FAMILIES))})"
        )
    family = FAMILIES[kind]
    is_shifted = bool(record.integer("logits_shift", at_most=1, default=int(family.is_shifted)))
    has_blocks = record.boolean("cross_attn", default=True)  # BD3-LM is first trained without blocks
    if not (family.is_language_model and has_blocks):
        return replace(family, is_shifted=is_shifted, block_size=None)
    block_size = record.integer(family.block_key, at_least=1, default=family.block_size)
    return replace(family, is_shifted=is_shifted, block_size=block_size)
