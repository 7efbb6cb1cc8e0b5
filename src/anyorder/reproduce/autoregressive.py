"""An autoregressive baseline: an encoder-decoder from Transformers, as large as an undirected model, on the same text.

It shares the model's vocabulary; the source begins with a token for the target language. It is trained by the same
loop as every other model, so it can be stopped and resumed. Batches hold sentences of similar length.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.data.packing import Side, ranges
from anyorder.data.store import Store
from anyorder.data.stores import ParallelText, Stores
from anyorder.data.vocabulary import Vocabulary
from anyorder.device import inference_dtype
from anyorder.errors import InputError
from anyorder.files import atomic_folder, verify, write_json
from anyorder.files.records import Record, read_record
from anyorder.models.attention import to_device
from anyorder.models.pretrained import import_transformers, quiet
from anyorder.models.storage import WEIGHTS
from anyorder.models.translation import TranslationModel
from anyorder.training.batches import IGNORED, Cursor, random_for, shuffled, weights_by_corpus
from anyorder.training.config import choose_by_device
from anyorder.training.objective import Objective
from anyorder.training.validation import SPLITS

RECORD = "baseline.json"
LABEL_SMOOTHING = 0.1
VALIDATION_PAIRS = 500
"""Validation pairs per store."""


class EncoderDecoder(nn.Module):
    """Transformers' Marian model, with the vocabulary of an undirected model and a token for each language.

    Args:
        settings: Arguments of Transformers' configuration.
    """

    def __init__(self, settings: dict[str, Any]):
        super().__init__()
        transformers = import_transformers()
        self.settings = settings
        self.network = transformers.MarianMTModel(transformers.MarianConfig(**settings))

    def forward(self, **inputs: Tensor) -> Tensor:
        """(B, T, vocab_size) logits."""
        return self.network(**inputs, use_cache=False).logits

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        """Every weight once: the embeddings and the output layer are tied."""
        return {name: value.detach() for name, value in self.named_parameters()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> None:
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(state_dict[name])


def marian_settings(model: TranslationModel) -> dict[str, Any]:
    """Settings for an encoder-decoder with about as many weights as a model.

    Half of the layers encode; a decoder layer has a third more weights, so the decoder gets fewer layers.
    """
    size, vocabulary = model.config.transformer, model.vocabulary
    encoder = max(1, size.num_layers // 2)
    decoder = max(1, round((size.num_layers - encoder) * 12 / 16))
    sizes = {
        f"{part}_{name}": value
        for part, layers in (("encoder", encoder), ("decoder", decoder))
        for name, value in (
            ("layers", layers), ("attention_heads", size.num_heads), ("ffn_dim", 4 * size.hidden_size)
        )
    }  # fmt: skip
    return {
        **sizes,
        "vocab_size": len(vocabulary) + len(model.config.languages),
        "d_model": size.hidden_size,
        "max_position_embeddings": size.max_positions + 2,
        "dropout": size.dropout,
        "activation_function": "gelu",
        "scale_embedding": True,
        "pad_token_id": vocabulary.pad,
        "eos_token_id": vocabulary.eos,
        "decoder_start_token_id": vocabulary.pad,
        "forced_eos_token_id": None,
    }


@dataclass(frozen=True)
class PairBatch:
    """Padded pairs, on the host."""

    arrays: dict[str, np.ndarray]
    tokens: int
    """Number of real tokens, without padding."""


class AutoregressiveLoss(nn.Module):
    """Label-smoothed cross-entropy of the next token."""

    def __init__(self, learner: EncoderDecoder):
        super().__init__()
        self.learner = learner

    def forward(self, batch: dict[str, Tensor], smoothing: float = LABEL_SMOOTHING) -> tuple[Tensor, Tensor]:
        labels = batch["labels"]
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        logits = self.learner(**inputs).float()
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, label_smoothing=smoothing)
        return loss, loss.detach()[None]


class AutoregressiveObjective(Objective[PairBatch]):
    """Translation from left to right, on the `train` splits of stores, in all of their directions.

    Args:
        stores: The text.
        model: The undirected model that determines the baseline's vocabulary, languages and size.
        batch_tokens: Tokens per batch on the longer side, including padding.
        seed: Seed for the weights and the batches.
        weights: How often each pair of a corpus is used per epoch, by name; by default 1.
    """

    reports = ("loss",)
    shown = ("loss",)
    unit = "tokens"
    folder = "model"
    compiles = False
    learner: EncoderDecoder

    def __init__(
        self,
        stores: Sequence[Store],
        model: TranslationModel,
        batch_tokens: int,
        seed: int,
        weights: Mapping[str, float] | None = None,
    ):
        torch.manual_seed(seed)
        self.learner = EncoderDecoder(marian_settings(model))
        self.module = AutoregressiveLoss(self.learner)
        self._languages = model.config.languages
        self._vocabulary = model.vocabulary
        self._batch_tokens = batch_tokens
        self._seed = seed
        _training_text(stores).check_directions()
        self._training = _Pairs(stores, ["train"] * len(stores), self._languages)
        self._given_weights = dict(weights or {})
        self._weights = pair_weights(stores, self._given_weights)
        self._room = model.max_length
        longest = int(self._training.longer.max()) + 2
        if longest > model.config.transformer.max_positions:
            raise InputError(f"a training pair has {longest - 2} subwords, the model has room for {self._room}")
        if longest > batch_tokens:
            raise InputError(f"a pair has {longest} tokens, more than a batch of {batch_tokens} can hold")
        self._validation = self._validation_batches(stores)

    def _validation_batches(self, stores: Sequence[Store]) -> list[PairBatch]:
        held = [(store, split) for store in stores if (split := next((s for s in SPLITS if s in store), None))]
        if not held:
            return []
        pairs = _Pairs([store for store, _ in held], [split for _, split in held], self._languages)
        fits = np.flatnonzero(pairs.longer <= self._room)
        chosen = np.concatenate([fits[pairs.store[fits] == i][:VALIDATION_PAIRS] for i in range(len(held))])
        if not len(chosen):
            return []
        flipped = np.arange(len(chosen)) % 2 == 1
        groups = bucket(pairs.longer[chosen] + 2, self._batch_tokens)
        return [self._build(pairs, chosen[group], flipped[group]) for group in groups]

    def batches(self, cursor: Cursor, first: int, rank: int, world: int) -> Iterator[tuple[PairBatch, Cursor]]:
        while True:
            random = random_for(self._seed, "epoch", cursor.epoch)
            pairs = shuffled(np.arange(len(self._training.longer)), self._weights, random)
            flipped = random.random(len(pairs)) < 0.5
            groups = bucket(self._training.longer[pairs] + 2, self._batch_tokens)
            groups = [groups[i] for i in random.permutation(len(groups))]
            for group in groups[cursor.offset :]:
                number = cursor.batch
                cursor = replace(cursor, batch=number + 1, offset=cursor.offset + 1)
                if number >= first and number % world == rank:
                    yield self._build(self._training, pairs[group], flipped[group]), cursor
            cursor = replace(cursor, epoch=cursor.epoch + 1, offset=0)

    def _build(self, pairs: "_Pairs", rows: np.ndarray, flipped: np.ndarray) -> PairBatch:
        source, target = pairs.take(rows, flipped)
        tags = len(self._vocabulary) + pairs.languages[rows, np.where(flipped, 0, 1)]
        arrays = source_arrays(source, tags, self._vocabulary.pad, self._vocabulary.eos)
        width = int(target.lengths.max()) + 1
        labels = np.full((len(rows), width), IGNORED, np.int64)
        _fill(labels, target, 0, self._vocabulary.eos)
        shifted = np.where(labels == IGNORED, self._vocabulary.pad, labels)
        start = np.full((len(rows), 1), self._vocabulary.pad)
        arrays |= {"labels": labels, "decoder_input_ids": np.concatenate([start, shifted[:, :-1]], axis=1)}
        return PairBatch(arrays, int(source.lengths.sum() + target.lengths.sum()) + 3 * len(rows))

    def minibatches(self, batch: PairBatch, device: torch.device) -> list[dict[str, Any]]:
        return [{"batch": {name: to_device(array, device) for name, array in batch.arrays.items()}}]

    def cost(self, batch: PairBatch) -> tuple[int, float]:
        weights = sum(parameter.numel() for parameter in self.learner.parameters())
        return batch.tokens, 6.0 * weights * batch.tokens / 2  # a token passes through the encoder or the decoder

    @torch.no_grad()
    def validate(self, average: nn.Module, quick: bool = False) -> dict[str, float]:
        """The mean loss per batch, without label smoothing."""
        if not self._validation:
            return {}
        assert isinstance(average, EncoderDecoder)
        loss = AutoregressiveLoss(average)
        device = next(average.parameters()).device
        losses = [float(loss(**self.minibatches(batch, device)[0], smoothing=0.0)[0]) for batch in self._validation]
        return {"validation loss": float(np.mean(losses))}

    def selection_metric(self, scores: dict[str, float]) -> float:
        return -scores["validation loss"]

    def save(self, average: nn.Module, out: Path) -> None:
        assert isinstance(average, EncoderDecoder)
        with atomic_folder(out / self.folder) as partial, quiet():
            average.network.save_pretrained(partial)
            write_json(
                partial / RECORD,
                {"vocabulary": self._vocabulary.fingerprint, "languages": list(self._languages)},
            )

    def fingerprint(self) -> dict[str, object]:
        return {
            "objective": "autoregressive",
            "vocabulary": self._vocabulary.fingerprint,
            "pairs": len(self._training.longer),
            "batch_tokens": self._batch_tokens,
            "weights": self._given_weights,
            "settings": self.learner.settings,
        }


def pair_weights(stores: Sequence[Store], weights: Mapping[str, float]) -> np.ndarray | None:
    """(pairs,) how often each training pair is used per epoch, from weights by corpus; None if each is used once."""
    if not weights:
        return None
    text = _training_text(stores)
    return weights_by_corpus(text.corpora, text.corpus, text.by_corpus(weights))


def _training_text(stores: Sequence[Store]) -> ParallelText:
    return ParallelText(Stores(stores), tuple(store.split("train") for store in stores))


class _Pairs:
    """The pairs of one split of every store, numbered consecutively."""

    def __init__(self, stores: Sequence[Store], splits: Sequence[str], languages: Sequence[str]):
        self._sides: list[list[Side]] = []
        store_of, row_of, longer, numbers = [], [], [], []
        for number, (store, name) in enumerate(zip(stores, splits, strict=True)):
            split = store.split(name)
            if not split.parallel or len(store.languages) != 2:
                raise InputError(f"{store.path}: the baseline needs parallel text of two languages")
            missing = [language for language in store.languages if language not in languages]
            if missing:
                raise InputError(f"{store.path}: the model does not know the language {missing[0]}")
            sides = [split.sides[language] for language in store.languages]
            self._sides.append(sides)
            store_of.append(np.full(len(split), number))
            row_of.append(np.arange(len(split)))
            longer.append(np.maximum(sides[0].lengths, sides[1].lengths))
            codes = [languages.index(language) for language in store.languages]
            numbers.append(np.tile(np.array(codes), (len(split), 1)))
        self.store, self._row, self.longer = map(np.concatenate, (store_of, row_of, longer))
        self.languages = np.concatenate(numbers)
        """(pairs, 2) the language indices of both sides."""

    def take(self, pairs: np.ndarray, flipped: np.ndarray) -> tuple["Sentences", "Sentences"]:
        """Sources and targets; a flipped pair is translated from its second side into its first."""
        sides = []
        for side in (0, 1):
            parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
            which = np.where(flipped, 1 - side, side)
            for number, of_store in enumerate(self._sides):
                for k, one in enumerate(of_store):
                    places = np.flatnonzero((self.store[pairs] == number) & (which == k))
                    rows = self._row[pairs[places]]
                    lengths = one.lengths[rows]
                    parts.append((places, lengths, one.ids[ranges(one.starts[rows], lengths)]))
            sides.append(Sentences.join(parts))
        return sides[0], sides[1]


@dataclass(frozen=True)
class Sentences:
    """Concatenated sentences."""

    lengths: np.ndarray
    """(B,)"""
    ids: np.ndarray
    """(tokens,) int64"""
    place: np.ndarray
    """(B,) the row of each in the batch."""

    @classmethod
    def join(cls, parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> "Sentences":
        places, lengths, ids = (np.concatenate(column) for column in zip(*parts, strict=True))
        return cls(lengths.astype(np.int64), ids.astype(np.int64), places)

    @classmethod
    def of(cls, sentences: Sequence[np.ndarray]) -> "Sentences":
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        return cls(lengths, np.concatenate(sentences).astype(np.int64), np.arange(len(sentences)))


def source_arrays(sources: Sentences, tags: np.ndarray, pad: int, eos: int) -> dict[str, np.ndarray]:
    """What the encoder reads: the tag of the target language, the words, `</s>`, padding. tags: (B,)"""
    tokens = np.full((len(tags), int(sources.lengths.max()) + 2), pad, np.int64)
    tokens[:, 0] = tags
    _fill(tokens, sources, 1, eos)
    return {"input_ids": tokens, "attention_mask": (tokens != pad).astype(np.int64)}


def _fill(padded: np.ndarray, sentences: Sentences, offset: int, eos: int) -> None:
    """Write sentences and their end tokens into the rows of an array."""
    width = padded.shape[1]
    starts = sentences.place * width + offset
    flat = padded.reshape(-1)
    flat[ranges(starts, sentences.lengths)] = sentences.ids
    flat[starts + sentences.lengths] = eos


def bucket(sizes: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Groups of similar size, as indices: each as large as fits when its items are padded to the largest.

    >>> [group.tolist() for group in bucket(np.array([4, 1, 2, 9]), 6)]
    [[1, 2], [0], [3]]
    """
    order = np.argsort(sizes, kind="stable")
    ordered = sizes[order]
    groups, start = [], 0
    while start < len(order):
        first = start

        def padded(i: int, first: int = first) -> int:
            return int((i - first + 1) * ordered[i])

        start = max(first + 1, first + bisect_right(range(first, len(order)), batch_tokens, key=padded))
        groups.append(order[first:start])
    return groups


