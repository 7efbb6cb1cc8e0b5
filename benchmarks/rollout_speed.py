"""Rollouts per second when an order is learned: sampled decoding, reward, and the step of the optimizer.

    python benchmarks/rollout_speed.py [--store STORE --model de-en] [--paper] [--kinds hidden,features] [--json FILE]

With --store, sentences of its `order` (or `train`) split within 5..30 subwords, and a trained model. With --paper, the
paper's size: width 1024, 6 layers, 64.7k tokens, random weights, sources and targets of 24 subwords, once with XLM's
attention (the source is run again at every step) and once with the source kept. Speed is also given as a share of what
a large matrix product reaches in the same run.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from anyorder.data.packing import pack_sentences
from anyorder.data.store import Store
from anyorder.data.vocabulary import SPECIALS, Vocabulary
from anyorder.decoding.state import DecodeBatch
from anyorder.device import to_device
from anyorder.learning.algorithm import ActorCritic, discounted_returns, leave_one_out, of_chosen, step_rewards
from anyorder.learning.config import RLConfig
from anyorder.learning.data import TranslationData
from anyorder.learning.learn_order import OrderObjective
from anyorder.learning.rewards import make_reward
from anyorder.learning.rollout import OrderBatch, SamplingOrder, roll_out
from anyorder.models.native.transformer import TransformerConfig
from anyorder.models.native.translation_model import ModelConfig, TranslationModel
from anyorder.orders.learned import LearnedOrder
from anyorder.orders.policy import PolicyConfig, PolicyNetwork
from anyorder.training.clock import peak_flops
from anyorder.training.run_folder import Cursor


def on_store(
    store: Store, model: TranslationModel, kind: str, algorithm: str, options: argparse.Namespace, peak: float
) -> dict:
    cuda = model.device.type == "cuda"
    rl = RLConfig(algorithm=algorithm, sentences=options.rollouts // (8 if algorithm == "rloo" else 1))
    config = PolicyConfig(kind=kind, attention=options.attention)
    pairs = TranslationData(store, model, ["de-en"], rl.with_sizes(model.device))
    objective = OrderObjective(pairs, config, pairs.rl, 1, compile=cuda and not options.eager)
    networks = objective.learner.to(model.device)
    optimizer = torch.optim.AdamW(networks.parameters(), 1e-4)
    batches = objective.batches(Cursor(), 0, 0, 1)
    taken = [next(batches)[0] for _ in range(options.batches + 2)]
    spent, learned, done, flops = 0.0, 0.0, 0, 0.0
    for number, batch in enumerate(taken):
        start = now(cuda)
        minibatches = objective.minibatches(batch, model.device)
        middle = now(cuda)
        for inputs in minibatches * objective.epochs:
            with torch.autocast("cuda", torch.bfloat16, cuda):
                loss, _ = objective.module(**inputs)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        end = now(cuda)
        if number >= 2:
            rollouts, batch_flops = objective.cost(batch)
            spent, learned = spent + middle - start, learned + end - middle
            done, flops = done + rollouts, flops + batch_flops
    if options.profile:
        with torch.profiler.profile() as profiled:
            objective.minibatches(taken[0], model.device)
            now(cuda)
        key = "self_cuda_time_total" if cuda else "self_cpu_time_total"
        print(profiled.key_averages().table(sort_by=key, row_limit=20, max_name_column_width=70))
    return row(f"{algorithm}/{kind}", model, done, spent, learned, flops, peak)


def row(name: str, model: TranslationModel, done: int, spent: float, learned: float, flops: float, peak: float) -> dict:
    return {
        "what": name,
        "width": model.config.transformer.hidden_size,
        "tokens": model.config.vocab_size,
        "rollouts_per_second": round(done / spent),
        "with_learning": round(done / (spent + learned)),
        "share_of_peak": round(flops / spent / peak, 3),
        "peak_tflops": round(peak / 1e12),
    }


def at_paper_size(whole_pair: bool, options: argparse.Namespace, device: torch.device, peak: float) -> dict:
    tokens, length, copies = 64_700, 24, 8
    pieces = [*SPECIALS, *(f"w{i}" for i in range(tokens - len(SPECIALS)))]
    vocabulary = Vocabulary.from_merges({piece: i for i, piece in enumerate(pieces)}, [])
    transformer = TransformerConfig(
        hidden_size=1024, num_layers=6, num_heads=8, max_positions=64, source_sees_target=whole_pair
    )
    cuda = device.type == "cuda"
    model = TranslationModel(ModelConfig(transformer, tokens, ("de", "en")), vocabulary).eval().requires_grad_(False)
    model = model.to(device=device, dtype=torch.bfloat16 if cuda else torch.float32)
    networks = ActorCritic(PolicyNetwork(PolicyConfig("hidden"), 1024), with_value=False).to(device)
    optimizer = torch.optim.AdamW(networks.parameters(), 1e-4)
    reward = make_reward("bleu", vocabulary)
    random = np.random.default_rng(1)
    count = options.rollouts // copies
    spent, learned = 0.0, 0.0
    for number in range(options.batches + 2):
        sentences = random.integers(10, tokens, (2, count, length))
        lengths = np.full(count, length)
        sources = pack_sentences(list(sentences[0]), np.zeros(count, np.int64), vocabulary.eos)
        canvases = model.pack_targets(sources, lengths, np.ones(count, np.int64))
        batch = DecodeBatch(canvases, random.integers(-(1 << 62), 1 << 62, count * copies), copies)
        start = now(cuda)
        sampler = SamplingOrder(LearnedOrder(networks.policy), with_opening=False)
        decisions, outcome = roll_out(model, OrderBatch(batch, sentences[1], lengths), sampler)
        returns = discounted_returns(step_rewards(reward, outcome, False), 0.999)
        advantages = leave_one_out(returns, copies)[to_device(decisions.rollout, device), decisions.step]
        middle = now(cuda)
        chosen = of_chosen(networks.log_probs(decisions), decisions)
        (-(advantages * chosen).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number >= 2:
            spent, learned = spent + middle - start, learned + now(cuda) - middle
    passes = count * copies * length * (length + 2 + (length + 2) * whole_pair)
    flops = 2 * 1024**2 * (62 * passes + 10 * count * copies * length * (length + 1) / 2)
    flops += 2 * count * copies * length * 1024 * tokens
    name = "paper size, source re-run" if whole_pair else "paper size, source kept"
    return row(name, model, count * copies * options.batches, spent, learned, flops * options.batches, peak)


def now(cuda: bool) -> float:
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--model", default="de-en")
    parser.add_argument("--kinds", default="hidden,features")
    parser.add_argument("--algorithms", default="rloo,a2c")
    parser.add_argument("--attention", type=int, default=0)
    parser.add_argument("--paper", action="store_true")
    parser.add_argument("--rollouts", type=int, default=4096, help="rollouts in a batch")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--profile", action="store_true", help="also print the kernels that take longest")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    peak = peak_flops(device)
    rows = []
    if options.store:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        model = TranslationModel.from_pretrained(options.model, device, dtype)
        for algorithm in options.algorithms.split(","):
            for kind in options.kinds.split(","):
                rows.append(on_store(Store(options.store), model, kind, algorithm, options, peak))
                print(rows[-1], flush=True)
    if options.paper:
        for whole_pair in (False, True):
            rows.append(at_paper_size(whole_pair, options, device, peak))
            print(rows[-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
