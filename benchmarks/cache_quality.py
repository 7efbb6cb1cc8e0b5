"""What the block caches cost in quality: 4×4 Sudoku solved by a small LLaDA, exactly and with each cache.

    python benchmarks/cache_quality.py [--steps 2000] [--puzzles 500]

Trains a Llama without direction on masked answers: the prompt is a puzzle, the answer its 16 cells, four to a block.
Minutes on one core. Prints a row for each schedule and cache: puzzles solved, tokens equal to the exact ones, and the
mean number of passes.
"""

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from anyorder.decoding.engine import decode
from anyorder.decoding.schedules import make_schedule
from anyorder.models.base import Canvas
from anyorder.models.hf.block_cache import BlockCache
from anyorder.models.hf.pretrained import TransformersModel, wrap_transformers
from anyorder.orders import make_order
from anyorder.tasks import make_task

WORDS = ["0", "1", "2", "3", "4", "[PAD]", "[MASK]", "[UNK]"]
MASK, BLOCK = WORDS.index("[MASK]"), 4
CACHES = (None, BlockCache("prefix", BLOCK), BlockCache("dual", BLOCK), BlockCache("dual", BLOCK, 2))


def train(steps: int) -> TransformersModel:
    task, random = make_task("sudoku-4x4"), np.random.default_rng(1)
    examples = task.generate(2000, seed=1)  # type: ignore[attr-defined]
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, pad_token_id=WORDS.index("[PAD]"), logits_shift=0, is_causal=False,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    network = LlamaForCausalLM(config)
    network.config.is_causal = False
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        batch = task.augment(examples.take(random.integers(len(examples), size=64)), random)  # type: ignore[attr-defined]
        answer = torch.from_numpy(batch.solutions)
        share = torch.from_numpy(random.random((len(answer), 1)))
        hidden = torch.from_numpy(random.random(answer.shape)) < share
        tokens = torch.cat([torch.from_numpy(batch.puzzles), answer.masked_fill(hidden, MASK)], 1)
        logits = network(input_ids=tokens, use_cache=False).logits[:, answer.shape[1] :]
        loss = F.cross_entropy(logits[hidden], answer[hidden])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 250 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    return wrap_transformers(
        network,
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", mask_token="[MASK]", unk_token="[UNK]"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--puzzles", type=int, default=500)
    arguments = parser.parse_args()
    began = time.process_time()
    model = train(arguments.steps)
    print(f"trained in {time.process_time() - began:.0f} s of processor time")
    task = make_task("sudoku-4x4")
    test = task.generate(arguments.puzzles, seed=2)  # type: ignore[attr-defined]
    canvases = [Canvas(np.append(puzzle, np.full(16, MASK)), key=i) for i, puzzle in enumerate(test.puzzles)]
    print(f"{'order':14} {'schedule':26} {'cache':8} {'solved':>7} {'as exact':>9} {'passes':>7}")
    for order, schedule in (
        ("max-prob", "blocks:4+one"),
        ("left-to-right", "blocks:4+one"),
        ("max-prob", "blocks:4+2"),
        ("max-prob", "blocks:4+threshold:0.9"),
        ("max-prob", "blocks:4+threshold:0.5"),
    ):
        exact = None
        for cache in CACHES:
            chosen = model if cache is None else model.caching(cache)
            found = decode(chosen, canvases, make_order(order), make_schedule(schedule))
            answers = np.stack([one.ids[16:] for one in found])
            exact = answers if exact is None else exact
            solved = np.asarray(task.is_solved(test.puzzles, answers)).mean()  # type: ignore[attr-defined]
            passes = np.mean([one.forwards for one in found])
            name = "none" if cache is None else cache.name
            print(
                f"{order:14} {schedule:26} {name:8} {solved:7.1%} {(answers == exact).mean():9.1%} {passes:7.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
