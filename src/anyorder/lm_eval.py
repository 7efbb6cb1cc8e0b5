"""The model `anyorder` of the Language Model Evaluation Harness (`lm_eval`), which finds it by its entry point.

    lm_eval --model anyorder --model_args pretrained=FOLDER,order=margin,schedule=blocks:32 --tasks gsm8k

Harnesses up to 0.4.13 do not look for entry points; `python -m anyorder.lm_eval` is the same command for them. This
module turns the harness's requests into canvases; it decodes and scores nothing itself.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Literal

import numpy as np

try:
    import lm_eval.models  # noqa: F401 lists the harness's own models, before this one is added
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise ImportError(f"{error}: install the harness with pip install 'anyorder[lm-eval]'") from error

from anyorder import progress
from anyorder.data.workers import blocks
from anyorder.decoder import Decoder
from anyorder.decoding.config import AUTO, DecodingConfig
from anyorder.decoding.likelihood import bound, chain
from anyorder.device import resolve_device, resolve_dtype
from anyorder.errors import InputError, check_number
from anyorder.models.base import Canvas
from anyorder.models.hf.pretrained import load_transformers
from anyorder.models.native.storage import as_input_error
from anyorder.tasks import Generate
from anyorder.tasks.base import canvas_key
from anyorder.tasks.masked import End, MaskedText

_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SAMPLERS = ("top_p", "top_k", "min_p")
_SAMPLING = {field.name for field in fields(DecodingConfig)} & set(_SAMPLERS)
_NEUTRAL = {"num_beams": (1,), "repetition_penalty": (1,), "min_p": (0,)}
"""Settings that are not supported, and the values with which they change nothing."""
_AT_ONCE = 64
"""Requests whose canvases are made together if the batch size is automatic."""
_UNLIMITED = 1 << 24


@register_model("anyorder")
class AnyorderLM(LM):
    """A masked language model, decoded and scored in an order."""

    def __init__(
        self,
        pretrained: str,
        order: str = AUTO,
        schedule: str | int = AUTO,
        revision: str = "none",
        length: int | None = None,
        end: End = "free",
        likelihood: Literal["chain", "bound"] = "chain",
        samples: int = 128,
        check_greedy: bool = True,
        seed: int = 1,
        max_length: int | None = None,
        dtype: str = "auto",
        device: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
    ):
        """
        Args:
            pretrained: The folder or hub id of a Transformers masked language model.
            order, schedule, revision, seed: See `DecodingConfig`. The revision is the rule that masks positions again.
            length: Tokens to generate for every request, instead of what its task says.
            end: When end tokens are generated: free, last or never; see `Decoder.generate`.
            likelihood: chain: the exact log-likelihood of a text filled one by one in this order (and in the blocks of
                the schedule, if it has blocks). bound: an estimate of LLaDA's bound over all orders.
            samples: Samples of the bound.
            check_greedy: Whether the bound, too, finds out if greedy decoding would give the text, which takes a
                forward pass for each of its tokens. Only tasks that compare exactly, such as LAMBADA, look at that.
            max_length: Tokens that the model reads at most; by default, as many as it has room for.
            dtype: auto (bfloat16 on CUDA, float32 on the CPU), float32, bfloat16 or float16.
            device: cpu or cuda; by default, CUDA if there is any.
            batch_size: Requests to run together, or auto. No result depends on it, bit for bit on the CPU.
            max_batch_size: Of the harness; not used.
        """
        super().__init__()
        check_number("samples", samples, at_least=1)
        check_number("length", length, at_least=1)
        check_number("max_length", max_length, at_least=2)
        if likelihood not in ("chain", "bound"):
            raise InputError(f"'{likelihood}': expected chain or bound", "likelihood")
        place = resolve_device(device or "auto")
        self.decoder = Decoder(load_transformers(pretrained, place, resolve_dtype(dtype, place)))
        self.model = self.decoder.model
        self.settings: dict[str, Any] = {"order": str(order), "schedule": schedule, "revision": revision}
        self.seed, self.length, self.likelihood, self.samples = seed, length, likelihood, samples
        self.end, self.check_greedy = end, check_greedy
        self.max_length = min(max_length or self.model.max_length, self.model.max_length)
        count = str(batch_size or 1)
        if not count.startswith("auto") and not (count.isdigit() and int(count)):
            raise InputError(f"{batch_size}: expected a number of requests, or auto", "batch_size")
        self._at_once = _AT_ONCE if count.startswith("auto") else int(count)
        self._batch_tokens = None if count.startswith("auto") else _UNLIMITED
        self._device = self.model.device
        task = Generate(length or 1, end=end)
        decoding = task.bind(DecodingConfig(seed=seed, **self.settings), self.model)
        self._order, self._schedule, self._scored = decoding.order, decoding.schedule, task.model_for(self.model)
        self.signature = str(decoding.signature)

    def get_model_info(self) -> dict[str, Any]:
        """What the harness writes beside the results."""
        scored = {"chain": "chain", "bound": f"bound:{self.samples}"}[self.likelihood]
        return {"anyorder_signature": self.signature, "anyorder_likelihood": scored}

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The completion of every (context, settings). Where tokens are sampled, a request that comes again is not
        answered alike."""
        groups: dict[tuple[str, int], list[int]] = defaultdict(list)
        seen: Counter[str] = Counter()
        for number, request in enumerate(requests):
            context, settings = request.args
            named = json.dumps(settings, sort_keys=True)
            groups[named, seen[context + named]].append(number)
            seen[context + named] += 1
        found = [""] * len(requests)
        with progress.bar("generating", len(requests), "requests", not disable_tqdm) as bar:
            for (named, again), numbers in groups.items():
                task, config = self._task(json.loads(named), again)
                for chunk in blocks(numbers, self._at_once):
                    contexts = [requests[number].args[0] for number in chunk]
                    for number, completion in zip(chunk, self._complete(contexts, task, config), strict=True):
                        found[number] = completion
                        self.cache_hook.add_partial("generate_until", requests[number].args, completion)
                    bar.advance(len(chunk))
        return found

    def _task(self, settings: dict[str, Any], again: int) -> tuple[Generate, DecodingConfig]:
        """What a request asks for. again: how often it came before."""
        until = settings.pop("until", None) or []
        asked = [settings.pop(name, None) for name in _LENGTHS]
        length = self.length or next(filter(None, asked), 256)
        do_sample = settings.pop("do_sample", None)
        temperature = settings.pop("temperature", None)
        if temperature is None:
            temperature = 1.0 if do_sample else 0.0
        if do_sample is False or not temperature:  # what is said about sampling does not matter then
            temperature, settings = 0.0, {name: settings[name] for name in settings if name not in _SAMPLERS}
        sampling: dict[str, Any] = {"temperature": temperature}
        for name, value in settings.items():
            if name in _SAMPLING and value is not None:
                sampling[name] = value
            elif value is not None and value not in _NEUTRAL.get(name, ()):
                raise InputError(f"{value}: this setting for generating is not supported", name)
        stop = [until] if isinstance(until, str) else until
        seed = self.seed + again if temperature else self.seed
        config = DecodingConfig(seed=seed, batch_tokens=self._batch_tokens, **sampling, **self.settings)
        return Generate(int(length), stop=[text for text in stop if text], end=self.end), config

    def _complete(self, contexts: Sequence[str], task: Generate, config: DecodingConfig) -> list[str]:
        if task.length >= self.max_length:
            raise InputError(
                f"{task.length}: the model has room for {self.max_length} tokens with the prompt", "length"
            )
        masks, examples = np.full(task.length, self.model.mask_token, np.int64), []
        for ids in self.model.encode(contexts, has_masks=False):
            kept = ids[max(0, len(ids) + task.length - self.max_length) :]
            tokens = np.concatenate([kept, masks])
            fillable = np.arange(len(tokens)) >= len(kept)
            is_delimited = not self.model.starts_with_delimiter(kept)
            examples.append(MaskedText("", tokens, (), True, task.name, fillable, is_delimited))
        return [str(one.completion) for one in self.decoder.with_task(task).decode(examples, config)]

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Of every (context, continuation), the log-likelihood, and whether greedy decoding gives the continuation."""
        found: list[tuple[float, bool]] = []
        with progress.bar("scoring", len(requests), "requests", not disable_tqdm) as bar:
            for chunk in blocks(requests, self._at_once):
                scores = self._score([self._read(*request.args) for request in chunk])
                for request, score in zip(chunk, scores, strict=True):
                    self.cache_hook.add_partial("loglikelihood", request.args, score)
                found += scores
                bar.advance(len(chunk))
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Of every text. One too long for the model is scored half a window at a time, given the half before it."""
        found = []
        with progress.bar("scoring", len(requests), "requests", not disable_tqdm) as bar:
            for request in requests:
                [ids] = self.model.encode([request.args[0]], has_masks=False)
                total = 0.0
                for chunk in blocks(_windows(ids, self.max_length), self._at_once):
                    total += sum(logprob for logprob, _ in self._score(chunk))
                found.append(total)
                self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
                bar.advance(1)
        return found

    def _read(self, context: str, continuation: str) -> tuple[np.ndarray, int]:
        """All ids, and how many of them are the context; the harness counts white space at its end as continuation."""
        before, whole = self.model.encode([context.rstrip(), context + continuation], has_masks=False)
        target = whole[len(before) :]
        if len(target) > self.max_length:
            raise InputError(f"{len(target)} tokens to score, the model has room for {self.max_length}", "max_length")
        kept = before[max(0, len(before) + len(target) - self.max_length) :]
        return np.concatenate([kept, target]), len(kept)

    def _score(self, texts: Sequence[tuple[np.ndarray, int]]) -> list[tuple[float, bool]]:
        """texts: ids, and how many of them are given."""
        canvases = []
        for ids, given in texts:
            fillable = np.arange(len(ids)) >= given
            tokens = np.where(fillable, self.model.mask_token, ids)
            key = canvas_key(self.seed, tokens, len(tokens))
            canvases.append(Canvas(tokens, None, "generate", key, fillable, not self.model.starts_with_delimiter(ids)))
        model, ids_of = self._scored, [ids for ids, _ in texts]
        exact = [(0.0, False)] * len(texts)
        if self.likelihood == "chain" or self.check_greedy:
            exact = chain(model, canvases, ids_of, self._order, self._schedule, self._batch_tokens)
        if self.likelihood == "chain":
            return exact
        bounds = bound(model, canvases, ids_of, self.samples)
        return [(logprob, is_greedy) for logprob, (_, is_greedy) in zip(bounds, exact, strict=True)]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        self.model.check_chat()
        with as_input_error("the chat template refuses it"):
            return self.model.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )

    @property
    def tokenizer_name(self) -> str:
        return str(self.model.tokenizer.name_or_path).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        if not chat_template:
            return ""
        self.model.check_chat()
        return self.model.tokenizer.get_chat_template(chat_template if isinstance(chat_template, str) else None)


def _windows(ids: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """The ids in windows of this size, and how many of each the window before has scored. No id is scored twice."""
    yield ids[:size], 0
    new = max(1, size // 2)
    for start in range(size, len(ids), new):
        end = min(start + new, len(ids))
        yield ids[max(0, end - size) : end], start - max(0, end - size)


def main() -> int:
    """The harness's command, with this model in its registry."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except InputError as wrong:
        print(f"anyorder: {wrong}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
