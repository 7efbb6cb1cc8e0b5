"""Sentences a second in every order, against Transformers' XLM driven by a plain loop in the same run.

    python benchmarks/decoding_speed.py --store STORE [--model MODEL] [--split dev] [--limit N] [--json FILE]

Without --model a model of random weights is used: speed does not depend on what it says. The peer is an
XLMWithLMHeadModel of the same size that re-runs padded pairs at every step and keeps the whole vocabulary projection,
on the same device in the same precision; it decodes a sample from left to right.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from anyorder.data.store import Store
from anyorder.decoding.engine import decode
from anyorder.decoding.schedules import make_schedule
from anyorder.evaluation.evaluate_orders import HEURISTIC_ORDERS
from anyorder.models.base import Canvas
from anyorder.models.native.transformer import TransformerConfig
from anyorder.models.native.translation_model import ModelConfig, TranslationModel
from anyorder.orders import Order, make_order, split_orders


def seconds(work: object, cuda: bool) -> float:
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()  # type: ignore[operator]
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def decoding_seconds(model: TranslationModel, canvases: list[Canvas], order: Order, cuda: bool) -> float:
    """Time to fill all canvases, after a pass that compiles and tunes the kernels for exactly these shapes."""
    schedule = make_schedule("one")
    decode(model, canvases, order, schedule)
    return seconds(lambda: decode(model, canvases, order, schedule), cuda)


def peer(canvases: list[Canvas], model: TranslationModel, batch: int) -> float:
    """Sentences a second of Transformers' XLM, decoding from left to right."""
    from transformers import XLMConfig, XLMWithLMHeadModel

    size, device = model.config.transformer, model.device
    config = XLMConfig(
        vocab_size=model.vocab_size, emb_dim=size.hidden_size, n_layers=size.num_layers, n_heads=size.num_heads,
        n_langs=2, max_position_embeddings=size.max_positions, gelu_activation=True, causal=False, dropout=0.0,
    )  # fmt: skip
    xlm = XLMWithLMHeadModel(config).to(device=device, dtype=model.output_bias.dtype).eval()
    mask, eos, pad = model.vocabulary.mask, model.vocabulary.eos, model.vocabulary.pad
    ordered = sorted(canvases, key=lambda canvas: len(canvas.tokens))

    def run() -> None:
        for start in range(0, len(ordered), batch):
            group = ordered[start : start + batch]
            rows = [[eos, *one.source.tolist(), eos, eos, *one.tokens.tolist(), eos] for one in group]
            widest = max(map(len, rows))
            tokens = torch.tensor([row + [pad] * (widest - len(row)) for row in rows], device=device)
            sizes = torch.tensor([len(row) for row in rows], device=device)
            splits = torch.tensor([len(one.source) + 2 for one in group], device=device)[:, None]
            place = torch.arange(widest, device=device)[None]
            second = place >= splits
            positions = torch.where(second, place - splits, place)
            for step in range(max(len(one.tokens) for one in group)):
                with torch.no_grad():
                    scores = xlm(
                        tokens, langs=second.long(), position_ids=positions, attention_mask=place < sizes[:, None]
                    ).logits
                column = splits + 1 + step
                best = scores.argmax(-1)
                tokens = torch.where((place == column) & (tokens == mask), best, tokens)

    run()
    return len(canvases) / seconds(run, device.type == "cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True)
    parser.add_argument("--model")
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--source-sees-target", action="store_true", help="XLM's attention")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--orders", default=",".join(HEURISTIC_ORDERS))
    parser.add_argument("--peer", type=int, default=256, help="sentences for the peer; 0 leaves it out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    store = Store(options.store)
    cuda = torch.cuda.is_available()
    place = {"device": "cuda" if cuda else "cpu", "dtype": torch.bfloat16 if cuda else torch.float32}
    if options.model:
        model = TranslationModel.from_pretrained(options.model, **place)
    else:
        size = TransformerConfig(hidden_size=options.hidden_size, source_sees_target=options.source_sees_target)
        model = (
            TranslationModel(ModelConfig(size, len(store.vocabulary), store.languages), store.vocabulary)
            .to(**place)
            .eval()
        )
    split, direction = store.split(options.split), "-".join(store.languages)
    source, target = (split.sides[language] for language in store.languages)
    canvases = [
        model.blank_canvas(np.asarray(source[i], np.int64), int(target.lengths[i]), direction, key=i)
        for i in range(len(split))
    ][: options.limit]
    rows = []
    for name in split_orders(options.orders):
        spent = decoding_seconds(model, canvases, make_order(name).bind(model, direction), cuda)
        rows.append({"order": name, "sentences": len(canvases), "seconds": spent, "per_second": len(canvases) / spent})
        print(f"{name:20} {len(canvases) / spent:9,.0f} sentences/s", flush=True)
    result = {"device": torch.cuda.get_device_name() if cuda else "cpu", "rows": rows}
    if options.peer:
        sample = canvases[:: max(1, len(canvases) // options.peer)][: options.peer]
        ours = len(sample) / decoding_seconds(model, sample, make_order("left-to-right"), cuda)
        theirs = peer(sample, model, 64)
        result["peer"] = {"sentences": len(sample), "ours_per_second": ours, "transformers_per_second": theirs}
        print(
            f"{len(sample)} sentences, left to right: {ours:,.0f}/s, Transformers {theirs:,.0f}/s: {ours / theirs:.1f}x"
        )
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
