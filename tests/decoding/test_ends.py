"""End tokens: never, last, and decoding that stops after the block with which a completion ends."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import anyorder
from anyorder import Decoder, InputError, Trajectory
from tests.models.checkpoints import VOCABULARY, logits_of, network, save, tokenizer

PROMPTS = ["w1 w2", "w3", "w4 w5 w6 w7", "w11"]
ENDS = [VOCABULARY.index(token) for token in ("[SEP]", "w4")]
LENGTH, BLOCK = 12, 4


def make_decoder(block_size: int | None) -> Decoder:
    """A model that likes to end a text. `w4` is an end token, too."""
    own = network("Qwen3ForCausalLM")
    own.config.eos_token_id = ENDS
    own.lm_head.bias = torch.nn.Parameter(torch.zeros(own.config.vocab_size))
    own.lm_head.bias.data[ENDS] = torch.tensor([3.0, 2.0])
    found = anyorder.load(own, tokenizer(delimiters=False))
    found.model.block_size = block_size
    assert found.model.end_tokens == set(ENDS)
    return found


@pytest.fixture(scope="module", params=[None, BLOCK], ids=["full", "block-causal"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return make_decoder(request.param)


@pytest.fixture(scope="module")
def full() -> Decoder:
    return make_decoder(None)


def llada(decoder: Decoder, prompt: str, block: int, steps: int, end: str) -> tuple[list[int], list[int]]:
    """LLaDA's loop as its paper describes it (appendix B.4): tokens and steps of one answer, block after block.

    never: end tokens have no probability. last: where the best token is an end token, the confidence is -inf, and the
    others' is their probability without end tokens.
    """
    model = decoder.model
    allowed = torch.from_numpy(model.generating().allowed_tokens)
    ids = [*model.encode([prompt])[0].tolist(), *[model.mask_token] * LENGTH]
    start, step, when = len(ids) - LENGTH, 0, [0] * LENGTH
    for first in range(start, len(ids), block):
        for count in (block // steps + (i < block % steps) for i in range(steps)):
            every = logits_of(model, ids).double()
            logits = every.masked_fill(~allowed, -torch.inf)
            without = logits.clone()
            without[:, ENDS] = -torch.inf
            best = (without if end == "never" else logits).argmax(-1)
            # Disallowed tokens keep their share of the probability.
            others = every.clone()
            others[:, ENDS] = -torch.inf
            confidence = others.softmax(-1).gather(1, best[:, None]).squeeze(1)
            confidence[torch.isin(best, torch.tensor(ENDS))] = -torch.inf
            masked = [place for place in range(first, first + block) if ids[place] == model.mask_token]
            step += 1
            for place in sorted(masked, key=lambda place: (-float(confidence[place]), place))[:count]:
                ids[place], when[place - start] = int(best[place]), step
    return ids[start:], when


@pytest.mark.parametrize("end", ["never", "last"])
@pytest.mark.parametrize(("block", "steps"), [(12, 12), (12, 5), (4, 4), (4, 3)])
def test_as_llada(full: Decoder, end: str, block: int, steps: int) -> None:
    options = {"schedule": f"blocks:{block}+steps:{steps}", "early_stop": False, "end": end}
    runs = full.generate(PROMPTS, LENGTH, "max-prob", **options)
    for prompt, run in zip(PROMPTS, runs, strict=True):
        ids, when = llada(full, prompt, block, steps, end)
        assert (run.tokens, run.steps) == (full.model.to_tokens(ids), when)
        assert f"|end:{end}|early_stop:no|" in run.signature
    assert any("w4" in run.tokens for run in runs) == (end == "last")


@pytest.mark.parametrize("order", ["uniform", "entropy"])
@pytest.mark.parametrize("schedule", ["one", "threshold:0.3", "factor:2", "klass:0.1,10"])
def test_every_order_and_schedule_can_wait(full: Decoder, order: str, schedule: str) -> None:
    """Whatever fills an end token at a step fills nothing else then, unless it is known in advance."""
    usual = full.generate(PROMPTS, LENGTH, order, schedule=schedule)
    last = full.generate(PROMPTS, LENGTH, order, schedule=schedule, end="last")
    never = full.generate(PROMPTS, LENGTH, order, schedule=schedule, end="never")
    assert any({"[SEP]", "w4"} & set(run.tokens) for run in usual)
    assert not any({"[SEP]", "w4"} & set(run.tokens) for run in never)
    assert all(np.isfinite(run.logprobs).all() for run in never)
    for run in last:
        for step in set(run.steps):
            written = {token in ("[SEP]", "w4") for token, at in zip(run.tokens, run.steps, strict=True) if at == step}
            assert len(written) == 1
    alone = [run for prompt in PROMPTS for run in full.generate(prompt, LENGTH, order, schedule=schedule, end="last")]
    assert [run.to_json() for run in alone] == [run.to_json() for run in last]
    assert [run.order for run in last] == [order] * len(PROMPTS)


@pytest.mark.parametrize(
    "schedule", ["blocks:4", "blocks:4+steps:3", "blocks:4+threshold:0.3", "blocks:5+klass:0.1,10"]
)
@pytest.mark.parametrize("stop", [(), ("w1", "w13 w2")], ids=["end", "stop"])
def test_early_stop_changes_nothing_before_it(decoder: Decoder, schedule: str, stop: Sequence[str]) -> None:
    size = int(schedule[7])
    options = {"schedule": schedule, "stop": stop, "order": "margin", "end": "never" if stop else "free"}
    whole = decoder.generate(PROMPTS, LENGTH, early_stop=False, **options)
    early = decoder.generate(PROMPTS, LENGTH, **options)
    for all_of_it, run in zip(whole, early, strict=True):
        assert (run.text, run.completion) == (all_of_it.text, all_of_it.completion)
        assert run.completion_length == all_of_it.completion_length
        kept = run.length
        blocks = -(-(int(run.completion_length or 0) + 1) // size)
        assert kept <= blocks * size or stop
        assert run.tokens == all_of_it.tokens[:kept]
        assert run.steps == all_of_it.steps[:kept]
        assert run.logprobs == all_of_it.logprobs[:kept]
        assert run.forwards == max(run.steps)
        assert run.positions == all_of_it.positions[:kept]
        assert Trajectory.from_json(run.to_json()) == run
    assert any(run.forwards < all_of_it.forwards for all_of_it, run in zip(whole, early, strict=True))
    alone = [run for prompt in PROMPTS for run in decoder.generate(prompt, LENGTH, **options)]
    assert [run.to_json() for run in alone] == [run.to_json() for run in early]


def test_an_empty_answer_takes_one_block() -> None:
    own = network("Qwen3ForCausalLM")
    own.lm_head.bias = torch.nn.Parameter(torch.zeros(own.config.vocab_size))
    own.lm_head.bias.data[VOCABULARY.index("[SEP]")] = 1e4
    decoder = anyorder.load(own, tokenizer(delimiters=False))
    decoder.model.block_size = BLOCK
    [run] = decoder.generate("w1 w2 w3 w4", 56, "margin")
    assert (run.completion, run.length, run.forwards, run.text) == ("", BLOCK, BLOCK, "w1 w2 w3 w4")
    [with_suffix] = decoder.generate({"prompt": "w1 w2 w3 w4", "suffix": "w5"}, 40, "margin")
    assert (with_suffix.text, with_suffix.length) == ("w1 w2 w3 w4 w5", BLOCK)
    assert with_suffix.canvas == ["w1", "w2", "w3", "w4", *[None] * BLOCK, "w5"]
    for options in ({"schedule": "one"}, {"revision": "gibbs", "schedule": "blocks:4"}, {"early_stop": False}):
        [whole] = decoder.generate("w1 w2 w3 w4", 16, "margin", **options)
        assert whole.length == 16
    [canvas] = decoder.generate({"canvas": [1, None, 2, *[None] * 12]}, order="margin")
    assert canvas.length == 13  # masks in several places have no completion that could end


def test_wrong_options(full: Decoder) -> None:
    with pytest.raises(InputError, match="end always: expected free, last, never"):
        full.generate("w1", end="always")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="beam joint:2: chooses positions itself, so end tokens cannot be last"):
        full.generate("w1", 4, beam="joint:2", end="last")


def test_a_model_without_end_tokens(tmp_path: Path) -> None:
    """An encoder has none, so there is nothing to fill last."""
    save("BertForMaskedLM", tmp_path)
    encoder = anyorder.load(tmp_path)
    assert encoder.model.end_tokens == frozenset()
    plain, last = (encoder.generate("w1 w2", 3, "margin", end=end) for end in ("free", "last"))
    assert [(one.tokens, one.steps) for one in last] == [(one.tokens, one.steps) for one in plain]
