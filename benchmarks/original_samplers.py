"""The original authors' samplers beside ours: are tokens, order and forward passes equal?

    python benchmarks/original_samplers.py ORIGINALS [--only LLaDA,dllm]

ORIGINALS is a folder with checkouts called LLaDA, Fast-dLLM, dllm, SDAR and Mask-Predict. Their samplers run as they
are, on tiny networks with random weights; Dream's sampler is the copy in dllm, as Dream's own repository holds none.
Fast-dLLM's caches run in its own networks, with the same weights; its sampler for Dream with a cache fills the first
token of each block alone, and ours is given a schedule that does so. A configuration is equal if all tokens, the
forward pass that wrote each, and the number of passes agree. Passes of theirs that write nothing do not count, and a
pass over a text and its copy without the prompt counts as two.

Some things are given to them: a network that never predicts a mask or another special token, which ours excludes by
itself; our noise, where tokens are sampled; for SDAR, which always samples, the most likely token in place of a random
one, and a network that predicts given tokens as they are, for SDAR overwrites some (docs/families.md).
"""

import argparse
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from itertools import count, pairwise, product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from anyorder.decoding.config import GIVEN, DecodingConfig
from anyorder.decoding.schedules import ONE, AdaptiveBlocks, FixedBlocks, Schedule, make_schedule
from anyorder.decoding.search import search
from anyorder.models.base import Canvas
from anyorder.models.hf.block_cache import BlockCache
from anyorder.models.hf.pretrained import TransformersModel, wrap_transformers
from anyorder.orders.base import State
from anyorder.orders.heuristics import hash_uniform

WORDS, SPECIAL = [f"w{i}" for i in range(60)], ["[PAD]", "[MASK]", "[UNK]", "[END]"]
PAD, MASK, _, END = range(len(WORDS), len(WORDS) + len(SPECIAL))
LENGTHS = (6, 8, 12, 16)
SIZE = {
    "vocab_size": len(WORDS) + len(SPECIAL), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 128, "pad_token_id": PAD,
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """One filled text."""

    tokens: list[int]
    steps: list[int]
    """The forward pass, from 1, that wrote each position last; 0 where the token was given."""
    passes: int


@dataclass
class Tally:
    """How many configurations of an original are equal, by what is compared."""

    equal: Counter[str] = field(default_factory=Counter)
    tried: Counter[str] = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)

    def add(self, what_for: str, name: str, theirs: Result, ours: Result) -> None:
        self.tried[what_for] += 1
        self.equal[what_for] += theirs == ours
        if theirs == ours:
            return
        what = [part for part in ("tokens", "steps", "passes") if getattr(theirs, part) != getattr(ours, part)]
        self.different.append(f"{what_for}, {name}: {', '.join(what)} (passes {theirs.passes}, ours {ours.passes})")


class Watched:
    """A network as the originals call it, which remembers every text that it was given."""

    def __init__(self, network: Any):
        self.network, self.seen = network, []
        self.device, self.config = network.device, network.config

    def __call__(self, tokens: Tensor, attention_mask: Any = None, *_: Any, **__: Any) -> Any:
        self.seen.append(tokens.clone())
        mask = attention_mask if isinstance(attention_mask, Tensor) else None
        return self.network(input_ids=tokens, attention_mask=mask)

    def eval(self) -> "Watched":
        return self

    def result(self, final: Tensor, row: int = 0, length: int | None = None, writes_all: bool = False) -> Result:
        """What happened to one text of the batch: a position is written when the next text differs there, or at every
        pass that sees a mask if the sampler writes them all and masks some again."""
        texts = [text[row, :length].tolist() for text in [*self.seen, final]]
        steps, passes = [0] * len(texts[-1]), 0
        for before, after in pairwise(texts):
            masked = [i for i, token in enumerate(before) if token == MASK]
            written = [i for i in masked if writes_all or after[i] != MASK]
            passes += bool(written)
            for i in written:
                steps[i] = passes
        return Result(texts[-1], steps, passes)


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({token: i for i, token in enumerate([*WORDS, *SPECIAL])}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pad, mask, unknown, end = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token=pad, mask_token=mask, unk_token=unknown, eos_token=end
    )