def load_baseline(folder: Path, device: torch.device) -> tuple[Any, Record]:
    """The network of a saved baseline, ready for generation, and its record."""
    record = read_record(folder / RECORD)
    verify(folder, RECORD, "config.json", WEIGHTS)
    try:
        with quiet():
            network, found = import_transformers().MarianMTModel.from_pretrained(
                folder, local_files_only=True, output_loading_info=True
            )
    except Exception as error:  # Transformers raises all kinds of errors for a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{folder}: cannot be read ({reason})") from None
    if found["missing_keys"]:
        raise InputError(f"{folder / WEIGHTS}: has no {min(found['missing_keys'])}")
    return network.to(device=device, dtype=inference_dtype(device)).eval(), record


def check_baseline(folder: Path, network: Any, record: Record, vocabulary: Vocabulary, other: str) -> None:
    """Raise an `InputError` unless a baseline has this vocabulary. other: What else has it, for the message."""
    size = len(vocabulary) + len(record.texts("languages"))
    if record.text("vocabulary") != vocabulary.fingerprint or network.config.vocab_size != size:
        raise InputError(f"{folder}: was trained with another vocabulary than that of {other}")


@torch.inference_mode()
def generate(
    network: Any,
    vocabulary: Vocabulary,
    sources: Sequence[np.ndarray],
    tag: int,
    *,
    beam: int,
    room: int,
    on_progress: Callable[[int], None] = lambda sentences: None,
) -> list[np.ndarray]:
    """Translate sentences from left to right.

    Args:
        network: Transformers' model.
        vocabulary: Its vocabulary.
        sources: The ids of each sentence, without delimiters.
        tag: The token for the target language.
        beam: Beam size; 1 is greedy.
        room: Maximum number of subwords to generate. At most ten more than twice those of the longest source in the
            batch are generated.
        on_progress: Called with the number of finished sentences.

    Returns:
        The ids of each translation. Those that came to an end have `</s>` as their last one.
    """
    transformers = import_transformers()
    special = [i for i in range(vocabulary.first_word) if i != vocabulary.eos]
    forbidden = [*special, *range(len(vocabulary), network.config.vocab_size)]  # the tags of the languages
    found: list[np.ndarray] = [np.zeros(0, np.int64)] * len(sources)
    sizes = np.fromiter(map(len, sources), np.int64, len(sources)) + 2
    source_tokens = choose_by_device(None, network.device, cuda=131_072, cpu=16_384)
    for group in bucket(sizes, source_tokens // beam):
        batch = Sentences.of([sources[i] for i in group])
        arrays = source_arrays(batch, np.full(len(group), tag), vocabulary.pad, vocabulary.eos)
        inputs = {name: torch.from_numpy(array).to(network.device) for name, array in arrays.items()}
        settings = transformers.GenerationConfig(
            num_beams=beam,
            do_sample=False,
            max_new_tokens=min(room, 2 * int(batch.lengths.max()) + 10),
            suppress_tokens=forbidden,
            decoder_start_token_id=vocabulary.pad,
            pad_token_id=vocabulary.pad,
            eos_token_id=vocabulary.eos,
        )
        generated = network.generate(**inputs, generation_config=settings)
        lines = generated[:, 1:].cpu().numpy()
        for i, line, length in zip(group, lines, (lines != vocabulary.pad).sum(1), strict=True):
            found[i] = line[:length]
        on_progress(len(group))
    return found
