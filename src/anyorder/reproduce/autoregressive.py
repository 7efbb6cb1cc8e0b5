"""An autoregressive baseline: an encoder-decoder from Transformers, as large as an undirected model, on the same text.

It shares the model's vocabulary; the source begins with a token for the target language. It is trained by the same
loop as every other model, so it can be stopped and resumed. Batches hold sentences of similar length.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder import __version__
from anyorder.data.packing import PackedBatch, pack_sentences
from anyorder.data.random_streams import random_for
from anyorder.data.store import Store, Stores
from anyorder.data.vocabulary import CONTINUES, Vocabulary
from anyorder.decoding.signature import Signature
from anyorder.decoding.trajectory import Trajectory
from anyorder.device import inference_dtype, to_device
from anyorder.errors import InputError
from anyorder.files import atomic_folder, sha256, verify, write_json
from anyorder.models.hf.pretrained import import_transformers, quiet
from anyorder.models.native.storage import WEIGHTS
from anyorder.models.native.translation_model import TranslationModel
from anyorder.records import read_record
from anyorder.reproduce.data_folders import SplitSet
from anyorder.reproduce.jobs import DecodeJob, RunJob
from anyorder.training.config import TrainConfig, choose_by_device
from anyorder.training.loop import run_training
from anyorder.training.objective import IGNORED, Objective, shuffled
from anyorder.training.translation_objective import TranslationPairs

RECORD, CONFIG = "baseline.json", "config.json"
MAX_LAYERS = 1000
EXTRA_POSITIONS = 2
METHODS = {"greedy": 1, "beam 4": 4}
"""Ways to decode, and their beam sizes."""
LABEL_SMOOTHING = 0.1
VALIDATION_PAIRS = 500
"""Training pairs that are held out, but at most a tenth of them."""
Batch = dict[str, np.ndarray]


def marian_settings(model: TranslationModel) -> dict[str, Any]:
    """Settings for an encoder-decoder with about as many weights as a model.

    Half of the layers encode; a decoder layer has a third more weights, so the decoder gets fewer layers.
    """
    size, vocabulary = model.config.transformer, model.vocabulary
    encoder = max(1, size.num_layers // 2)
    decoder = max(1, round((size.num_layers - encoder) * 12 / 16))
    sizes = {"attention_heads": size.num_heads, "ffn_dim": 4 * size.hidden_size}
    return {
        **{f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in sizes.items()},
        "encoder_layers": encoder,
        "decoder_layers": decoder,
        "vocab_size": len(vocabulary) + len(model.config.languages),
        "d_model": size.hidden_size,
        "max_position_embeddings": size.max_positions + EXTRA_POSITIONS,
        "dropout": size.dropout,
        "activation_function": "gelu",
        "scale_embedding": True,
        "pad_token_id": vocabulary.pad,
        "eos_token_id": vocabulary.eos,
        "decoder_start_token_id": vocabulary.pad,
        "forced_eos_token_id": None,
    }


class AutoregressiveLoss(nn.Module):
    """Label-smoothed cross-entropy of the next token."""

    def __init__(self, learner: nn.Module):
        super().__init__()
        self.learner = learner

    def forward(self, batch: dict[str, Tensor], smoothing: float = LABEL_SMOOTHING) -> tuple[Tensor, Tensor]:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        logits = self.learner(**inputs, use_cache=False).logits.float().flatten(0, 1)
        loss = F.cross_entropy(logits, batch["labels"].flatten(), ignore_index=IGNORED, label_smoothing=smoothing)
        return loss, loss.detach()[None]


class AutoregressiveObjective(Objective[Batch]):
    """Translation from left to right, in all directions of the stores' `train` splits.

    A few pairs are held out for validation. The undirected model determines vocabulary, languages and size. Tokens per
    batch count both sides and padding; weights are how often each pair of a corpus is used per epoch, by name.
    """

    reports = ("loss",)
    shown = ("loss",)
    unit = "tokens"
    compiles = False

    def __init__(
        self,
        stores: Sequence[Store],
        model: TranslationModel,
        batch_tokens: int,
        seed: int,
        weights: Mapping[str, float] | None = None,
    ):
        torch.manual_seed(seed)
        transformers = import_transformers()
        self._settings = marian_settings(model)
        self.learner = transformers.MarianMTModel(transformers.MarianConfig(**self._settings))
        self.module = AutoregressiveLoss(self.learner)
        self._vocabulary, self._languages = model.vocabulary, model.config.languages
        self._batch_tokens, self.seed, self._given_weights = batch_tokens, seed, dict(weights or {})
        self._pairs = TranslationPairs(Stores(stores), model, (), self._given_weights, {})
        longest, count = int(self._pairs.sizes.max()), len(self._pairs)
        if longest > batch_tokens:
            raise InputError(f"a pair has {longest} tokens, more than a batch of {batch_tokens} can hold")
        mixed = random_for(seed, "held out", 0).permutation(count)
        self._held_out, self._rows = np.split(mixed, [min(VALIDATION_PAIRS, count // 10)])

    def epoch_batches(self, epoch: int) -> list[np.ndarray]:
        weights = None if self._pairs.weights is None else self._pairs.weights[self._rows]
        random = random_for(self.seed, "epoch", epoch)
        rows = shuffled(self._rows, weights, random)
        groups = bucket(self._pairs.sizes[rows], self._batch_tokens)
        return [rows[groups[i]] for i in random.permutation(len(groups))]

    def build(self, rows: np.ndarray, random: np.random.Generator) -> Batch:
        """Padded pairs, each in one of its directions."""
        (packed, targets), pad = self._pairs.pack(rows, random), self._vocabulary.pad
        numbers = np.arange(0, 2 * len(rows), 2)
        labels = padded(packed.take(numbers + 1), IGNORED)
        inputs = np.where(labels == IGNORED, pad, labels)[:, :-1]
        inputs[:, 0] = pad
        source = source_arrays(packed.take(numbers), len(self._vocabulary) + targets, pad)
        return source | {"labels": labels[:, 1:], "decoder_input_ids": inputs}

    def minibatches(self, batch: Batch, device: torch.device) -> list[dict[str, Any]]:
        return [{"batch": {name: to_device(array, device) for name, array in batch.items()}}]

    def cost(self, batch: Batch) -> tuple[int, float]:
        tokens = int(batch["attention_mask"].sum() + (batch["labels"] != IGNORED).sum())
        weights = sum(parameter.numel() for parameter in self.learner.parameters())
        return tokens, 6.0 * weights * tokens / 2  # a token passes through the encoder or the decoder

    @torch.no_grad()
    def validate(self, average: nn.Module, quick: bool = False) -> dict[str, float]:
        """The mean loss per batch, without label smoothing."""
        loss, device, losses = AutoregressiveLoss(average), next(average.parameters()).device, []
        for group in bucket(self._pairs.sizes[self._held_out], self._batch_tokens):
            batch = self.build(self._held_out[group], random_for(self.seed, "validate", 0))
            losses.append(float(loss(**self.minibatches(batch, device)[0], smoothing=0.0)[0]))
        return {"validation loss": float(np.mean(losses))} if losses else {}

    def selection_metric(self, scores: dict[str, float]) -> float:
        return -scores["validation loss"]

    def save(self, average: Any, out: Path) -> None:
        with atomic_folder(out / self.folder) as partial, quiet():
            average.save_pretrained(partial)
            record = {"vocabulary": self._vocabulary.fingerprint, "languages": list(self._languages)}
            write_json(partial / RECORD, record)

    def fingerprint(self) -> dict[str, object]:
        return {
            "objective": "autoregressive",
            "vocabulary": self._vocabulary.fingerprint,
            "pairs": len(self._pairs),
            "batch_tokens": self._batch_tokens,
            "weights": self._given_weights,
            "settings": self._settings,
        }


def source_arrays(sources: PackedBatch, tags: np.ndarray, pad: int) -> Batch:
    """What the encoder reads: the tag of the target language, the words, `</s>`, padding. tags: (B,)"""
    tokens = padded(sources, pad)
    tokens[:, 0] = tags
    return {"input_ids": tokens, "attention_mask": (tokens != pad).astype(np.int64)}


def padded(batch: PackedBatch, fill: int) -> np.ndarray:
    """(B, longest) the segments as rows."""
    rows = np.full((len(batch.sizes), int(batch.sizes.max())), fill, np.int64)
    rows[np.repeat(np.arange(len(rows)), batch.sizes), batch.positions] = batch.tokens
    return rows


def bucket(sizes: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Groups of similar size, as indices: each as large as fits when its items are padded to the largest.

    >>> [group.tolist() for group in bucket(np.array([4, 1, 2, 9]), 6)]
    [[1, 2], [0], [3]]
    """
    order, groups = np.argsort(sizes, kind="stable"), []
    while len(order):
        candidates = order[:batch_tokens]  # more items never fit
        needed = sizes[candidates] * np.arange(1, len(candidates) + 1)
        count = max(1, int(np.searchsorted(needed, batch_tokens, side="right")))
        groups.append(order[:count])
        order = order[count:]
    return groups


