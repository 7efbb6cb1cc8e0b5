"""Layers of Transformers models that sum in a fixed order on the CPU, so that no result depends on its batch."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.models.native.transformer import ROWS, Linear, float32_linear, is_exact, linear, rowwise_linear


def sum_in_fixed_order(network: nn.Module) -> None:
    """Turn linear layers, experts and routers into this module's, with the same weights."""
    from transformers.pytorch_utils import Conv1D

    output = network.get_output_embeddings()  # type: ignore[operator]
    for module in network.modules():
        kind = type(module)
        if kind is nn.Linear:
            module.__class__ = _OutputLinear if module is output else Linear
        elif kind is Conv1D or kind.__name__ in ("Qwen3MoeTopKRouter", "Glm4MoeTopkRouter"):
            module.__class__ = type("RowwiseLayer", (_RowwiseLayer, kind), {})
        elif kind.__name__ in ("Qwen3MoeExperts", "Glm4MoeExperts"):
            module.__class__ = type("RowwiseExperts", (_RowwiseExperts, kind), {})


class _OutputLinear(nn.Linear):
    """The output layer, whose results are float32 on CUDA too."""

    def forward(self, states: Tensor) -> Tensor:
        if not states.is_cuda:
            return linear(states, self.weight, self.bias)
        return float32_linear(states, self.weight, self.bias)


class _RowwiseExperts(nn.Module):
    """Gated feed-forward layers; each token uses some of them."""

    gate_up_proj: Tensor
    """(experts, 2 * intermediate_size, hidden_size)"""
    down_proj: Tensor
    """(experts, hidden_size, intermediate_size)"""
    act_fn: Any

    def forward(self, states: Tensor, experts: Tensor, shares: Tensor) -> Tensor:
        """states: (tokens, hidden_size); experts, shares: (tokens, k) each token's experts and their weights."""
        if not is_exact(states):
            return super().forward(states, experts, shares)  # type: ignore[misc]
        total = torch.zeros_like(states)
        for expert in experts.unique().tolist():  # ascending, so that each token sums in the same order
            tokens, place = (experts == expert).nonzero(as_tuple=True)
            # Elementwise kernels handle the last few elements of a tensor differently, so these are padding.
            inputs = F.pad(states[tokens], (0, 0, 0, -len(tokens) % ROWS))
            gate, up = rowwise_linear(inputs, self.gate_up_proj[expert]).chunk(2, -1)
            outputs = rowwise_linear(self.act_fn(gate) * up, self.down_proj[expert])[: len(tokens)]
            total.index_add_(0, tokens, outputs * shares[tokens, place, None])
        return total


class _RowwiseLayer(nn.Module):
    """Has a matrix product inside `forward`: a router of experts, or GPT-2's linear layer."""

    def forward(self, states: Tensor) -> Any:
        if not is_exact(states):
            return super().forward(states)  # type: ignore[misc]
        with RowwiseProducts():
            return super().forward(states)  # type: ignore[misc]


class RowwiseProducts(torch.overrides.TorchFunctionMode):
    """Makes products of states and a matrix sum in a fixed order."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.addmm:
            bias, states, weight = args
            return rowwise_linear(states, weight.t(), bias)
        if function in (torch.matmul, Tensor.matmul, Tensor.__matmul__) and args[1].ndim == 2:
            return rowwise_linear(args[0], args[1].t())
        return rowwise_linear(*args) if function is F.linear else function(*args, **(kwargs or {}))
