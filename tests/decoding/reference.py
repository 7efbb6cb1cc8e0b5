"""Schedules and revisions from their formulas: one canvas at a time, in plain Python, with nothing of the engine."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from anyorder.decoding.sampling import remasking_noise
from anyorder.models.base import AllowedTokens, Canvas, Model
from anyorder.models.native.attention import QueryPositions, Segments
from anyorder.orders import Order, State

Write = tuple[int, int, int, float]
NOWHERE = -1


@dataclass
class Reference:
    """A canvas while it fills up."""

    model: Model
    canvas: Canvas
    tokens: list[int]
    fillable: list[int] = field(default_factory=list)
    masked: set[int] = field(default_factory=set)
    steps: dict[int, int] = field(default_factory=dict)
    logprobs: dict[int, float] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    history: list[dict[int, list[float]]] = field(default_factory=list)
    """The log-probabilities of all tokens at the masked positions, step by step."""
    complete: int = 0
    step: int = 0

    def predictions(self) -> torch.Tensor:
        """(T, vocab_size) logits at every position, given what stands on the canvas."""
        batch = self.model.pack([replace(self.canvas, tokens=np.array(self.tokens))])
        rows = torch.arange(len(self.tokens)) + int(batch.starts[0])
        at = QueryPositions(rows, Segments.of(np.array([len(rows)])))
        return self.model.logits(self.model.context(batch).hidden(torch.from_numpy(batch.packed.tokens), at))


@torch.inference_mode()
def decode_by_formula(model: Model, canvas: Canvas, order: Order, schedule: str, revision: str = "none") -> Reference:
    """Fill a canvas. What stands after the colons are the parameters of the formulas."""
    one = Reference(model, canvas, canvas.tokens.tolist())
    one.fillable = [i for i, token in enumerate(one.tokens) if token == model.mask_token]
    one.masked = set(one.fillable)
    while one.masked:
        one.step += 1
        logits = one.predictions()
        logp = logits.log_softmax(-1)
        one.history.append({i: logp[i].tolist() for i in one.masked})
        ranking = _ranking(one, order, logits)
        for i in sorted(_chosen(one, schedule, ranking, logp)):
            allowed = [k for k in range(logits.shape[1]) if model.allowed_tokens[k]]
            token = max(allowed, key=lambda k: float(logits[i, k]))
            one.tokens[i], one.steps[i], one.logprobs[i] = token, one.step, float(logp[i, token])
            one.writes.append((i, one.step, token, one.logprobs[i]))
            one.masked.discard(i)
        one.complete += not one.masked
        kind, _, options = revision.partition(":")
        REVISIONS[kind](one, [float(number) for number in options.split(",") if number], logp)
    return one


def _ranking(one: Reference, order: Order, logits: torch.Tensor) -> list[int]:
    """Masked positions, best first."""
    masked = torch.tensor([[i in one.masked for i in range(len(one.tokens))]])
    where = masked[0].nonzero().squeeze(1)
    state = State(
        masked, torch.tensor([len(one.tokens)]), torch.tensor([one.canvas.key]), one.step, where=where, logits=logits[where],
        mask_token=one.model.mask_token, allowed=AllowedTokens(one.model.allowed_tokens, torch.device("cpu")),
    )  # fmt: skip
    scores = order.scores(state)[0].tolist()
    return sorted(where.tolist(), key=lambda i: (-scores[i], i))


def _chosen(one: Reference, schedule: str, ranking: list[int], logp: torch.Tensor) -> list[int]:
    """The positions that a step fills, at least one of those in `ranking`."""
    kind, _, options = schedule.partition(":")
    total, step = len(one.fillable), one.step
    if kind == "blocks":
        blocks_of, _, inner = options.partition("+")
        size, _, origin = blocks_of.partition("@")
        every = list(range(len(one.tokens))) if origin == "text" else one.fillable
        blocks = [every[i : i + int(size)] for i in range(0, len(every), int(size))]
        block = [i for i in next(block for block in blocks if one.masked & set(block)) if i in one.fillable]
        # A partial block of the text goes through the steps of a whole one: what it lacks is filled last, and nowhere.
        is_partial = origin == "text" and inner.partition(":")[0] not in (
            "threshold",
            "factor",
            "entropy-bound",
            "klass",
        )
        lacking = [NOWHERE] * (int(size) - len(block)) if is_partial else []
        first = min((one.steps[i] for i in block if i in one.steps), default=step)
        inside = Reference(
            one.model, one.canvas, one.tokens, block + lacking, one.masked & set(block), step=step - first + 1
        )
        inside.history = [{i: row[i] for i in row if i in block} for row in one.history]
        chosen = _chosen(inside, inner or "one", [i for i in ranking if i in block] + lacking, logp)
        return [i for i in chosen if i != NOWHERE]
    numbers = [float(number) for number in options.split(",") if number]
    words = [k for k, may in enumerate(one.model.allowed_tokens) if may]
    best = {i: math.exp(max(float(logp[i, k]) for k in words)) for i in ranking}
    entropy = {i: -sum(math.exp(p) * p for p in logp[i].tolist()) for i in ranking}
    if kind == "one" or kind.isdecimal():
        count = 1 if kind == "one" else int(kind)
    elif kind == "steps":  # as even as possible, the larger ones first
        sizes = [total // int(numbers[0]) + (t < total % int(numbers[0])) for t in range(int(numbers[0]))]
        count = len(ranking) - (total - sum(sizes[:step]))
    elif kind == "linear":
        count = len(ranking) - math.floor(total * (numbers[0] - step) / numbers[0])
    elif kind == "cosine":
        count = len(ranking) - math.floor(total * math.cos(math.pi / 2 * min(step / numbers[0], 1)))
    elif kind == "timesteps":
        count = dream_counts(total, int(numbers[0]), 0.001)[step - 1]
    elif kind == "rounded":
        count = dllm_counts(total, int(numbers[0]))[step - 1]
    elif kind == "dilated":
        base, reached = int(numbers[0]), set()
        for t in range(1, step + 1):
            reached |= {i for i in range(total) if i % max(total // base**t, 1) == 0}
        count = len(ranking) - (total - len(reached))
    elif kind == "threshold":
        return [i for i in ranking if best[i] >= numbers[0]] or ranking[:1]
    elif kind == "factor":
        count = 0
        while count < len(ranking) and best[ranking[count]] >= 1 - numbers[0] / (count + 2):
            count += 1
    elif kind == "entropy-bound":
        prefixes = [[entropy[i] for i in ranking[:n]] for n in range(1, len(ranking) + 1)]
        count = sum(sum(prefix) - max(prefix) <= numbers[0] + 1e-9 for prefix in prefixes)
    else:
        assert kind == "klass"
        return [i for i in ranking if best[i] > numbers[0] and _stable(one, i, numbers[1])] or ranking[:1]
    return ranking[: max(count, 1)]


def _stable(one: Reference, i: int, bound: float) -> bool:
    """Whether KL(p_t || p_t-1) was below the bound in the last two steps."""
    last = [row.get(i) for row in one.history[-3:]]
    if len(last) < 3 or None in last:
        return False
    pairs = zip(last[1:], last[:-1], strict=True)
    return all(sum(math.exp(p) * (p - q) for p, q in zip(a, b, strict=True)) < bound for a, b in pairs)  # type: ignore[arg-type]


def _remask(one: Reference, positions: list[int], hide: bool = True) -> None:
    for i in positions:
        one.masked.add(i)
        if hide:
            one.tokens[i] = one.model.mask_token


def _mask_predict(one: Reference, numbers: list[float], logp: torch.Tensor) -> None:
    if not one.masked:
        count = math.floor(len(one.fillable) * (1 - one.complete / numbers[0]) + 1e-9)
        least = int(one.complete < numbers[0])
        _remask(one, sorted(one.fillable, key=lambda i: (one.logprobs[i], i))[: max(count, least)])


def _p2(one: Reference, numbers: list[float], logp: torch.Tensor) -> None:
    if not one.masked:
        eta = numbers[1] if len(numbers) > 1 else 1.0
        now = {i: eta * float(logp[i, one.tokens[i]]) for i in one.fillable if one.steps[i] < one.step}
        now |= {i: one.logprobs[i] for i in one.fillable if one.steps[i] == one.step}
        count = math.floor(len(one.fillable) * (1 - one.complete / numbers[0]) + 1e-9)
        _remask(one, sorted(one.fillable, key=lambda i: (now[i], i))[: max(count, 0)])


def _refine(one: Reference, numbers: list[float], logp: torch.Tensor) -> None:
    if one.masked or one.complete > numbers[0]:
        return
    written: dict[int, list[int]] = {i: [] for i in one.fillable}
    for i, _, token, _ in one.writes:
        written[i].append(token)
    if one.complete == 1 or any(tokens[-1] != tokens[-2] for tokens in written.values()):
        _remask(one, one.fillable, hide=False)


def _gibbs(one: Reference, numbers: list[float], logp: torch.Tensor) -> None:
    if not one.masked and len(one.writes) < len(one.fillable) * (1 + numbers[0]):
        _remask(one, [min(one.fillable, key=lambda i: (one.steps[i], i))])


def _remdm(probability: Callable[..., dict[int, float]]) -> Callable[[Reference, list[float], torch.Tensor], None]:
    def remask(one: Reference, numbers: list[float], logp: torch.Tensor) -> None:
        alpha, alpha_next = one.step / numbers[0], (one.step + 1) / numbers[0]
        earlier = [i for i in one.fillable if i not in one.masked and one.steps[i] < one.step]
        if alpha_next >= 1 - 1e-9 or not earlier:
            return
        chance = probability(one, earlier, min(1, (1 - alpha_next) / alpha), *numbers[1:])
        noise = remasking_noise(torch.tensor([one.canvas.key]), one.step, len(one.tokens))[0].tolist()
        _remask(one, [i for i in earlier if noise[i] < chance[i]])

    return remask


def _softmax_of_doubt(one: Reference, earlier: list[int], bound: float) -> dict[int, float]:
    doubt = {i: math.exp(-math.exp(one.logprobs[i])) for i in earlier}
    return {i: bound * value / sum(doubt.values()) for i, value in doubt.items()}


REVISIONS: dict[str, Callable[[Reference, list[float], torch.Tensor], None]] = {
    "none": lambda one, numbers, logp: None,
    "mask-predict": _mask_predict,
    "p2": _p2,
    "refine": _refine,
    "gibbs": _gibbs,
    "remdm": _remdm(lambda one, earlier, bound, eta: dict.fromkeys(earlier, min(eta, bound))),
    "remdm-rescale": _remdm(lambda one, earlier, bound, eta: dict.fromkeys(earlier, eta * bound)),
    "remdm-conf": _remdm(_softmax_of_doubt),
}


def dream_counts(length: int, steps: int, eps: float) -> list[int]:
    """How many positions the steps of Dream's sampler fill, for one sentence, without steps that fill none."""
    times, masked, counts = torch.linspace(1, eps, steps + 1), length, []
    for i in range(steps):
        share = torch.tensor(float(masked)) * (1 - times[i + 1] / times[i])
        counts.append(int(share) if i < steps - 1 else masked)
        masked -= counts[-1]
    return [count for count in counts if count]


def dllm_counts(length: int, steps: int) -> list[int]:
    """How many positions the steps of dLLM's samplers fill with their linear schedule, without steps that fill none."""
    masked, counts = length, []
    for left in range(steps, 0, -1):
        now, after = torch.tensor(left / steps), torch.tensor((left - 1) / steps)
        stays = ((1 - (1 - after)) / (1 - (1 - now))).item()
        counts.append(int(torch.tensor(masked, dtype=torch.float64).mul(1 - stays).round()))
        masked -= counts[-1]
    assert masked == 0
    return [count for count in counts if count]
