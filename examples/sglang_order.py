"""A learned order decides which positions SGLang fills. Nothing here needs anyorder, once the order is exported.

    anyorder export-order learned:de-en/confidence --out order.py

Put this file into SGLang's folder `sglang/srt/dllm/algorithm/`, where it looks for algorithms, and name the order in a
config, `order.yaml`, with `order: /path/to/order.py` and `count: 1`. Then start the server with
`--dllm-algorithm LearnedOrder --dllm-algorithm-config order.yaml`.

The order sees the block that is being decoded, and nothing of the text before it: it scores the block as if it were a
text of its own. The steps of SGLang's own algorithm, `LowConfidence`, are the same but for the scores.
"""

import importlib.util

import torch
from sglang.srt.dllm.algorithm.base import DllmAlgorithm


class LearnedOrder(DllmAlgorithm):
    """Each step fills the `count` positions of every block that the order ranks first."""

    def __init__(self, config):
        super().__init__(config)
        place = importlib.util.spec_from_file_location("exported_order", config.algorithm_config["order"])
        self.order = importlib.util.module_from_spec(place)
        place.loader.exec_module(self.order)
        if self.order.NEEDS != "logits":
            raise ValueError(f"{self.order.NAME} needs hidden states, which SGLang does not pass on")
        self.count = config.algorithm_config.get("count", 1)

    def step(self, forward_batch, full_logits, states):
        """One step, in place. Returns for every block whether it was finished before."""
        input_ids = forward_batch.input_ids.view(forward_batch.batch_size, self.block_size)
        logits = full_logits.view(*input_ids.shape, -1)
        masked = input_ids == self.mask_id
        scores = self.order.scores(input_ids, masked, self.mask_id, logits)
        ranked = scores.argsort(dim=1, descending=True, stable=True)[:, : self.count]
        chosen = torch.zeros_like(masked).scatter(1, ranked, True) & masked
        words = torch.arange(logits.shape[-1], device=logits.device) != self.mask_id
        best = logits.masked_fill(~words, -torch.inf).argmax(-1)
        input_ids.copy_(torch.where(chosen, best, input_ids))
        return (~masked.any(1)).tolist()


Algorithm = LearnedOrder