def tiny(kind: str, seed: int) -> tuple[Any, TransformersModel]:
    """A random network that never predicts a special token, and our model of the same network."""
    torch.manual_seed(seed)
    decoder = {**SIZE, "num_key_value_heads": 2, "eos_token_id": END, "bos_token_id": None}
    network: Any
    if kind == "bert":
        network = BertForMaskedLM(BertConfig(**SIZE))
    elif kind == "llama":
        network = LlamaForCausalLM(LlamaConfig(**decoder, logits_shift=0))
    elif kind == "dream":
        network = Qwen2ForCausalLM(Qwen2Config(**decoder))
    else:
        network = Qwen3ForCausalLM(Qwen3Config(**decoder, head_dim=16, block_size=int(kind.removeprefix("sdar"))))
    for weights in network.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    network.tie_weights()
    output = network.get_output_embeddings()
    output.bias = torch.nn.Parameter(torch.zeros(len(output.weight)))
    output.bias.data[len(WORDS) :] = -1e4
    return network, wrap_transformers(network, tokenizer())


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(len(WORDS), (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def ours(model: TransformersModel, tokens: list[int], order: str, schedule: str | Schedule, **options: Any) -> Result:
    decoding = DecodingConfig(order, schedule, length=GIVEN, **options).bind(model, "generate")
    [[found]] = search(model, [Canvas(np.array(tokens))], decoding)
    return Result(found.ids.tolist(), found.steps.tolist(), found.forwards)


@contextmanager
def our_noise() -> Iterator[None]:
    """Random numbers for every position and token of a text: in the n-th call, those of our n-th step."""
    step = count(1)

    def uniform(like: Tensor, dtype: torch.dtype) -> Tensor:
        positions, tokens = torch.arange(like.shape[1])[:, None], torch.arange(like.shape[2])
        numbers = (1 << 60) + (next(step) << 40) + (positions << 20) + tokens
        found = hash_uniform(torch.zeros(1, dtype=torch.int64), numbers.flatten()) + 2.0**-25
        return found.view(like.shape).to(dtype)

    with patch("torch.rand_like", uniform):
        yield


def answers(kind: str) -> Iterator[tuple[Any, TransformersModel, list[int], int]]:
    """A network, our model of it, a prompt, and how many tokens to generate."""
    for seed, length in product(range(3), LENGTHS):
        yield *tiny(kind, seed), prompt(3 + seed, seed), length


def llada(originals: Path, tally: Tally) -> None:
    theirs = load("generate", originals / "LLaDA").generate
    for network, model, given, length in answers("llama"):
        for blocks, steps in product((1, 2), (1, 2, 3)):
            watched, size = Watched(network), length // blocks
            final = theirs(
                watched, torch.tensor([given]), steps=blocks * steps, gen_length=length, block_length=size, mask_id=MASK
            )
            schedule = f"blocks:{size}+steps:{steps}"
            found = ours(model, given + [MASK] * length, "max-prob", schedule)
            tally.add("most likely tokens", f"{length} masks, {schedule}", watched.result(final), found)
        for scale, steps in product((0.5, 2.0), (2, length)):
            watched = Watched(network)
            final = theirs(
                watched, torch.tensor([given]), torch.ones(1, len(given)), steps=steps, gen_length=length,
                block_length=length, cfg_scale=scale, mask_id=MASK,
            )  # fmt: skip
            result = watched.result(final)
            found = ours(model, given + [MASK] * length, "max-prob", f"steps:{steps}", guidance=scale)
            name = f"{length} masks, steps:{steps}, guidance {scale}"
            tally.add("guidance", name, replace(result, passes=2 * result.passes), found)
        for temperature, steps in product((0.5, 1.0), (2, length)):
            watched = Watched(network)
            with our_noise():
                final = theirs(
                    watched, torch.tensor([given]), steps=steps, gen_length=length, block_length=length,
                    temperature=temperature, mask_id=MASK,
                )  # fmt: skip
            sampled = {"temperature": temperature, "rank_by": "sampled"}
            found = ours(model, given + [MASK] * length, "max-prob", f"steps:{steps}", **sampled)
            name = f"{length} masks, steps:{steps}, temperature {temperature}"
            tally.add("sampled tokens", name, watched.result(final), found)


def fast_dllm(originals: Path, tally: Tally) -> None:
    needed = {"model": ModuleType("model"), "model.modeling_llada": SimpleNamespace(LLaDAModelLM=None)}
    with patch.dict(sys.modules, needed):  # type: ignore[arg-type]
        theirs = load("generate", originals / "Fast-dLLM" / "llada").generate
    for network, model, given, length in answers("llama"):
        for blocks, threshold in product((1, 2), (None, 0.1, 0.3, 0.6, 0.9)):
            watched, size = Watched(network), length // blocks
            final, _ = theirs(
                watched, torch.tensor([given]), steps=2 * blocks, gen_length=length, block_length=size, mask_id=MASK,
                threshold=threshold,
            )  # fmt: skip
            schedule = f"blocks:{size}+" + ("steps:2" if threshold is None else f"threshold:{threshold}")
            found = ours(model, given + [MASK] * length, "max-prob", schedule)
            tally.add("most likely tokens", f"{length} masks, {schedule}", watched.result(final), found)
        for threshold, temperature in product((0.1, 0.6), (0.5, 1.0)):
            watched = Watched(network)
            with our_noise():
                final, _ = theirs(
                    watched, torch.tensor([given]), steps=1, gen_length=length, block_length=length, mask_id=MASK,
                    threshold=threshold, temperature=temperature,
                )  # fmt: skip
            sampled = {"temperature": temperature, "rank_by": "sampled"}
            found = ours(model, given + [MASK] * length, "max-prob", f"threshold:{threshold}", **sampled)
            name = f"{length} masks, threshold:{threshold}, temperature {temperature}"
            tally.add("sampled tokens", name, watched.result(final), found)
    theirs = load("generation_utils", originals / "Fast-dLLM" / "dream" / "model").DreamGenerationMixin
    for network, model, given, length in answers("dream"):
        for threshold in (0.1, 0.3, 0.6, 0.9):
            watched = Watched(network)
            settings = dream_settings(len(given) + length, steps=1, algorithm="confidence_threshold")
            with redirect_stdout(None):
                final = theirs._sample(
                    watched, torch.tensor([given]), None, settings, lambda _, x, __: x, lambda _, __, y: y, threshold
                )
            found = ours(model, given + [MASK] * length, "max-prob", f"threshold:{threshold}")
            tally.add("Dream", f"{length} masks, threshold:{threshold}", watched.result(final), found)


def dllm(originals: Path, tally: Tally) -> None:
    with bare_packages(originals / "dllm", "dllm", "dllm.core"):
        mdlm = importlib.import_module("dllm.core.samplers.mdlm")
        bd3lm = importlib.import_module("dllm.core.samplers.bd3lm")
    for seed, length in product(range(3), LENGTHS):
        network, model = tiny("llama", seed)
        prompts = [prompt(size, seed + size) for size in (2, 5, 3)]
        for blocks, steps in product((1, 2), (1, 2, 3)):
            watched = Watched(network)
            final = mdlm.MDLMSampler(watched, tokenizer()).sample(
                prompts,
                mdlm.MDLMSamplerConfig(max_new_tokens=length, block_size=length // blocks, steps=steps * blocks),
            )
            schedule = f"blocks:{length // blocks}+rounded:{steps}"
            for row, given in enumerate(prompts):
                tally.add(
                    "MDLM", f"{length} masks, {schedule}, text {row}",
                    watched.result(final, row, len(given) + length),
                    ours(model, given + [MASK] * length, "max-prob", schedule),
                )  # fmt: skip
        for scale in (0.5, 2.0):
            watched, [given, *_] = Watched(network), prompts
            final = mdlm.MDLMSampler(watched, tokenizer()).sample(
                [given], mdlm.MDLMSamplerConfig(max_new_tokens=length, block_size=length, steps=4, cfg_scale=scale)
            )
            result = watched.result(final)
            found = ours(model, given + [MASK] * length, "max-prob", "rounded:4", guidance=scale)
            name = f"{length} masks, rounded:4, guidance {scale}"
            tally.add("MDLM, guidance", name, replace(result, passes=2 * result.passes), found)
        block = 4
        network, model = tiny(f"sdar{block}", seed)
        for size, steps in product((block, 2 * block), (1, 2, 3, 4)):
            given = prompt(size, seed)
            watched = BlockCausal(network, given + [MASK] * length, block)
            final = bd3lm.BD3LMSampler(watched, tokenizer()).sample(
                [given],
                bd3lm.BD3LMSamplerConfig(max_new_tokens=length, block_size=block, steps_per_block=steps),
            )
            schedule = f"blocks:{block}+rounded:{steps}"
            tally.add(
                "BD3-LM", f"{length} masks, prompt {size}, {schedule}", watched.result(final),
                ours(model, given + [MASK] * length, "max-prob", schedule),
            )  # fmt: skip
        network, model = tiny("llama", seed)
        text = prompt(length, seed)
        text[1::2] = [MASK] * len(text[1::2])
        for steps in (1, 2, 3, len(text) // 2):
            watched = Watched(network)
            sampler = mdlm.MDLMSampler(watched, tokenizer())
            final = sampler.infill([text], mdlm.MDLMSamplerConfig(block_size=None, steps=steps))  # type: ignore[arg-type]
            found = ours(model, text, "max-prob", f"rounded:{steps}")
            tally.add("MDLM, infill", f"{len(text)} tokens, rounded:{steps}", watched.result(final), found)


def dream(originals: Path, tally: Tally) -> None:
    folder = originals / "dllm" / "dllm" / "pipelines" / "dream" / "models"
    theirs = load("generation_utils", folder).DreamGenerationMixin
    orders = {"maskgit_plus": "max-prob", "topk_margin": "margin", "entropy": "entropy"}
    for network, model, given, length in answers("dream"):
        for (algorithm, order), steps in product(orders.items(), (2, 5, 8, 20)):
            watched = Watched(network)
            settings = dream_settings(len(given) + length, steps, algorithm)
            final = theirs._sample(
                watched, torch.tensor([given]), None, settings, lambda _, x, __: x, lambda _, __, y: y
            )
            tally.add(
                algorithm, f"{length} masks, {steps} steps", watched.result(final),
                ours(model, given + [MASK] * length, order, f"timesteps:{steps}"),
            )  # fmt: skip


def dream_settings(length: int, steps: int, algorithm: str) -> SimpleNamespace:
    return SimpleNamespace(
        output_history=False, return_dict=False, return_dict_in_generate=False, max_length=length, mask_token_id=MASK,
        steps=steps, eps=1e-3, alg=algorithm, alg_temp=0.0, temperature=0.0, top_p=None, top_k=None,
    )  # fmt: skip


class BlockCausal(Watched):
    """Recomputes what SDAR and BD3-LM keep in a cache. It remembers the whole text at every pass that predicts
    something: of BD3-LM's, those that are given a cache."""

    def __init__(self, network: Any, text: list[int], block: int):
        super().__init__(network)
        self.text, self.block = torch.tensor([text]), block

    def __call__(  # type: ignore[override]
        self, tokens: Tensor, *_: Any, position_ids: Tensor, store_kv: bool = False, past_key_values: Any = None,
        **__: Any,
    ) -> Any:  # fmt: skip
        start, stop = int(position_ids[0, 0]), int(position_ids[0, -1]) + 1
        self.text[:, start:stop] = tokens
        if past_key_values is not None and not store_kv:
            self.seen.append(self.text.clone())
        block = torch.arange(stop) // self.block
        sees = (block[None, :] <= block[:, None])[None, None]
        logits = self.network(input_ids=self.text[:, :stop], attention_mask=sees).logits
        is_given = (tokens != MASK)[..., None] & (tokens[..., None] == torch.arange(logits.shape[-1]))
        return SimpleNamespace(logits=logits[:, start:stop].masked_fill(is_given, 1e4), past_key_values=())


def sdar(originals: Path, tally: Tally) -> None:
    theirs = load("generate", originals / "SDAR").block_diffusion_generate

    def most_likely(probabilities: Tensor, num_samples: int) -> Tensor:
        return probabilities.argmax(-1, keepdim=True)

    strategies = {
        "sequential": ("left-to-right", "steps:{}"),
        "low_confidence_static": ("max-prob", "steps:{}"),
        "low_confidence_dynamic": ("max-prob", "threshold:{}"),
    }
    for seed, block, blocks in product(range(2), (2, 4), (1, 3)):
        network, model = tiny(f"sdar{block}", seed)
        for size, (strategy, (order, inside)) in product(
            (block, 2 * block, block + 1, 2 * block - 1), strategies.items()
        ):
            given = prompt(size, seed)
            length = -(-size // block) * block + blocks * block - size  # both fill the last block
            is_dynamic = "threshold" in inside
            for number in (0.2, 0.5, 0.85) if is_dynamic else {1, block}:
                text = given + [MASK] * length
                watched = BlockCausal(network, text, block)
                with patch("torch.multinomial", most_likely):
                    final = theirs(
                        watched, {"input_ids": torch.tensor([given])}, MASK, gen_length=length, block_length=block,
                        denoising_steps=block if is_dynamic else number, remasking_strategy=strategy,
                        confidence_threshold=number,
                    )  # fmt: skip
                schedule = f"blocks:{block}@text+{inside.format(number)}"
                tally.add(
                    strategy, f"prompt {size}, {schedule}", watched.result(final), ours(model, text, order, schedule)
                )


def mask_predict(originals: Path, tally: Tally) -> None:
    with bare_packages(originals / "Mask-Predict", "fairseq"):
        strategies = importlib.import_module("fairseq.strategies").STRATEGY_REGISTRY
    dictionary = SimpleNamespace(pad=lambda: PAD, mask=lambda: MASK)
    for seed, length in product(range(3), (1, 2, 3, 5, 8, 12)):
        network, model = tiny("bert", seed)
        text = [MASK] * length
        for name in ("mask_predict", "left_to_right", "easy_first"):
            for iterations in (2, 4, 10) if name == "mask_predict" else (1,):
                watched = Watched(network)
                decoder = SimpleNamespace(decoder=lambda tokens, _, watched=watched: (watched(tokens).logits,))
                options = SimpleNamespace(decoding_iterations=iterations, beam=1)
                encoded = {"encoder_out": torch.zeros(1, 1, 1), "encoder_padding_mask": None}
                with torch.inference_mode():
                    final, _ = strategies[name](options).generate(decoder, encoded, torch.tensor([text]), dictionary)
                if name == "mask_predict":
                    found = ours(model, text, "max-prob", "steps:1", revision=f"mask-predict:{iterations}")
                else:
                    order = {"left_to_right": "left-to-right", "easy_first": "max-prob"}[name]
                    found = ours(model, text, order, "one")
                tally.add(
                    name,
                    f"{length} masks, {iterations} iterations",
                    watched.result(final, writes_all=name == "mask_predict"),
                    found,
                )


class Cached(Watched):
    """An original's own network, which may be given a part of the text and keys and values of the rest."""

    def __call__(self, tokens: Tensor, *more: Any, past_key_values: Any = None, **options: Any) -> Any:
        if past_key_values is None:
            self.text = tokens  # the sampler writes into it
        self.seen.append(self.text.clone())
        output = self.network(tokens, *more, past_key_values=past_key_values, **options)
        output.logits[..., len(WORDS) :] -= 1e4
        return output


def fast_dllm_caches(originals: Path, tally: Tally) -> None:
    names = ("generate", "model.modeling_llada", "model.configuration_llada")
    theirs, modeling, configuration = fast_dllm_modules(originals, "llada", *names)
    for network, model, given, length in answers("llama"):
        own = llada_network(network, modeling, configuration)
        for (kind, sampler), blocks, inner in product(
            {"prefix": theirs.generate_with_prefix_cache, "dual": theirs.generate_with_dual_cache}.items(),
            (1, 2, length // 2),
            ("steps:2", "steps:4", "threshold:0.1", "threshold:0.3", "threshold:0.9"),
        ):
            name, _, value = inner.partition(":")
            watched, size = Cached(own), length // blocks
            if name == "steps" and int(value) > size:
                continue  # they would fill nothing in some passes, and one token in the others
            final, _ = sampler(
                watched, torch.tensor([given]), steps=int(value) * blocks if name == "steps" else blocks,
                gen_length=length, block_length=size, mask_id=MASK,
                threshold=float(value) if name == "threshold" else None,
            )  # fmt: skip
            schedule = f"blocks:{size}+{inner}"
            tally.add(
                kind, f"{length} masks, {schedule}", watched.result(final),
                ours(cached(model, kind, size), given + [MASK] * length, "max-prob", schedule),
            )  # fmt: skip


def cached(model: TransformersModel, kind: Any, block_size: int) -> TransformersModel:
    return model.caching(BlockCache(kind, block_size))


def fast_dllm_modules(originals: Path, family: str, *names: str) -> list[Any]:
    """Modules of Fast-dLLM for LLaDA or Dream. `einops` is imported for a layer that is not used."""
    if "einops" not in sys.modules and importlib.util.find_spec("einops") is None:
        sys.modules["einops"] = ModuleType("einops")
        sys.modules["einops"].rearrange = None  # type: ignore[attr-defined]
    for name in [name for name in sys.modules if name.split(".")[0] in ("generate", "model")]:
        del sys.modules[name]  # both families have a package of this name
    with patch.object(sys, "path", [str(originals / "Fast-dLLM" / family), *sys.path]):
        return [importlib.import_module(name) for name in names]


def llada_network(network: LlamaForCausalLM, modeling: Any, configuration: Any) -> Any:
    """LLaDA's own network with a Llama's weights."""
    config = network.config
    theirs = modeling.LLaDAModelLM(
        configuration.LLaDAConfig(
            d_model=config.hidden_size, n_heads=config.num_attention_heads, n_kv_heads=config.num_key_value_heads,
            n_layers=config.num_hidden_layers, mlp_hidden_size=config.intermediate_size, vocab_size=config.vocab_size,
            embedding_size=config.vocab_size, max_sequence_length=config.max_position_embeddings,
            block_type="llama", layer_norm_type="rms", rms_norm_eps=config.rms_norm_eps, rope=True, rope_theta=10_000.0,
            alibi=False, include_bias=False, include_qkv_bias=False, bias_for_layer_norm=False, weight_tying=False,
            activation_type="silu", attention_dropout=0.0, residual_dropout=0.0, embedding_dropout=0.0,
            flash_attention=False, multi_query_attention=None, init_device="cpu",
            eos_token_id=END, pad_token_id=PAD, mask_token_id=MASK,
        )
    )  # fmt: skip
    weights = {llada_name(name): value for name, value in network.state_dict().items() if name != "lm_head.bias"}
    theirs.load_state_dict(weights)
    return theirs.to(network.device, network.dtype).eval()


def llada_name(name: str) -> str:
    """A weight of Llama as LLaDA calls it."""
    for native, theirs in {
        "model.embed_tokens": "model.transformer.wte",
        "model.norm": "model.transformer.ln_f",
        "lm_head": "model.transformer.ff_out",
        "model.layers": "model.transformer.blocks",
        "self_attn.o_proj": "attn_out",
        "self_attn.": "",
        "mlp.gate_proj": "ff_proj",
        "mlp.down_proj": "ff_out",
        "mlp.up_proj": "up_proj",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ff_norm",
    }.items():
        name = name.replace(native, theirs)
    return name


class FirstAlone:
    """Fast-dLLM's sampler for Dream fills the first position of a block in a pass of its own."""

    size: int

    def narrow(self, state: State, scores: Tensor) -> Tensor:
        scores = super().narrow(state, scores)  # type: ignore[misc]
        can_fill = scores > -torch.inf
        is_new = can_fill.sum(1, keepdim=True) == self.size
        return scores.masked_fill(is_new & ~(can_fill.cumsum(1) == 1), -torch.inf)


class FirstThenThreshold(FirstAlone, AdaptiveBlocks):
    pass


class FirstThenTimesteps(FirstAlone, FixedBlocks):
    """After that, the share of each step but the first is taken of what is left."""

    def __init__(self, size: int, steps: int):
        super().__init__(size, ONE)
        self.times = torch.linspace(1, 1e-3, steps + 1)

    def counts_by_step(self, total: int) -> list[int]:
        counts, left = [1], self.size - 1
        for step in range(1, len(self.times) - 1):
            is_last = step == len(self.times) - 2
            now = left if is_last else int(torch.tensor(left) * (1 - self.times[step + 1] / self.times[step]))
            counts += [now] * (now > 0)
            left -= now
        return counts * (total // self.size)


def fast_dllm_dream(originals: Path, tally: Tally) -> None:
    names = ("model.generation_utils_block", "model.modeling_dream", "model.configuration_dream")
    sampling, modeling, configuration = fast_dllm_modules(originals, "dream", *names)
    theirs = sampling.DreamGenerationMixin
    with plain_rope():
        for network, model, given, length in answers("dream"):
            config = configuration.DreamConfig(**SIZE, num_key_value_heads=2, mask_token_id=MASK)
            config._attn_implementation = "sdpa"
            own = modeling.DreamModel(config).eval()
            own.load_state_dict(network.state_dict(), strict=False)  # the bias is in `Cached`
            for kind, blocks, (order, value) in product(
                ("prefix", "dual"),
                (1, 2),
                [("max-prob", 0.1), ("max-prob", 0.3), ("max-prob", 0.9), ("entropy", 3), ("entropy", 6)],
            ):
                watched, size = Cached(own), length // blocks
                by_threshold = order == "max-prob"
                settings = SimpleNamespace(
                    output_history=False, return_dict_in_generate=False, max_length=len(given) + length,
                    mask_token_id=MASK, steps=blocks if by_threshold else value * blocks, eps=1e-3, temperature=0.0,
                    top_p=None, top_k=None, alg="confidence_threshold" if by_threshold else "entropy", alg_temp=0.0,
                )  # fmt: skip
                with torch.no_grad():
                    final = theirs._sample(
                        watched, torch.tensor([given]), None, settings, threshold=value, block_length=size,
                        dual_cache=kind == "dual",
                    )  # fmt: skip
                schedule: Schedule = FirstThenTimesteps(size, int(value))
                if by_threshold:
                    schedule = FirstThenThreshold(size, make_schedule(f"threshold:{value}"))
                tally.add(
                    kind, f"{length} masks, blocks of {size}, {order} {value}", watched.result(final),
                    ours(cached(model, kind, size), given + [MASK] * length, order, schedule),
                )  # fmt: skip


@contextmanager
def plain_rope() -> Iterator[None]:
    """The rotary positions that Transformers 4 called `default`."""

    def default(config: Any, device: Any = None, seq_len: Any = None) -> tuple[Tensor, float]:
        size = config.hidden_size // config.num_attention_heads
        return 10_000.0 ** -(torch.arange(0, size, 2, device=device).float() / size), 1.0

    with patch.dict(ROPE_INIT_FUNCTIONS, {"default": default}):
        yield


ORIGINALS: Mapping[str, Callable[[Path, Tally], None]] = {
    "LLaDA": llada,
    "Fast-dLLM": fast_dllm,
    "Fast-dLLM caches": fast_dllm_caches,
    "Fast-dLLM Dream": fast_dllm_dream,
    "dllm": dllm,
    "Dream": dream,
    "SDAR": sdar,
    "Mask-Predict": mask_predict,
}


def load(module: str, folder: Path) -> Any:
    """A module of an original, from its file."""
    sys.modules.pop(module, None)
    with patch.object(sys, "path", [str(folder), *sys.path]):
        try:
            return importlib.import_module(module)
        finally:
            sys.modules.pop(module, None)


@contextmanager
def bare_packages(folder: Path, *names: str) -> Iterator[None]:
    """Packages whose `__init__` would import far more than the sampler needs."""
    packages = {}
    for name in names:
        packages[name] = ModuleType(name)
        packages[name].__path__ = [str(folder / name.replace(".", "/"))]
    with patch.dict(sys.modules, packages):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("originals", type=Path)
    parser.add_argument("--only", default=",".join(ORIGINALS))
    arguments = parser.parse_args()
    for name in arguments.only.split(","):
        tally = Tally()
        ORIGINALS[name](arguments.originals, tally)
        for what_for, tried in tally.tried.items():
            print(f"{name:16} {what_for:23} {tally.equal[what_for]:4} of {tried:4} equal", flush=True)
        for line in tally.different:
            print(f"    {line}")


if __name__ == "__main__":
    main()
