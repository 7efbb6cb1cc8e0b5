"""Prompts and settings as Transformers' `generate` takes them, and tensors as it returns them."""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError, check_number
from anyorder.models.hf.pretrained import TransformersModel

_APPLIED = (
    "max_new_tokens", "max_length", "eos_token_id", "pad_token_id", "do_sample", "temperature", "top_p", "top_k",
    "num_beams", "return_dict_in_generate",
)  # fmt: skip
_IGNORED = (
    "transformers_version", "bos_token_id", "decoder_start_token_id", "use_cache", "cache_implementation",
    "cache_config", "max_cache_len", "low_memory", "compile_config", "disable_compile", "prefill_chunk_size",
    "continuous_batching_config", "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
)  # fmt: skip
"""They change how Transformers computes or what else it returns, but not the ids; or they have no meaning here."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "min_length": (0,), "min_new_tokens": (0,), "num_return_sequences": (1,), "num_beam_groups": (1,),
    "repetition_penalty": (1,), "encoder_repetition_penalty": (1,), "length_penalty": (1,), "diversity_penalty": (0,),
    "no_repeat_ngram_size": (0,), "encoder_no_repeat_ngram_size": (0,), "typical_p": (1,), "min_p": (0,),
    "epsilon_cutoff": (0,), "eta_cutoff": (0,), "guidance_scale": (1,),
}  # fmt: skip
"""With these values, a setting that is not supported changes nothing."""


@dataclass(frozen=True)
class GeneratedIds:
    """What `generate_ids` returns with `return_dict_in_generate`."""

    sequences: Tensor
    """(B, prompt + new) int64: the prompts as they were given, and the new tokens; padding after an end token."""
    steps: Tensor
    """(B, new) int64: the step, from 1, at which each new token was filled in; 0 at padding."""
    logprobs: Tensor
    """(B, new) float32: its log-probability when it was filled in; 0 at padding."""


class TensorSettings:
    """Settings by the names of Transformers. A keyword overrides the config, as there."""

    def __init__(self, model: TransformersModel, config: Any, given: Mapping[str, Any], input_ids: Tensor):
        """config: a `GenerationConfig` or None; given: keywords."""
        if not isinstance(input_ids, Tensor) or input_ids.dim() != 2 or input_ids.is_floating_point():
            found = tuple(input_ids.shape) if isinstance(input_ids, Tensor) else type(input_ids).__name__
            raise InputError(f"expected a tensor of whole numbers of shape (B, T), got {found}", "input_ids")
        settings = {name: value for name, value in (config.to_dict() if config else {}).items() if value is not None}
        settings |= {name: value for name, value in given.items() if value is not None}
        for name, value in settings.items():
            if name in (*_APPLIED, *_IGNORED) or name.startswith("_"):
                continue
            if not hasattr(value, "shape") and value in ((), [], {}, False, *_NEUTRAL.get(name, ())):
                continue
            raise InputError(f"{value}: is not supported when generating token ids", name)
        self.length = self._length(settings, input_ids.shape[1])
        ends, padding = settings.get("eos_token_id", ()), settings.get("pad_token_id", model.padding_token)
        ends = ends.flatten().tolist() if isinstance(ends, Tensor) else ends
        several = ends if isinstance(ends, Collection) and not isinstance(ends, str) else [ends]
        self.ends = frozenset(_token("eos_token_id", end, model) for end in several) or model.end_tokens
        self.padding = _token("pad_token_id", padding, model)
        self.returns_dict = bool(settings.get("return_dict_in_generate"))
        self.decoding: dict[str, Any] = {}
        """Settings of a `DecodingConfig`."""
        if settings.get("do_sample"):
            self.decoding["temperature"] = settings.get("temperature", 1.0)
            self.decoding |= {name: settings[name] for name in ("top_p", "top_k") if name in settings}
        if settings.get("num_beams", 1) != 1:
            self.decoding["beam"] = settings["num_beams"]

    @staticmethod
    def _length(settings: Mapping[str, Any], prompt_width: int) -> int:
        if "max_new_tokens" not in settings and "max_length" not in settings:
            raise InputError("is missing: how many tokens to generate", "max_new_tokens")
        name = "max_new_tokens" if "max_new_tokens" in settings else "max_length"
        length = settings[name]
        check_number(name, length, at_least=1, whole=True)
        if name == "max_length" and length <= prompt_width:
            raise InputError(f"{length}: the prompts have {prompt_width} tokens already", name)
        return int(length) - (prompt_width if name == "max_length" else 0)

    def model(self, model: TransformersModel) -> TransformersModel:
        """The model, whose texts end with these end tokens."""
        if self.ends == model.end_tokens:
            return model
        model = copy(model)
        model.end_tokens = self.ends
        return model

    def prompts(self, input_ids: Tensor, attention_mask: Tensor | None) -> list[list[int]]:
        """The ids of each prompt, without its padding. attention_mask: see `Decoder.generate_ids`."""
        if attention_mask is None:
            is_padding = input_ids == self.padding
            attention_mask = torch.ones_like(input_ids) if self.padding in self.ends else ~is_padding
        attention_mask = torch.as_tensor(attention_mask)
        if attention_mask.shape != input_ids.shape:
            shapes = f"{tuple(attention_mask.shape)}, expected that of input_ids, {tuple(input_ids.shape)}"
            raise InputError(f"has the shape {shapes}", "attention_mask")
        seen = attention_mask.bool().cpu()
        for number, mask in enumerate(seen):
            places = mask.nonzero().flatten().tolist()
            if places and (len(places) <= places[-1] - places[0] or (not mask[0] and not mask[-1])):
                raise InputError(f"row {number}: expected padding on the left or on the right alone", "attention_mask")
        return [row[mask].tolist() for row, mask in zip(input_ids.cpu(), seen, strict=True)]

    def tensors(
        self, input_ids: Tensor, trajectories: Sequence[Trajectory], model: TransformersModel
    ) -> Tensor | GeneratedIds:
        """(B, prompt + new) ids; with `return_dict_in_generate`, more than these."""
        rows = [self._row(model.tokenizer.convert_tokens_to_ids(one.tokens)) for one in trajectories]
        width = max(map(len, rows), default=0)

        def padded(values: Sequence[Sequence[Any]], padding: int, dtype: torch.dtype) -> Tensor:
            cut = [list(own[: len(row)]) for own, row in zip(values, rows, strict=True)]
            filled = [own + [padding] * (width - len(own)) for own in cut]
            return torch.tensor(filled, dtype=dtype, device=input_ids.device).view(len(rows), width)

        sequences = torch.cat([input_ids, padded(rows, self.padding, torch.int64)], 1)
        if not self.returns_dict:
            return sequences
        steps = padded([one.steps for one in trajectories], 0, torch.int64)
        return GeneratedIds(sequences, steps, padded([one.logprobs for one in trajectories], 0, torch.float32))

    def _row(self, ids: list[int]) -> list[int]:
        """Up to the first end token, which is kept."""
        ends = [place for place, token in enumerate(ids) if token in self.ends]
        return ids[: ends[0] + 1] if ends else ids


def _token(name: str, value: Any, model: TransformersModel) -> int:
    check_number(name, value, at_least=0, at_most=model.vocab_size - 1, whole=True)
    return int(value)
