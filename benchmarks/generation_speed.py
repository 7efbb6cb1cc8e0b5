"""Tokens a second of LLaDA, exact and with caches, beside LLaDA's, dllm's and Fast-dLLM's own code in the same run.

    python benchmarks/generation_speed.py ORIGINALS [--size small] [--batches 1,8,32] [--json FILE]

ORIGINALS is a folder with checkouts called LLaDA, dllm and Fast-dLLM. All run the same random weights: theirs in
LLaDA's network as Fast-dLLM has it, ours in Transformers' Llama. Fast-dLLM's samplers take one text at a time, so they
run at batch 1 only. The answer is written in blocks of 32, two tokens a pass, at temperature 0, so that all need the
same number of passes. `positions` is the share of positions that our passes ran, and `agree` the share of tokens that
are those of our exact run, which says nothing about quality: the weights are random. On a CPU, seconds are of processor
time. Each result is printed, and written to FILE, as soon as it is known.
"""

import argparse
import importlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from original_samplers import bare_packages, fast_dllm_modules, llada_network, load
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from anyorder.decoding.engine import decode
from anyorder.decoding.schedules import make_schedule
from anyorder.models.base import Canvas
from anyorder.models.hf.block_cache import BlockCache
from anyorder.models.hf.pretrained import TransformersModel, wrap_transformers
from anyorder.orders import make_order

BLOCK, TOKENS_A_PASS = 32, 2


@dataclass(frozen=True)
class Size:
    """Of the network and the text."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    prompt: int
    answer: int


SIZES = {
    "1b": Size(126_464, 2048, 5632, 22, 32, prompt=512, answer=256),
    "small": Size(8_192, 512, 1408, 8, 8, prompt=128, answer=128),
    "tiny": Size(512, 64, 128, 2, 2, prompt=32, answer=64),
}
System = Callable[[Tensor, int], Tensor]
"""Continues prompts, (B, prompt), by an answer in so many passes per block: (B, prompt + answer)."""


class OneOutput:
    """LLaDA's network as the samplers call it; texts of one length need no attention mask."""

    def __init__(self, network: Any):
        self.network, self.device, self.config = network, network.device, network.config

    def __call__(self, tokens: Tensor, attention_mask: Any = None, **options: Any) -> Any:
        return self.network(tokens, **{"use_cache": False, **options})

    def eval(self) -> "OneOutput":
        return self


def random_model(size: Size, device: torch.device) -> TransformersModel:
    words = [f"w{i}" for i in range(size.vocab_size - 4)]
    special = ["[PAD]", "[MASK]", "[UNK]", "[END]"]
    pad, mask, unknown, end = special
    vocabulary = {token: i for i, token in enumerate([*words, *special])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token=unknown)),
        pad_token=pad, mask_token=mask, unk_token=unknown, eos_token=end,
    )  # fmt: skip
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=size.vocab_size, hidden_size=size.hidden_size, intermediate_size=size.intermediate_size,
        num_hidden_layers=size.layers, num_attention_heads=size.heads, max_position_embeddings=4096,
        pad_token_id=vocabulary[pad], eos_token_id=vocabulary[end], bos_token_id=None, logits_shift=0,
    )  # fmt: skip
    with device:
        network = LlamaForCausalLM(config)
    network.lm_head.weight.data[-len(special) :] = 0  # never the best token
    return wrap_transformers(network.to(torch.bfloat16 if device.type == "cuda" else torch.float32), tokenizer)


def our_system(model: TransformersModel, size: Size) -> System:
    def run(prompts: Tensor, passes: int) -> Tensor:
        masks = np.full(size.answer, model.mask_token)
        canvases = [Canvas(np.append(prompt, masks)) for prompt in prompts.cpu().numpy()]
        schedule = make_schedule(f"blocks:{BLOCK}+steps:{passes}")
        found = decode(model, canvases, make_order("max-prob"), schedule, batch_tokens=1 << 24)
        return torch.from_numpy(np.stack([one.ids for one in found]))

    return run


