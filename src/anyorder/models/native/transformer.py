"""The XLM Transformer (Lample & Conneau 2019) on packed batches: post-LayerNorm, no causal mask, learned positions.

It works on tokens, positions and languages, and asks an `AttentionPattern` who attends to whom. It knows nothing about
sentences, masks, orders or text. On the CPU, linear layers sum at fixed places, so no row depends on its batch.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.errors import InputError, check_number
from anyorder.models.native.attention import AttentionPattern, QueryPositions, next_power, runs_triton

EPSILON = 1e-12
"""Of layer normalization, as in XLM."""


@dataclass(frozen=True)
class TransformerConfig:
    """The size of a model."""

    hidden_size: int = 512
    """Size of the hidden states (d)."""
    num_layers: int = 6
    """Number of Transformer layers."""
    num_heads: int = 8
    """Number of attention heads; must divide the hidden size."""
    max_positions: int = 256
    """Maximum sentence length, including delimiters."""
    dropout: float = 0.1
    """Dropout on embeddings and on every sublayer's output."""
    source_sees_target: bool = False
    """True: full attention, as in XLM. False: the source does not attend to the target, so decoding computes the source
    once per sentence instead of once per step."""

    def __post_init__(self) -> None:
        for name, largest in (("hidden_size", 65_536), ("num_layers", 1024), ("num_heads", 65_536)):
            check_number(name, getattr(self, name), at_least=1, at_most=largest, config=TransformerConfig)
        check_number("max_positions", self.max_positions, at_least=3, at_most=1 << 24, config=TransformerConfig)
        check_number("dropout", self.dropout, at_least=0, below=1, config=TransformerConfig)
        if self.hidden_size % self.num_heads:
            message = f"{self.hidden_size} is not a multiple of {self.num_heads} heads"
            raise InputError(message, "hidden_size", TransformerConfig)


class Transformer(nn.Module):
    def __init__(self, config: TransformerConfig, vocab_size: int, languages: int, activation: str = "gelu"):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_positions, config.hidden_size)
        # Some models (XLM-17, XLM-100) have no language embeddings.
        self.languages = nn.Embedding(languages, config.hidden_size) if languages else None
        self.norm = nn.LayerNorm(config.hidden_size, eps=EPSILON)
        self.layers = nn.ModuleList(Layer(config, activation) for _ in range(config.num_layers))
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=config.hidden_size**-0.5)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        languages: Tensor,
        pattern: AttentionPattern,
        at: QueryPositions | None = None,
    ) -> Tensor:
        """The last hidden states at these positions, or at all: (queries or tokens, hidden_size).

        tokens, positions, languages: (tokens,)
        """
        return self.last(self.below_last(tokens, positions, languages, pattern), pattern, at)

    def below_last(self, tokens: Tensor, positions: Tensor, languages: Tensor, pattern: AttentionPattern) -> Tensor:
        """Everything but the last layer: (tokens, hidden_size)."""
        states = self.tokens(tokens) + self.positions(positions)
        if self.languages is not None:
            states = states + self.languages(languages)
        states = F.dropout(self.norm(states), self.config.dropout, self.training)
        if torch.is_autocast_enabled(states.device.type):
            states = states.to(torch.get_autocast_dtype(states.device.type))
        for index, layer in enumerate(self.layers[:-1]):
            states = layer(states, pattern, index)
        return states

    def last(self, below: Tensor, pattern: AttentionPattern, at: QueryPositions | None = None) -> Tensor:
        """The last layer, given what the others return. With `at`, it is computed at those positions only."""
        return self.layers[-1](below, pattern, len(self.layers) - 1, at)


class Layer(nn.Module):
    def __init__(self, config: TransformerConfig, activation: str):
        super().__init__()
        self.heads = config.num_heads
        self.dropout = config.dropout
        self.activation = activation
        width = config.hidden_size
        self.query = Linear(width, width)
        self.key_value = Linear(width, 2 * width)
        self.attended = Linear(width, width)
        self.norm_attention = nn.LayerNorm(width, eps=EPSILON)
        self.inner = Linear(width, 4 * width)
        self.outer = Linear(4 * width, width)
        self.norm_feedforward = nn.LayerNorm(width, eps=EPSILON)

    def forward(
        self, states: Tensor, pattern: AttentionPattern, index: int, at: QueryPositions | None = None
    ) -> Tensor:
        both = self.keys_values(states)
        if at is not None:
            states = states[at.rows]
        query = self.query(states).unflatten(-1, (self.heads, -1))
        attended = self.attended(pattern.attend(index, query, both, at).flatten(-2))
        states = self._add(states, attended, self.norm_attention)
        inner = self.inner(states)
        inner = F.gelu(inner) if self.activation == "gelu" else F.relu(inner)
        return self._add(states, self.outer(inner), self.norm_feedforward)

    def keys_values(self, states: Tensor) -> Tensor:
        """(tokens, 2, heads, size)"""
        return self.key_value(states).unflatten(-1, (2, self.heads, -1))

    def _add(self, states: Tensor, change: Tensor, norm: nn.LayerNorm) -> Tensor:
        if runs_triton(states):
            return add_norm(states, change, norm.weight, norm.bias, EPSILON)
        summed = states + F.dropout(change, self.dropout, self.training)
        return norm(summed).to(states.dtype)


def add_norm(states: Tensor, change: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """The LayerNorm of `states + change`, each (rows, hidden_size), in one kernel: it reads and writes a third less."""
    from anyorder.models.native.triton_kernels import norm

    rows, width = states.shape
    out = torch.empty_like(states)
    if rows:
        norm[(rows,)](
            states, change, weight, bias, out, states.stride(0), change.stride(0), out.stride(0), width,
            EPSILON=epsilon, BLOCK=next_power(width), num_warps=4 if width <= 1024 else 8,
        )  # fmt: skip
    return out


class Linear(nn.Linear):
    """A linear layer whose CPU inference gives a row bitwise the same result in any batch."""

    def forward(self, states: Tensor) -> Tensor:
        return linear(states, self.weight, self.bias)


ROWS, SUM = 16, 512
"""See `rowwise_linear`."""


def linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` with `Linear`'s guarantee."""
    return rowwise_linear(states, weight, bias) if is_exact(states) else F.linear(states, weight, bias)


def float32_linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` with float32 results, for logits: half precision would tie the best tokens. states: (rows, in)"""
    if not states.is_cuda or states.dtype == torch.float32:
        return linear(states, weight, bias).float()
    product = torch.mm(states, weight.t(), out_dtype=torch.float32)
    return product if bias is None else product + bias.float()


def is_exact(states: Tensor) -> bool:
    """Whether results are bitwise reproducible: single-precision inference on the CPU."""
    return not states.is_cuda and states.dtype == torch.float32 and not torch.is_grad_enabled()


def rowwise_linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, each row bitwise the same in any batch. states: (..., in); weight: (out, in)

    How matrix libraries split a sum depends on the number of rows, unless there are at least `ROWS` rows and the sum
    has at most `SUM` terms. So short batches are padded and long sums are split, always at the same places.
    """
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    shape, states = states.shape[:-1], states.flatten(0, -2)
    rows = len(states)
    if rows < ROWS:
        states = F.pad(states, (0, 0, 0, ROWS - rows))
    out = torch.addmm(bias, states[:, :SUM], weight[:, :SUM].t())
    for start in range(SUM, weight.shape[1], SUM):
        stop = start + SUM
        out.addmm_(states[:, start:stop], weight[:, start:stop].t())
    return out[:rows].unflatten(0, shape)
