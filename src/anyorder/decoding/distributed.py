"""Decoding spread over the processes that `accelerate launch` or `torchrun` started; each gets all results."""

from collections.abc import Callable, Sequence

import torch.distributed as dist

from anyorder.decoding.config import BoundDecoding
from anyorder.decoding.engine import StepCallback, decode
from anyorder.decoding.state import Hypothesis
from anyorder.device import report_lost_process
from anyorder.models.base import Canvas, Model


def decode_distributed(
    model: Model,
    canvases: Sequence[Canvas],
    decoding: BoundDecoding,
    on_progress: Callable[[int], None] = lambda canvases: None,
    on_step: StepCallback | None = None,
) -> list[Hypothesis]:
    """`decode`, each process doing its share. Results are those of one process: no canvas depends on its batch."""
    order, schedule, revision = decoding.order, decoding.schedule, decoding.revision
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return decode(model, canvases, order, schedule, revision, decoding.batch_tokens, on_progress, on_step)
    rank, world = dist.get_rank(), dist.get_world_size()
    # Dealing out by length gives every process about the same work.
    by_length = sorted(range(len(canvases)), key=lambda i: -len(canvases[i].tokens))
    share = by_length[rank::world]
    hypotheses = decode(
        model, [canvases[i] for i in share], order, schedule, revision, decoding.batch_tokens,
        lambda count: on_progress(count * world),
    )  # fmt: skip
    gathered: list[list[tuple[int, Hypothesis]]] = [[] for _ in range(world)]
    with report_lost_process():
        dist.all_gather_object(gathered, list(zip(share, hypotheses, strict=True)))
    return [hypothesis for _, hypothesis in sorted((pair for part in gathered for pair in part), key=lambda p: p[0])]
