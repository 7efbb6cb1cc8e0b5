"""Which order suits a masked model that you have in memory, and by how much?

    python examples/in_memory.py

Your network and tokenizer take the place of `small_bert()`, your lines that of `counting()`. The model here learns to count
in half a minute. Where to begin depends on what is given, so the most certain position is a better choice than the left.
"""

import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

import anyorder

SPECIAL = ["[PAD]", "[MASK]", "[UNK]"]
LENGTH, NUMBERS = 8, 20


def counting(count: int, seed: int) -> list[str]:
    """Lines such as `7 8 9 10 11 12 13 14`, upwards or downwards."""
    generator = random.Random(seed)
    lines = []
    for _ in range(count):
        first = generator.randrange(NUMBERS - LENGTH + 1)
        line = [str(number) for number in range(first, first + LENGTH)]
        lines.append(" ".join(line if generator.random() < 0.5 else line[::-1]))
    return lines


def small_bert() -> tuple[BertForMaskedLM, PreTrainedTokenizerFast]:
    """A network of Transformers and its tokenizer, with random weights."""
    ids = {token: i for i, token in enumerate([*SPECIAL, *map(str, range(NUMBERS))])}
    words = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", mask_token="[MASK]", unk_token="[UNK]"
    )
    torch.manual_seed(1)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForMaskedLM(BertConfig(vocab_size=len(ids), max_position_embeddings=LENGTH, **size)), tokenizer


def train(network: BertForMaskedLM, tokenizer: PreTrainedTokenizerFast, steps: int) -> None:
    """Masked language modeling with any share of masks."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    network.train()
    for step in range(steps):
        ids = tokenizer(counting(64, seed=step), return_tensors="pt")["input_ids"]
        masked = torch.rand(ids.shape) < torch.rand(len(ids), 1)
        labels = ids.masked_fill(~masked, -100)
        loss = network(input_ids=ids.masked_fill(masked, tokenizer.mask_token_id), labels=labels).loss
        if masked.any():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def main(steps: int = 2000) -> list[tuple[str, float]]:
    """The share of masked tokens that each order recovers, in percent."""
    network, tokenizer = small_bert()
    train(network, tokenizer, steps)
    decoder = anyorder.load(network, tokenizer)
    evaluation = anyorder.evaluate_orders(
        decoder, counting(200, seed=-1), orders=["left-to-right", "uniform", "margin"], mask_share=0.8
    )
    for row in evaluation.rows:
        print(f"{row.system:14} {row.recovered:5.1f}% recovered, p = {row.p_values.get('left-to-right', 1):.4f}")
    [trajectory] = decoder.fill("[MASK] [MASK] 9 [MASK] [MASK] 12 [MASK] [MASK]", order="margin")
    print(trajectory.text, trajectory.steps)
    return [(row.system, row.recovered) for row in evaluation.rows]


if __name__ == "__main__":
    main()
