"""The families of Transformers models that can be decoded: native class, output layers, conventions. No torch here.

A repository that comes with model code of its own is read by renaming its weights into a native class; its code is
never run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anyorder.errors import InputError
from anyorder.files.records import Record

_NOT_SETTINGS = ("architectures", "auto_map", "model_type", "transformers_version", "torch_dtype", "dtype")


def _same_config(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.values.items() if key not in _NOT_SETTINGS}


@dataclass(frozen=True)
class Family:
    """What is known of the models with one `model_type`."""

    class_name: str
    """The class in Transformers."""
    head: tuple[str, ...] = ("lm_head",)
    """Its modules that turn the last hidden states into logits, one after the other."""
    is_language_model: bool = False
    """Whether it generates texts that may end early: end-of-sequence tokens may then be filled in."""
    is_shifted: bool = False
    """Whether position i is predicted by the output at i - 1, as in models that were autoregressive once.
    `logits_shift` (0 or 1) in config.json takes precedence."""
    block_size: int | None = None
    """Block-causal attention: a position sees its own block of so many positions and those before it, as in SDAR. None
    where every position sees all. `block_size` in config.json takes precedence."""
    positions_after_padding: bool = False
    """Whether positions are counted from the number of the padding token, as in RoBERTa."""
    has_spaces: bool = True
    """False where tokens are written without spaces between them, as in proteins."""
    tokenizer_class: str = "AutoTokenizer"
    mask_token: int | None = None
    """The id of the mask, where neither the tokenizer nor config.json names it."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Patterns of weight names, and what replaces them."""
    native_config: Callable[[Record], dict[str, Any]] = _same_config
    """From config.json to the settings of the native class."""


def _llada_config(record: Record) -> dict[str, Any]:
    """LLaDA's settings as Llama's."""
    expected: dict[str, Any] = {"block_type": "llama", "layer_norm_type": "rms", "rope": True, "alibi": False}
    expected |= {"include_bias": False, "include_qkv_bias": False, "activation_type": "silu"}
    for key, value in expected.items():
        if record.values.get(key) not in (value, None):
            raise record.error(key, f"{record.values[key]}, expected {value} as in LLaDA")
    hidden_size, heads = record.integer("d_model", at_least=1), record.integer("n_heads", at_least=1)

    def given(key: str, default: int) -> int:
        return default if record.values.get(key) is None else record.integer(key, at_least=1)

    ids = {key: record.values[key] for key in ("mask_token_id", "eos_token_id", "pad_token_id") if key in record}
    return ids | {
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
    "llama": Family(
        "LlamaForCausalLM",
        is_language_model=True,
        is_shifted=True,
        renames=_diffusion_weights("model", "embed_tokens"),
    ),
    "gpt2": Family(
        "GPT2LMHeadModel", is_language_model=True, is_shifted=True, renames=_diffusion_weights("transformer", "wte")
    ),
    "qwen2": Family("Qwen2ForCausalLM", is_language_model=True, is_shifted=True),
    "qwen3": Family("Qwen3ForCausalLM", is_language_model=True),
    "sdar": Family(
        "Qwen3ForCausalLM",
        is_language_model=True,
        block_size=4,
        tokenizer_class="Qwen2Tokenizer",
        mask_token=151_669,
    ),
    "Dream": Family(
        "Qwen2ForCausalLM",
        is_language_model=True,
        is_shifted=True,
        tokenizer_class="Qwen2Tokenizer",
        mask_token=151_666,
    ),
    "llada": Family(
        "LlamaForCausalLM",
        is_language_model=True,
        tokenizer_class="PreTrainedTokenizerFast",
        mask_token=126_336,
        renames=_LLADA_WEIGHTS,
        native_config=_llada_config,
    ),
}
"""By `model_type` in config.json. Llama, GPT-2 and Qwen2 are shifted by default because those that were made undirected
(DiffuLLaMA, DiffuGPT, Dream) are; Qwen3 is not."""

END_TOKENS = ("<|eot_id|>", "<|im_end|>")
"""Tokens that end a turn of a dialog, besides the end-of-sequence token."""


def family_of(record: Record) -> Family:
    """The family of a model by its config.json."""
    kind = record.text("model_type", default="")
    if kind not in FAMILIES:
        raise InputError(
            f"{record.where}: model_type '{kind}' is not one of the masked models that can be loaded "
            f"({', '.join(sorted(FAMILIES))})"
        )
    return FAMILIES[kind]
