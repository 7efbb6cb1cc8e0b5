"""Train a translation model: the library's function behind `anyorder train`. Knows nothing about flags."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from anyorder.data.store import Split
from anyorder.data.stores import Data, open_stores
from anyorder.device import join_processes
from anyorder.models.transformer import TransformerConfig
from anyorder.training.config import TextTrainConfig, choose_by_device, split_directions
from anyorder.training.loop import run_training
from anyorder.training.run_folder import check_run_folder
from anyorder.training.translation_objective import MaskingConfig, TranslationObjective, new_model

CUDA_BATCH_TOKENS, CPU_BATCH_TOKENS = 32_768, 2_048


@dataclass(frozen=True)
class TrainResult:
    """A trained model."""

    model: Path
    """The folder of the model that did best in validation; pass it to `load`."""
    scores: dict[str, float]
    """Scores of the last validation, by name; empty if the store has no split for it."""
    steps: int
    """Number of training steps."""
    finished: bool
    """False if a signal stopped the run. It can be resumed, and there may be no model yet."""


def train_model(
    data: Data,
    out: str | Path,
    transformer: TransformerConfig = TransformerConfig(),  # noqa: B008 - frozen
    masking: MaskingConfig = MaskingConfig(),  # noqa: B008
    run: TextTrainConfig = TextTrainConfig(),  # noqa: B008
    init: str | Path | None = None,
    resume: bool = False,
    directions: str | Sequence[str] = (),
) -> TrainResult:
    """Train an undirected translation model, all directions at once.

    Args:
        data: A prepared store, or several that share one vocabulary, each with two languages: the model then translates
            between the languages of each, and a batch mixes their pairs.
        out: The folder of the run: model/ (to translate with), `checkpoint-*/` (to resume from), log.jsonl (curves).
        transformer: Size of the model.
        masking: The objective and its data.
        run: How long and how fast to train.
        init: A model to start from (a folder, a bundled name, a hub id), such as a pretrained one.
        resume: Continue the run in `out` from its last checkpoint, if there is one.
        directions: The directions to learn, such as `de-en`; by default all directions of the stores.
    """
    out = Path(out)
    run.check_length()
    device = run.resolve_device()
    check_run_folder(out, resume)
    join_processes(device)
    stores = open_stores(data)
    model = new_model(stores, transformer, init, run.seed, run.deepnorm)
    batch_tokens = run.batch_tokens or max(default_batch_tokens(store.split("train"), device) for store in stores)
    objective = TranslationObjective(
        stores,
        model,
        masking,
        batch_tokens,
        run.seed,
        fixed=device.type == "cuda",
        directions=split_directions(directions),
        deepnorm=run.deepnorm,
    )
    result = run_training(objective, run, out, resume)
    return TrainResult(out / "model", result.scores, result.step, result.finished)


def default_batch_tokens(split: Split, device: torch.device) -> int:
    """Tokens per batch that suit the device and fit the longest pair."""
    longest = sum(int(side.lengths.max()) + 2 for side in split.sides.values())
    return choose_by_device(None, device, cuda=CUDA_BATCH_TOKENS, cpu=max(CPU_BATCH_TOKENS, longest))
