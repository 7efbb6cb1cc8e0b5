"""The undirected translation model: Transformer, tied output layer, length predictor, vocabulary."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.data.packing import pack_sentences
from anyorder.data.text import TextConfig
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError
from anyorder.models.attention import FullAttention, Segments, to_device
from anyorder.models.length import LengthPredictor, LengthTable, likely_lengths, pool
from anyorder.models.transformer import Transformer, TransformerConfig, rowwise_linear


@dataclass(frozen=True)
class ModelConfig:
    """Everything about a model that is not a weight."""

    transformer: TransformerConfig
    vocab_size: int
    """Size of the vocabulary."""
    languages: tuple[str, ...]
    """A language's number is its place here."""
    text: TextConfig = field(default_factory=TextConfig)
    activation: str = "gelu"
    language_embeddings: bool = True
    predicts_length: bool = True
    """False where the length predictor was never trained, as in models of other projects."""

    @property
    def directions(self) -> list[str]:
        return [f"{a}-{b}" for a in self.languages for b in self.languages if a != b]

    def direction(self, name: str) -> tuple[int, int]:
        """Numbers of the source and target language of a direction such as `de-en`."""
        source, _, target = name.partition("-")
        for language in (source, target):
            if language not in self.languages or source == target:
                raise InputError(f"unknown direction '{name}': this model translates {', '.join(self.directions)}")
        return self.languages.index(source), self.languages.index(target)


class TranslationModel(nn.Module):
    """Call `TranslationModel.from_pretrained` for a trained one."""

    def __init__(self, config: ModelConfig, vocabulary: Vocabulary):
        super().__init__()
        if len(vocabulary) != config.vocab_size:
            raise InputError(
                f"wrong vocabulary: it has {len(vocabulary)} entries, the model was trained with {config.vocab_size}"
            )
        self.config = config
        self.vocabulary = vocabulary
        self.length_table: LengthTable | None = None
        self.path: Path | None = None
        """The folder it was loaded from; learned orders lie there."""
        languages = len(config.languages)
        self.transformer = Transformer(
            config.transformer, config.vocab_size, languages if config.language_embeddings else 0, config.activation
        )
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.length = LengthPredictor(config.transformer.hidden_size, config.transformer.max_positions, languages)

    @property
    def device(self) -> torch.device:
        return self.output_bias.device

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of all tokens, in float32 when decoding: half precision would tie the best ones. (places, tokens)"""
        weight = self.transformer.tokens.weight
        if torch.is_grad_enabled():
            return F.linear(hidden, weight, self.output_bias)
        if hidden.is_cuda and hidden.dtype != torch.float32:
            return torch.mm(hidden, weight.t(), out_dtype=torch.float32) + self.output_bias.float()
        if hidden.dtype == torch.float32 and not hidden.is_cuda:
            return rowwise_linear(hidden, weight, self.output_bias)
        return F.linear(hidden, weight, self.output_bias).float()

    def forward_flops(self, run: float, last: float, predicted: float) -> float:
        """Multiplications of a forward pass: tokens that run, those that enter the last layer, those predicted."""
        size = self.config.transformer
        everywhere = (12 * (size.num_layers - 1) + 2) * run + 10 * last
        return float(everywhere * size.hidden_size**2 + predicted * self.config.vocab_size * size.hidden_size)

    @torch.inference_mode()
    def predict_lengths(self, sources: list[np.ndarray], direction: str, count: int) -> list[list[int]]:
        """The `count` most likely target lengths for each source, best first."""
        if not self.config.predicts_length:
            raise InputError("this model has no trained length predictor: give the lengths (--length gold) or train it")
        source_language, target_language = self.config.direction(direction)
        row = pack_sentences(sources, np.full(len(sources), source_language), self.vocabulary.eos)
        device = self.device
        below = self.transformer.below_last(
            to_device(row.tokens, device),
            to_device(row.positions, device),
            to_device(row.languages, device),
            FullAttention(Segments.of(row.sizes, device)),
        )
        sentence = to_device(np.repeat(np.arange(len(sources)), row.sizes), device)
        lengths = row.sizes - 2
        scores = self.length(
            pool(below, sentence, len(sources)).to(below.dtype),
            to_device(lengths, device),
            torch.full((len(sources),), target_language, device=device),
        )
        longest = self.config.transformer.max_positions - 2
        return likely_lengths(scores.float().cpu().numpy(), lengths, count, longest)

    @classmethod
    def from_pretrained(
        cls, name: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> "TranslationModel":
        """A model from a folder, a bundled one by name (`de-en`), or one on the Hugging Face hub (`owner/name`).

        Folders of Hugging Face's own XLM models work too.
        """
        from anyorder.models.checkpoint import load

        return load(name).to(device=device, dtype=dtype).eval()

    def save_pretrained(self, folder: str | Path, storage: str = "float32") -> None:
        """Write config.json, model.safetensors and tokenizer.json; `storage` is float32, bfloat16 or int8."""
        from anyorder.models.checkpoint import save

        save(self, Path(folder), storage)
