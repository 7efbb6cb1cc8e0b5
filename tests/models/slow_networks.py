"""Networks of other projects, written out slowly from their papers and formulas: one position, head and expert at a time.

Weights carry the names of the projects' own checkpoints. Nothing here uses Transformers.
"""

import math
from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def random_weights(shapes: dict[str, tuple[int, ...]], scale: float = 0.4) -> Weights:
    generator = torch.Generator().manual_seed(3)
    return {name: scale * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def rms_norm(states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return torch.stack([row / math.sqrt(float((row * row).mean()) + epsilon) * weight for row in states])


def layer_norm(states: Tensor, weight: Tensor) -> Tensor:
    return torch.stack([(row - row.mean()) / torch.sqrt(row.var(correction=0) + 1e-5) * weight for row in states])


def rotated(heads: Tensor, theta: float, dims: int) -> Tensor:
    """heads: (T, heads, size). Dimension i of the first `dims` turns with dimension i + dims/2."""
    turned = heads.clone()
    for position in range(len(heads)):
        for i in range(dims // 2):
            angle = position / theta ** (2 * i / dims)
            a, b = heads[position, :, i], heads[position, :, i + dims // 2]
            turned[position, :, i] = a * math.cos(angle) - b * math.sin(angle)
            turned[position, :, i + dims // 2] = b * math.cos(angle) + a * math.sin(angle)
    return turned


def attention(queries: Tensor, keys: Tensor, values: Tensor, block: int | None) -> Tensor:
    """(T, heads, size), (T, key heads, size) twice: to (T, heads * size). block: of block-causal attention."""
    length, heads, size = queries.shape
    out = torch.zeros_like(queries)
    for head in range(heads):
        shared = head * keys.shape[1] // heads
        for t in range(length):
            end = length if block is None else min(length, (t // block + 1) * block)
            chances = (keys[:end, shared] @ queries[t, head] / math.sqrt(size)).softmax(0)
            out[t, head] = chances @ values[:end, shared]
    return out.flatten(1)


def swiglu(weights: Weights, name: str, state: Tensor, act: str = "silu") -> Tensor:
    gate, up, down = (weights[f"{name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return down @ (getattr(torch.nn.functional, act)(gate @ state) * (up @ state))


def llada_logits(weights: Weights, config: dict[str, Any], tokens: list[int]) -> Tensor:
    """LLaDA's network as its code computes it, with the settings that are not refused."""
    weights = {name.removeprefix("model.transformer."): weight.double() for name, weight in weights.items()}
    heads, epsilon = config["n_heads"], config["rms_norm_eps"]
    shared = 1 if config.get("multi_query_attention") else heads
    key_heads = shared if config.get("n_kv_heads") is None else config["n_kv_heads"]
    size = config["d_model"] // heads
    states = weights["wte.weight"][tokens]
    for i in range(config["n_layers"]):
        block = f"blocks.{i}"
        normed = rms_norm(states, weights[f"{block}.attn_norm.weight"], epsilon)
        q, k, v = ((normed @ weights[f"{block}.{one}_proj.weight"].T).unflatten(1, (-1, size)) for one in "qkv")
        assert (q.shape[1], k.shape[1], v.shape[1]) == (heads, key_heads, key_heads)
        q, k = (rotated(one, config["rope_theta"], size) for one in (q, k))
        states = states + attention(q, k, v, None) @ weights[f"{block}.attn_out.weight"].T
        normed = rms_norm(states, weights[f"{block}.ff_norm.weight"], epsilon)
        gates = torch.nn.functional.silu(normed @ weights[f"{block}.ff_proj.weight"].T)
        states = states + gates * (normed @ weights[f"{block}.up_proj.weight"].T) @ weights[f"{block}.ff_out.weight"].T
    output = weights["wte.weight" if config["weight_tying"] else "ff_out.weight"]
    return rms_norm(states, weights["ln_f.weight"], epsilon) @ output.T


def decoder_logits(weights: Weights, config: dict[str, Any], tokens: list[int], kind: str) -> Tensor:
    """LLaDA-MoE (`lladamoe`) and LLaDA 2 (`llada2_moe`)."""
    weights = {name: weight.double() for name, weight in weights.items()}
    is_second = kind == "llada2_moe"
    heads, key_heads, epsilon = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "rms_norm_eps"))
    size = (config.get("head_dim") if is_second else None) or config["hidden_size"] // heads
    act = config["hidden_act"]
    dims = int(size * config["partial_rotary_factor"])
    embeddings = weights["model.word_embeddings.weight" if is_second else "model.embed_tokens.weight"]
    states, output = embeddings[tokens], embeddings if config["tie_word_embeddings"] else weights["lm_head.weight"]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        normed = rms_norm(states, weights[f"{layer}.input_layernorm.weight"], epsilon)
        if is_second:
            attend, q_norm, k_norm, out = "attention", "query_layernorm", "key_layernorm", "dense"
            together = (normed @ weights[f"{layer}.attention.query_key_value.weight"].T).unflatten(1, (-1, size))
            q, k, v = together.split([heads, key_heads, key_heads], 1)
        else:
            attend, q_norm, k_norm, out = "self_attn", "q_norm", "k_norm", "o_proj"
            q, k, v = (
                (normed @ weights[f"{layer}.self_attn.{one}_proj.weight"].T).unflatten(1, (-1, size)) for one in "qkv"
            )
        if config.get("use_qk_norm", True):
            q = rms_norm(q.flatten(0, 1), weights[f"{layer}.{attend}.{q_norm}.weight"], epsilon).view_as(q)
            k = rms_norm(k.flatten(0, 1), weights[f"{layer}.{attend}.{k_norm}.weight"], epsilon).view_as(k)
        q, k = (rotated(one, config["rope_theta"], dims) for one in (q, k))
        block = config["block_size"] if is_second else None
        states = states + attention(q, k, v, block) @ weights[f"{layer}.{attend}.{out}.weight"].T
        normed = rms_norm(states, weights[f"{layer}.post_attention_layernorm.weight"], epsilon)
        has_experts = i >= config["first_k_dense_replace"] if is_second else config["moe_layer_freq"][i] == 1
        change = []
        for state in normed:
            if not has_experts:
                change.append(swiglu(weights, f"{layer}.mlp", state, act))
                continue
            logits = weights[f"{layer}.mlp.gate.weight"] @ state
            if is_second:
                shares = grouped_shares(logits.sigmoid(), weights[f"{layer}.mlp.gate.expert_bias"], config)
                total = swiglu(weights, f"{layer}.mlp.shared_experts", state, act)
            else:
                chances = logits.softmax(0)
                shares = {
                    int(e): float(chances[e]) for e in chances.argsort(descending=True)[: config["num_experts_per_tok"]]
                }
                total = torch.zeros_like(state)
            for expert, share in shares.items():
                total = total + share * swiglu(weights, f"{layer}.mlp.experts.{expert}", state, act)
            change.append(total)
        states = states + torch.stack(change)
    return rms_norm(states, weights["model.norm.weight"], epsilon) @ output.T


def grouped_shares(scores: Tensor, bias: Tensor, config: dict[str, Any]) -> dict[int, float]:
    """Experts compete, with their biases, inside the groups whose two best experts are best together."""
    ranking = scores + bias
    groups = list(range(len(scores))), config["n_group"]
    size = len(scores) // groups[1]
    members = [groups[0][g * size : (g + 1) * size] for g in range(groups[1])]
    members.sort(key=lambda experts: -sum(sorted((float(ranking[e]) for e in experts), reverse=True)[:2]))
    candidates = [expert for experts in members[: config["topk_group"]] for expert in experts]
    chosen = sorted(candidates, key=lambda e: -float(ranking[e]))[: config["num_experts_per_tok"]]
    total = sum(float(scores[e]) for e in chosen)
    return {e: float(scores[e]) / total * config["routed_scaling_factor"] for e in chosen}


def dit_logits(weights: Weights, config: dict[str, Any], tokens: list[int], block: int | None) -> Tensor:
    """MDLM's and BD3-LM's diffusion transformer at noise level zero."""
    weights = {name.removeprefix("backbone."): weight.double() for name, weight in weights.items()}

    def linear(states: Tensor, name: str) -> Tensor:
        out = states @ weights[f"{name}.weight"].T
        return out + weights[f"{name}.bias"] if f"{name}.bias" in weights else out

    silu, gelu = torch.nn.functional.silu, torch.nn.functional.gelu
    condition = None
    if config.get("adaln", True):
        half = weights["sigma_map.mlp.0.weight"].shape[1] // 2
        frequencies = [math.exp(-math.log(10_000) * i / half) for i in range(half)]
        level = 0.0
        waves = [math.cos(level * f) for f in frequencies] + [math.sin(level * f) for f in frequencies]
        embedded = linear(silu(linear(torch.tensor(waves).double(), "sigma_map.mlp.0")), "sigma_map.mlp.2")
        condition = silu(embedded)
    states = weights["vocab_embed.embedding"][tokens]
    for i in range(config["n_blocks"]):
        name = f"blocks.{i}"
        shift, scale, gate, shift_2, scale_2, gate_2 = 0.0, 0.0, 1.0, 0.0, 0.0, 1.0
        if condition is not None:
            shift, scale, gate, shift_2, scale_2, gate_2 = linear(condition, f"{name}.adaLN_modulation").chunk(6)
        normed = layer_norm(states, weights[f"{name}.norm1.weight"]) * (1 + scale) + shift
        q, k, v = linear(normed, f"{name}.attn_qkv").unflatten(1, (3, config["n_heads"], -1)).unbind(1)
        size = q.shape[-1]
        attended = attention(rotated(q, 10_000, size), rotated(k, 10_000, size), v, block)
        states = states + gate * linear(attended, f"{name}.attn_out")
        normed = layer_norm(states, weights[f"{name}.norm2.weight"]) * (1 + scale_2) + shift_2
        states = states + gate_2 * linear(gelu(linear(normed, f"{name}.mlp.0"), approximate="tanh"), f"{name}.mlp.2")
    shift, scale = (0.0, 0.0) if condition is None else linear(condition, "output_layer.adaLN_modulation").chunk(2)
    normed = layer_norm(states, weights["output_layer.norm_final.weight"]) * (1 + scale) + shift
    logits = linear(normed, "output_layer.linear")
    logits[:, -1] -= 1e6  # the mask is never predicted
    return logits
