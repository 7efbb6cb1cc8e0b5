"""Decoding spread over the processes that `accelerate launch` or `torchrun` started; each gets all results."""

from collections.abc import Callable, Sequence

import torch.distributed as dist

from anyorder.decoding.engine import Hypothesis, Request, decode
from anyorder.decoding.schedules import Schedule
from anyorder.models.translation import TranslationModel
from anyorder.orders import Order


def decode_distributed(
    model: TranslationModel,
    requests: Sequence[Request],
    direction: str,
    order: Order,
    budget: Schedule,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] = lambda sentences: None,
) -> list[Hypothesis]:
    """`decode`, each process doing its share. Results are those of one process: no sentence depends on its batch."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return decode(model, requests, direction, order, budget, batch_tokens, advance)
    rank, world = dist.get_rank(), dist.get_world_size()
    # Dealing out by length gives every process about the same work.
    by_length = sorted(range(len(requests)), key=lambda i: -requests[i].length)
    own = by_length[rank::world]
    done = decode(
        model, [requests[i] for i in own], direction, order, budget, batch_tokens, lambda count: advance(count * world)
    )
    gathered: list[list[tuple[int, Hypothesis]]] = [[] for _ in range(world)]
    dist.all_gather_object(gathered, list(zip(own, done, strict=True)))
    return [filled for _, filled in sorted((pair for part in gathered for pair in part), key=lambda pair: pair[0])]
