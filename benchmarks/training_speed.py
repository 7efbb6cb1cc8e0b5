"""How fast masked translation trains, against what a large matrix product reaches on the same device in the same run.

    python benchmarks/training_speed.py --store STORE [--widths 512,1024] [--seconds 20] [--json FILE]

Two counts of floating-point operations are shown. `done` counts what is computed: the last layer and the output run
only at masked positions. `formula` is 6 x non-embedding weights x tokens plus the projection at masked
positions, as papers count.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from anyorder.data.store import Store
from anyorder.device import to_device
from anyorder.models.native.transformer import TransformerConfig
from anyorder.training.clock import peak_flops
from anyorder.training.config import TrainConfig
from anyorder.training.loop import prefetch
from anyorder.training.optimizer import make_optimizer, update_average
from anyorder.training.run_folder import Cursor
from anyorder.training.train import new_model
from anyorder.training.translation_objective import MaskingConfig, TranslationObjective


def measure(
    store: Store, width: int, batch_tokens: int, seconds: float, cuda: bool, source_sees_target: bool, profile: bool
) -> dict[str, object]:
    device = torch.device("cuda" if cuda else "cpu")
    transformer = TransformerConfig(hidden_size=width, source_sees_target=source_sees_target)
    model = new_model(store, transformer, None, 1).to(device).train()
    average = new_model(store, transformer, None, 1).to(device)
    objective = TranslationObjective(store, model, MaskingConfig(), batch_tokens, 1, fixed=cuda)
    objective.module.to(device).train()
    if cuda:
        objective.module.compile(dynamic=False)
    optimizer = make_optimizer(model, TrainConfig(steps=1), cuda)
    source = prefetch(objective.batches(Cursor(), 0, 0, 1))

    def step() -> tuple[int, int]:
        batch, _ = next(source)
        tensors = {name: to_device(array, device) for name, array in batch.arrays.items()}
        with torch.autocast("cuda", torch.bfloat16, cuda):
            loss, _ = objective.module(tensors, longest=batch.longest, lengths=batch.lengths)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        update_average(average, model, 0.999, 1000)
        return batch.tokens, batch.predicted

    def wait() -> None:
        if cuda:
            torch.cuda.synchronize()

    start = time.perf_counter()
    step()
    wait()
    first = time.perf_counter() - start
    for _ in range(3):
        step()
    wait()
    tokens = predicted = steps = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(10 if cuda else 1):
            step_tokens, step_predicted = step()
            tokens, predicted, steps = tokens + step_tokens, predicted + step_predicted, steps + 1
        wait()
    spent = time.perf_counter() - start
    if profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            for _ in range(5):
                step()
            wait()
        print(found.key_averages().table(sort_by="cuda_time_total", row_limit=25, max_name_column_width=60))
    source.close()
    done = 6 * model.forward_flops(tokens, predicted, predicted)
    formula = 6.0 * (12 * transformer.num_layers * width**2 * tokens + model.config.vocab_size * width * predicted)
    return {
        "width": width,
        "source_sees_target": source_sees_target,
        "batch_tokens": batch_tokens,
        "first_step_seconds": round(first, 1),
        "steps": steps,
        "tokens_per_second": round(tokens / spent),
        "tflops_done": done / spent / 1e12,
        "tflops_formula": formula / spent / 1e12,
        "peak_tflops": peak_flops(device) / 1e12,
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9 if cuda else 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True)
    parser.add_argument("--widths", default="512,1024")
    parser.add_argument("--batch-tokens", type=int, default=65_536)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--source-sees-target", action="store_true", help="XLM's attention")
    parser.add_argument("--profile", action="store_true", help="also print the kernels that take longest")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    store, rows = Store(options.store), []
    for width in options.widths.split(","):
        row = measure(
            store,
            int(width),
            options.batch_tokens,
            options.seconds,
            torch.cuda.is_available(),
            options.source_sees_target,
            options.profile,
        )
        rows.append(row)
        done, formula, peak = row["tflops_done"], row["tflops_formula"], row["peak_tflops"]
        print(
            f"d {width}: {row['tokens_per_second']:,} tokens/s, {done:.0f} TFLOP/s done ({done / peak:.0%} of this "
            f"device's {peak:.0f}), {formula:.0f} by the formula ({formula / peak:.0%}; {formula / 790:.0%} of 790), "
            f"first step {row['first_step_seconds']} s, {row['memory_gb']:.0f} GB",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
