"""The families of Transformers models that can be decoded: native class, output layers, conventions.

A repository with its own model code is loaded by renaming or rearranging its weights to fit a native class; its code is
never run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from anyorder.errors import InputError
from anyorder.models.hf.conversion import (
    dit_config,
    dit_weights,
    llada2_config,
    llada2_weights,
    llada_config,
    llada_moe_config,
    same_config,
)
from anyorder.records import Record

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Family:
    """Properties of the models with one `model_type`."""

    class_name: str
    """The class in Transformers."""
    head: tuple[str, ...] = ("lm_head",)
    """The modules that turn the last hidden states into logits, in order."""
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
    has_spaces: bool = True
    """False if tokens are written without spaces between them, as in proteins."""
    tokenizer_class: str = "AutoTokenizer"
    tokenizer_name: str | None = None
    """The model on the hub whose tokenizer it uses, if checkpoints come without one."""
    mask_token: int | None = None
    """The mask token's id, if neither the tokenizer nor config.json names it."""
    appends_mask: bool = False
    """Whether the mask is the first id after the vocabulary, if nothing else names it."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions for weight names, and their replacements."""
    converts: "Callable[[Mapping[str, Tensor], Record], dict[str, Tensor]] | None" = None
    """Converts the checkpoint's weights to those of the native class, if renaming is not enough."""
    native_config: Callable[[Record], dict[str, Any]] = same_config
    """Converts config.json to the settings of the native class."""


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


_Decoder = partial(Family, is_language_model=True)
_Qwen = partial(_Decoder, tokenizer_class="Qwen2Tokenizer")
_Generic = partial(_Decoder, tokenizer_class="PreTrainedTokenizerFast")
_Gpt2 = partial(_Decoder, tokenizer_class="GPT2Tokenizer", tokenizer_name="openai-community/gpt2")
_Dit = partial(_Gpt2, converts=dit_weights, native_config=dit_config)

FAMILIES: dict[str, Family] = {
    "bert": Family("BertForMaskedLM", ("cls",)),
    "distilbert": Family(
        "DistilBertForMaskedLM", ("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector")
    ),
    "roberta": Family("RobertaForMaskedLM", positions_after_padding=True),
    "xlm-roberta": Family("XLMRobertaForMaskedLM", positions_after_padding=True),
    "modernbert": Family("ModernBertForMaskedLM", ("head", "decoder")),
    "esm": Family("EsmForMaskedLM", positions_after_padding=True, has_spaces=False),
    "eurobert": Family("EuroBertForMaskedLM"),
    "llama": _Decoder("LlamaForCausalLM", is_shifted=True, renames=_diffusion_weights("model", "embed_tokens")),
    "gpt2": _Decoder("GPT2LMHeadModel", is_shifted=True, renames=_diffusion_weights("transformer", "wte")),
    "qwen2": _Decoder("Qwen2ForCausalLM", is_shifted=True),
    "qwen3": _Decoder("Qwen3ForCausalLM"),
    "qwen3_moe": _Decoder("Qwen3MoeForCausalLM"),
    "sdar": _Qwen("Qwen3ForCausalLM", block_size=4, mask_token=151_669),
    "Dream": _Qwen("Qwen2ForCausalLM", is_shifted=True, mask_token=151_666),
    "Fast_dLLM_Qwen": _Qwen(
        "Qwen2ForCausalLM", is_shifted=True, block_size=32, block_key="bd_size", mask_token=151_665
    ),
    "rnd1": _Qwen("Qwen3MoeForCausalLM", is_shifted=True, mask_token=151_669),
    "llada": _Generic("LlamaForCausalLM", mask_token=126_336, renames=_LLADA_WEIGHTS, native_config=llada_config),
    "lladamoe": _Generic("Qwen3MoeForCausalLM", mask_token=156_895, native_config=llada_moe_config),
    "llada2_moe": _Generic(
        "Glm4MoeForCausalLM", block_size=32, mask_token=156_895, converts=llada2_weights, native_config=llada2_config
    ),
    "a2d-llama": _Generic("LlamaForCausalLM", appends_mask=True),
    "a2d-qwen2": _Qwen("Qwen2ForCausalLM", appends_mask=True),
    "a2d-qwen3": _Qwen("Qwen3ForCausalLM", appends_mask=True),
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
