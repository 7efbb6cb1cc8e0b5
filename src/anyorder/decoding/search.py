"""Search: fill canvases greedily or with a beam. Several processes started by a launcher share the canvases."""

from collections.abc import Callable, Sequence

import torch.distributed as dist

from anyorder.decoding.beam import beam_search
from anyorder.decoding.config import BoundDecoding
from anyorder.decoding.engine import decode
from anyorder.decoding.forward import StepCallback
from anyorder.decoding.state import Hypothesis
from anyorder.device import report_lost_process
from anyorder.errors import InputError
from anyorder.models.base import Canvas, Model


def search(
    model: Model,
    canvases: Sequence[Canvas],
    decoding: BoundDecoding,
    on_progress: Callable[[int], None] = lambda canvases: None,
    on_step: StepCallback | None = None,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """The best hypotheses of every canvas, best first: greedy decoding gives one, beam search at most `n_best`.

    If there are several processes, each decodes its share and gets all results. They are the same as with one process,
    because no canvas depends on its batch.
    """
    order, beam, batch_tokens = decoding.order, decoding.beam, decoding.batch_tokens

    def fill(own: Sequence[Canvas], on_progress: Callable[[int], None]) -> list[list[Hypothesis]]:
        if beam.size > 1:
            return beam_search(model, own, order, beam, n_best, batch_tokens, on_progress)
        found = decode(
            model, own, order, decoding.schedule, decoding.revision, batch_tokens, on_progress, on_step,
            decoding.sampler,
        )  # fmt: skip
        return [[hypothesis] for hypothesis in found]

    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if on_step is not None and world > 1:
        raise InputError("steps cannot be followed where several processes share the sentences")
    if on_step is not None and beam.size > 1:
        raise beam.error("its steps cannot be followed one by one")
    if world == 1:
        return fill(canvases, on_progress)
    # Dealing out canvases by length gives every process about the same amount of work.
    by_length = sorted(range(len(canvases)), key=lambda i: -len(canvases[i].tokens))
    share = by_length[dist.get_rank() :: world]
    hypotheses = fill([canvases[i] for i in share], lambda count: on_progress(count * world))
    gathered: list[list[tuple[int, list[Hypothesis]]]] = [[] for _ in range(world)]
    with report_lost_process():
        dist.all_gather_object(gathered, list(zip(share, hypotheses, strict=True)))
    return [found for _, found in sorted((pair for part in gathered for pair in part), key=lambda pair: pair[0])]