def systems(model: TransformersModel, size: Size, originals: Path) -> Iterator[tuple[str, System]]:
    """By name; `ours exact` comes first. Originals that cannot be loaded are left out, with a line that says why."""
    yield "ours exact", our_system(model, size)
    yield "ours prefix", our_system(model.caching(BlockCache("prefix", BLOCK)), size)
    yield "ours dual", our_system(model.caching(BlockCache("dual", BLOCK)), size)
    names = ("generate", "model.modeling_llada", "model.configuration_llada")
    with said("Fast-dLLM cannot be loaded"):
        fast, modeling, configuration = fast_dllm_modules(originals, "llada", *names)
        network = OneOutput(llada_network(model.network, modeling, configuration))
        blocks, options = size.answer // BLOCK, {"gen_length": size.answer, "block_length": BLOCK}

        def original(sampler: Any) -> System:
            def run(prompts: Tensor, passes: int) -> Tensor:
                found = sampler(network, prompts, steps=passes * blocks, mask_id=model.mask_token, **options)
                return (found[0] if isinstance(found, tuple) else found).cpu()

            return run

        yield "Fast-dLLM exact", original(fast.generate)
        yield "Fast-dLLM prefix", original(fast.generate_with_prefix_cache)
        yield "Fast-dLLM dual", original(fast.generate_with_dual_cache)
        with said("LLaDA cannot be loaded"):
            yield "LLaDA exact", original(load("generate", originals / "LLaDA").generate)
        with said("dllm cannot be loaded"), bare_packages(originals / "dllm", "dllm", "dllm.core"):
            mdlm = importlib.import_module("dllm.core.samplers.mdlm")

            def run_dllm(prompts: Tensor, passes: int) -> Tensor:
                config = mdlm.MDLMSamplerConfig(
                    max_new_tokens=size.answer, block_size=BLOCK, steps=passes * blocks, return_dict=False
                )
                found = mdlm.MDLMSampler(network, model.tokenizer).sample(list(prompts), config)
                return (found if isinstance(found, Tensor) else found.sequences).cpu()

            yield "dllm exact", run_dllm


class said:  # noqa: N801 (used like contextlib's functions)
    """What goes wrong here is one printed line; the rest goes on."""

    def __init__(self, what: str):
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        first = (str(error).splitlines() or [""])[0]
        print(f"{self.what}: {type(error).__name__}: {first[:160]}", flush=True)
        return True


def measure(system: System, prompts: Tensor, size: Size, inputs: list[int]) -> tuple[float, Tensor, float]:
    """Seconds, what was written, and the share of positions that ran, after a run of the same shapes with few passes.

    inputs: what our network counts. The share is 0 for the others.
    """
    wait = torch.cuda.synchronize if prompts.is_cuda else lambda: None
    system(prompts, 2)
    inputs.clear()
    wait()
    clock = time.perf_counter if prompts.is_cuda else time.process_time
    start = clock()
    texts = system(prompts, BLOCK // TOKENS_A_PASS)
    wait()
    seconds, all_positions = clock() - start, len(prompts) * (size.prompt + size.answer)
    return seconds, texts[:, -size.answer :], sum(inputs) / (all_positions * size.answer // TOKENS_A_PASS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("originals", type=Path)
    parser.add_argument("--size", choices=[*SIZES], default="1b" if torch.cuda.is_available() else "small")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument(
        "--only", default="", help="some systems, such as 'ours exact,ours dual'; the first is compared to"
    )
    parser.add_argument("--minutes", type=float, default=8, help="start nothing new after this")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    began, device, size = time.monotonic(), torch.device(arguments.device), SIZES[arguments.size]
    model = random_model(size, device)
    inputs: list[int] = []
    model.network.model.register_forward_pre_hook(
        lambda _, __, named: inputs.append(named["input_ids"].numel()), with_kwargs=True
    )
    place = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{place}, {model.network.dtype}, {arguments.size}, prompt {size.prompt}, answer {size.answer}", flush=True)
    print(f"{'batch':>5}  {'system':17} {'tokens/s':>9} {'of exact':>9} {'positions':>9} {'agree':>6}", flush=True)
    by_batch = [int(batch) for batch in arguments.batches.split(",")]
    chosen = arguments.only.split(",")
    everyone = [one for one in systems(model, size, arguments.originals) if one[0] in chosen or not arguments.only]
    for batch in by_batch:
        generator = torch.Generator().manual_seed(batch)
        prompts = torch.randint(size.vocab_size - 4, (batch, size.prompt), generator=generator).to(device)
        exact: tuple[float, Tensor] | None = None
        for name, system in everyone:
            if time.monotonic() - began > 60 * arguments.minutes:
                print(f"{batch:5}  {name:17} not run: {arguments.minutes:g} minutes are over", flush=True)
                continue
            if name.startswith("Fast-dLLM") and batch > 1:
                continue
            if device.type == "cuda":
                torch.cuda.empty_cache()
            with said(f"{batch:5}  {name:17} failed"), torch.inference_mode(name.startswith("ours")):
                seconds, answer, ran = measure(system, prompts, size, inputs)
                exact = exact or (seconds, answer)
                speed, ratio = batch * size.answer / seconds, exact[0] / seconds
                agree = float((answer == exact[1]).float().mean())
                print(
                    f"{batch:5}  {name:17} {speed:9.1f} {ratio:8.2f}x {f'{ran:.1%}' if ran else '':>9} {agree:6.1%}",
                    flush=True,
                )
                if arguments.json:
                    record = {"batch": batch, "system": name, "tokens_per_second": speed, "of_exact": ratio}
                    record |= {"positions": ran, "agree": agree, "device": place, "size": arguments.size}
                    with arguments.json.open("a") as file:
                        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
