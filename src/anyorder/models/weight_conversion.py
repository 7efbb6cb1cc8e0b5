"""Weights of other projects' checkpoints that need more than renaming to fit a native class.

A missing weight raises a `KeyError`; weights that are not needed are left out.
"""

import re
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from anyorder.files.records import Record

NEVER = -1e6
"""Added to the logit of a token that the model never predicts."""


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
