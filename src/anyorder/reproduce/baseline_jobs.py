"""Jobs of the autoregressive baseline: train it, decode with it. Finished work is never repeated.

baseline/MODEL/MINUTES    the folder of a run: model/, checkpoints, log.jsonl
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyorder import __version__
from anyorder.data.store import Store
from anyorder.data.subwords import CONTINUES
from anyorder.decoding.sentence import Sentence
from anyorder.decoding.signature import Signature
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.files import sha256
from anyorder.files.records import read_record
from anyorder.models.storage import WEIGHTS
from anyorder.models.translation import TranslationModel
from anyorder.reproduce.autoregressive import AutoregressiveObjective, check_baseline, generate, load_baseline
from anyorder.reproduce.cells import CellJob, Job, Spent, device_name, read_log_seconds, write_whole_json
from anyorder.training.config import TrainConfig, choose_by_device
from anyorder.training.loop import run_training

METHODS = {"greedy": 1, "beam 4": 4}
"""Ways to decode, and their beam sizes."""


@dataclass(frozen=True)
class BaselineTrainJob(Job):
    """Train a baseline as large as a model, on the same text.

    Args:
        results: The folder of all results.
        model: The undirected model.
        label: Its folder.
        stores: The text.
        minutes: How long to train.
        weights: How often each pair of a corpus is used per epoch, by name.
        device: The device to train on.
    """

    results: Path
    model: TranslationModel
    label: str
    stores: Sequence[Store]
    minutes: float
    weights: Mapping[str, float]
    device: torch.device
    kind = "train"
    needs = ()

    @property
    def folder(self) -> Path:
        return self.results / "baseline" / self.label / f"{self.minutes:g}-minutes"

    @property
    def place(self) -> Path:
        """The folder of the trained model."""
        return self.folder / AutoregressiveObjective.folder

    @property
    def title(self) -> str:
        return f"train an autoregressive baseline, {self.minutes:g} minutes"

    @property
    def amount(self) -> int:
        return max(1, round(self.minutes * 60))

    @property
    def done(self) -> bool:
        """Raises an `InputError` if it was trained with other weights."""
        if not self._record.exists():
            return False
        weights = read_record(self._record).values.get("weights", {})
        if weights != dict(self.weights):
            raise InputError(f"{self.folder}: was trained with other weights; choose another folder for the results")
        return (self.place / WEIGHTS).exists()

    def spent(self) -> list[Spent]:
        seconds = read_log_seconds(self.folder)
        if not seconds:
            return []
        device = read_record(self._record).text("device") if self._record.exists() else device_name(self.device)
        return [Spent("train", seconds, device, self.amount)]

    def run(self) -> bool:
        tokens = choose_by_device(None, self.device, cuda=16_384, cpu=1_024)
        objective = AutoregressiveObjective(self.stores, self.model, tokens, seed=1, weights=self.weights)
        device: Any = self.device.type
        run = TrainConfig(
            minutes=self.minutes, learning_rate=5e-4, validate_every=2000, save_every=5000, device=device, compile="no"
        )
        result = run_training(objective, run, self.folder, resume=True)
        if result.finished:
            record = {"steps": result.step, "scores": result.scores, "device": device_name(self.device)}
            write_whole_json(self._record, {**record, "weights": dict(self.weights)})
        return result.finished

    @property
    def _record(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")


@dataclass(frozen=True)
class BaselineDecodeJob(CellJob):
    """Decode a test set with a baseline, greedily or with a beam.

    Args:
        place: The folder of the trained baseline, which may not exist yet.
        model: The undirected model whose vocabulary it uses.
        on: The device to decode on.
    """

    place: Path
    model: TranslationModel
    on: torch.device

    @property
    def device(self) -> torch.device:
        return self.on

    def key(self) -> dict[str, Any] | None:
        return {"weights": _checksum(self.place)} if (self.place / WEIGHTS).exists() else None

    def decode(self, sentences: Sequence[Sentence], on_progress: Callable[[int], None]) -> list[Trajectory]:
        network, record = load_baseline(self.place, self.on)
        check_baseline(self.place, network, record, self.model.vocabulary, self.model.name)
        _, target = self.model.languages(self.data.direction)
        tag = len(self.model.vocabulary) + record.texts("languages").index(target)
        return decode_baseline(
            network, self.model, sentences, self.data.direction, tag, METHODS[self.name], on_progress
        )


@cache
def _checksum(place: Path) -> str:
    return sha256(place / WEIGHTS)[:12]


def decode_baseline(
    network: Any,
    model: TranslationModel,
    sentences: Sequence[Sentence],
    direction: str,
    tag: int,
    beam: int,
    on_progress: Callable[[int], None] = lambda sentences: None,
) -> list[Trajectory]:
    """Translate sentences from left to right. A source that is too long is truncated.

    Args:
        network: Transformers' model.
        model: The undirected model whose vocabulary it uses.
        sentences: The sentences to translate.
        direction: Source and target language.
        tag: The token for the target language.
        beam: Beam size; 1 is greedy.
        on_progress: Called with the number of finished sentences.
    """
    room = model.max_length
    sources = [np.array(sentence.ids[:room], np.int64) for sentence in sentences]
    found = generate(network, model.vocabulary, sources, tag, beam=beam, room=room, on_progress=on_progress)
    signature = Signature(
        order="left-to-right", schedule="one", revision="none", beam=beam, length="own", seed=1,
        version=f"anyorder.{__version__}",
    )  # fmt: skip
    return [
        _trajectory(model, sentence.text, ids[ids != model.vocabulary.eos].tolist(), direction, str(signature))
        for sentence, ids in zip(sentences, found, strict=True)
    ]


def _trajectory(model: TranslationModel, source: str, ids: list[int], direction: str, signature: str) -> Trajectory:
    tokens = model.to_tokens(ids)
    if tokens:  # a truncated hypothesis may end inside a word
        tokens[-1] = tokens[-1].removesuffix(CONTINUES) or CONTINUES
    steps = list(range(1, len(ids) + 1))
    text = model.to_text(ids, direction)
    return Trajectory(
        source, text, tokens, steps, [], "left-to-right", len(ids), signature, "autoregressive", direction
    )