def training_job(
    folder: Path, model: TranslationModel, stores: Sequence[Store], minutes: float, weights: Mapping[str, float]
) -> RunJob:
    """Train a baseline as large as a model on the same text."""
    device = model.device
    TranslationPairs(Stores(stores), model, (), weights, {})  # an `InputError` now rather than when it is trained

    def train() -> bool:
        tokens = choose_by_device(None, device, cuda=32_768, cpu=2_048)
        objective = AutoregressiveObjective(stores, model, tokens, seed=1, weights=weights)
        where: Any = {"device": device.type, "compile": "no"}
        run = TrainConfig(minutes=minutes, learning_rate=5e-4, validate_every=2000, save_every=5000, **where)
        return run_training(objective, run, folder, resume=True).finished

    title, result = f"train an autoregressive baseline, {minutes:g} minutes", folder / AutoregressiveObjective.folder
    return RunJob("train", title, folder, result / WEIGHTS, {"weights": dict(weights)}, device, train)


class Autoregressive:
    """The trained baseline in a folder, which must have been trained with this vocabulary.

    where: What messages call the model or store that has the vocabulary.
    """

    def __init__(self, folder: Path, vocabulary: Vocabulary, where: str, device: torch.device):
        record = read_record(folder / RECORD)
        verify(folder, RECORD, CONFIG, WEIGHTS)
        config = read_record(folder / CONFIG)
        for part in ("encoder", "decoder"):  # Transformers would build any number of layers before it looks for weights
            config.integer(f"{part}_layers", at_most=MAX_LAYERS)
        for name in config:
            if name.endswith("dropout"):  # not used here, but PyTorch refuses others when it decodes
                config.number(name, at_least=0, at_most=1)
        marian = import_transformers().MarianMTModel
        try:
            with quiet():
                network, found = marian.from_pretrained(folder, local_files_only=True, output_loading_info=True)
        except Exception as error:  # Transformers raises all kinds of errors for a damaged file
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"{folder}: cannot be read ({reason})") from None
        if found["missing_keys"]:
            raise InputError(f"{folder / WEIGHTS}: has no {min(found['missing_keys'])}")
        languages = record.texts("languages")
        size = len(vocabulary) + len(languages)
        if record.text("vocabulary") != vocabulary.fingerprint or network.config.vocab_size != size:
            raise InputError(f"{folder}: was trained with another vocabulary than that of {where}")
        self._vocabulary = vocabulary
        self._network = network.to(device=device, dtype=inference_dtype(device)).eval()
        self.tags = {language: len(vocabulary) + number for number, language in enumerate(languages)}
        """The token for each target language."""
        self.room: int = network.config.max_position_embeddings - EXTRA_POSITIONS - 2
        """Maximum number of subwords of a sentence: that of the undirected model."""

    @torch.inference_mode()
    def translate(
        self, sources: Sequence[np.ndarray], target: str, beam: int, on_progress: Callable[[int], None]
    ) -> list[np.ndarray]:
        """The ids of sentences' translations; those that came to an end have `</s>` as their last one.

        Sources have no delimiters. A translation has at most ten more than twice the subwords of the longest source.
        """
        network, vocabulary = self._network, self._vocabulary
        special = [i for i in range(vocabulary.first_word) if i != vocabulary.eos]
        found: list[np.ndarray] = [np.zeros(0, np.int64)] * len(sources)
        sizes = np.fromiter(map(len, sources), np.int64, len(sources)) + 2
        source_tokens = choose_by_device(None, network.device, cuda=131_072, cpu=16_384)
        for group in bucket(sizes, source_tokens // beam):
            tags = np.full(len(group), self.tags[target])
            packed = pack_sentences([sources[i] for i in group], tags, vocabulary.eos)
            arrays = source_arrays(packed, tags, vocabulary.pad)
            settings = import_transformers().GenerationConfig(
                num_beams=beam,
                do_sample=False,
                max_new_tokens=min(self.room, 2 * (int(sizes[group].max()) - 2) + 10),
                suppress_tokens=[*special, *self.tags.values()],
                decoder_start_token_id=vocabulary.pad,
                pad_token_id=vocabulary.pad,
                eos_token_id=vocabulary.eos,
            )
            inputs = {name: to_device(array, network.device) for name, array in arrays.items()}
            lines = network.generate(**inputs, generation_config=settings)[:, 1:].cpu().numpy()
            for i, line, length in zip(group, lines, (lines != vocabulary.pad).sum(1), strict=True):
                found[i] = line[:length]
            on_progress(len(group))
        return found


def decoding_job(
    place: Path, data: SplitSet, method: str, max_length: int | None, folder: Path, needs: RunJob | None
) -> DecodeJob:
    """Decode with the baseline in a folder, which may not exist yet."""
    decode = partial(decode_with_baseline, folder, data, METHODS[method])
    return DecodeJob(place, data, "own", method, max_length, needs, partial(_checksum, folder), decode)


@cache
def _checksum(folder: Path) -> dict[str, Any]:
    return {"weights": sha256(folder / WEIGHTS)[:12]}


def decode_with_baseline(
    folder: Path, data: SplitSet, beam: int, rows: Sequence[int], on_progress: Callable[[int], None]
) -> list[Trajectory]:
    """Decode some sentences of a test set. A source that is too long is truncated."""
    model, direction, order = data.test_set.decoder.model, data.direction, "left-to-right"
    sentences = [data.sentences[row] for row in rows]
    sources = [np.array(sentence.ids[: model.max_length], np.int64) for sentence in sentences]
    baseline = Autoregressive(folder, model.vocabulary, model.name, model.device)
    found = baseline.translate(sources, model.languages(direction)[1], beam, on_progress)
    settings = {"order": order, "schedule": "one", "revision": "none", "beam": beam, "length": "own", "seed": 1}
    signature = str(Signature(settings, version=f"anyorder.{__version__}"))
    trajectories = []
    for sentence, line in zip(sentences, found, strict=True):
        ids = line[line != model.vocabulary.eos].tolist()
        text, tokens, steps = model.to_text(ids, direction), model.to_tokens(ids), list(range(1, len(ids) + 1))
        if tokens:  # a truncated hypothesis may end inside a word
            tokens[-1] = tokens[-1].removesuffix(CONTINUES) or CONTINUES
        of_run = order, len(ids), signature, "autoregressive", direction
        trajectories.append(Trajectory(sentence.text, text, tokens, steps, [], *of_run))
    return trajectories
