"""The paper's own data and models: WMT through `datasets`, XLM from the hub, masked translation with its settings.

    paper/PAIR/text     train, dev and test, one sentence per line
    paper/PAIR/store    prepared with XLM's vocabulary
    paper/PAIR/init     XLM with the two languages of the pair, if it has more
    paper/PAIR/run      the masked translation model

Each step is saved and never repeated. Nothing is downloaded unless a step needs it.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from anyorder import progress
from anyorder.data.corpus import Corpus, read_lines
from anyorder.data.prepare import FilterConfig, prepare
from anyorder.data.store import MANIFEST
from anyorder.device import resolve_device
from anyorder.errors import InputError, unknown
from anyorder.files import atomic_folder
from anyorder.models.native.storage import build
from anyorder.models.native.translation_model import TranslationModel
from anyorder.reproduce.jobs import RunJob
from anyorder.reproduce.plan import Request
from anyorder.reproduce.tables import find_table
from anyorder.training.config import TextTrainConfig
from anyorder.training.train import train_model
from anyorder.training.translation_objective import MaskingConfig

# WMT 2021 has no news data on the hub in the format of the others; 2019 is the last year that has Chinese.
SOURCES = {
    "de-en": ("wmt/wmt14", "FacebookAI/xlm-mlm-ende-1024"),
    "ro-en": ("wmt/wmt16", "FacebookAI/xlm-mlm-enro-1024"),
    "zh-en": ("wmt/wmt19", "FacebookAI/xlm-mlm-17-1280"),
}
"""Data set and model of each language pair, as the hub calls them."""
SPLITS = {"train": "train", "dev": "validation", "test": "test"}
"""Our names, and those in WMT's data sets."""
MAX_LENGTH = 100
"""Maximum number of subwords in a training sentence (the paper's appendix)."""
SELECTION = 1000
"""Training pairs to hold out for selecting checkpoints, if that leaves at least ten times as many."""
# The paper's learning rate, warm-up, betas, dropout and clipping; about its 8 x 32 sentences per step. It does not give
# the number of steps.
MASKED_TRANSLATION = TextTrainConfig(
    steps=200_000, batch_tokens=16_384, learning_rate=1e-4, warmup=4000, weight_decay=0.0, max_grad_norm=5.0,
    validate_every=5000, save_every=2000,
)  # fmt: skip


def with_paper(requests: Sequence[Request]) -> tuple[list[RunJob], list[Request]]:
    """The jobs that prepare data and models at the paper's scale, and the requests with these; at another, no jobs."""
    first = requests[0]
    if first.scale != "paper":
        return [], [*requests]
    for name in (*first.datasets, *first.xlm):
        if name not in SOURCES:
            raise unknown("pair of languages", name, SOURCES)
    known = {direction: name for name in SOURCES for direction in (name, "-".join(reversed(name.split("-"))))}
    directions = [one for request in requests for one in request.directions or find_table(request.table).directions]
    for direction in directions:
        if direction not in known:
            raise unknown("direction", direction, known)
    pairs = [WmtPair(name, first) for name in dict.fromkeys(known[direction] for direction in directions)]
    models, data = [str(pair.model) for pair in pairs], [place for pair in pairs for place in (pair.text, pair.store)]
    full = [replace(one, models=[*one.models, *models], data=[*one.data, *data]) for one in requests]
    return [pair.job() for pair in pairs], full


class WmtPair:
    """Text, store and masked translation model of one language pair, as the hub spells it, such as `de-en`."""

    def __init__(self, name: str, request: Request):
        self.name, self.folder = name, request.out / "paper" / name
        self.text, self.store, self.run = (self.folder / part for part in ("text", "store", "run"))
        self.model = self.run / "model"
        self.dataset = request.datasets.get(name, SOURCES[name][0])
        self.xlm = request.xlm.get(name, SOURCES[name][1])
        self.steps = request.train_steps or MASKED_TRANSLATION.steps
        self.device = resolve_device(request.device)

    def job(self) -> RunJob:
        """Prepare the data, and train the model."""
        title = f"prepare {self.dataset} and train {self.name} from {self.xlm}, {self.steps:,} steps"
        return RunJob("train", title, self.run, self.model, {}, self.device, self._train)

    def _train(self) -> bool:
        xlm, init = TranslationModel.from_pretrained(self.xlm), self.xlm
        languages = tuple(language for language in xlm.config.languages if language in self.name.split("-"))
        if len(languages) < 2:
            raise InputError(f"{self.xlm}: does not know both languages of {self.name}")
        if not self.text.exists():
            self._write_text(languages)
        if not (self.store / MANIFEST).exists():
            self._prepare(xlm, languages)
        if xlm.config.languages != languages:
            init = str(self.folder / "init")
            if not Path(init).exists():
                keep_languages(xlm, languages).save_pretrained(init)
        device: Any = self.device.type
        run = replace(MASKED_TRANSLATION, steps=self.steps, device=device)
        masking = MaskingConfig(label_smoothing=0.0)
        return train_model(self.store, self.run, masking=masking, run=run, init=init, resume=True).finished

    def _write_text(self, languages: Sequence[str]) -> None:
        splits = load_splits(self.dataset, self.name)
        with atomic_folder(self.text) as partial:
            for ours, theirs in SPLITS.items():
                if theirs not in splits and ours == "test":
                    continue
                if theirs not in splits:
                    raise InputError(f"{self.dataset}: has no split '{theirs}'")
                with progress.bar(f"{self.dataset} {theirs}", unit="pairs") as bar, ExitStack() as files:
                    paths = [partial / f"{ours}.{language}" for language in languages]
                    streams = [files.enter_context(path.open("w", encoding="utf-8")) for path in paths]
                    for row in splits[theirs]:
                        for stream, line in zip(streams, self._pair(row, languages), strict=True):
                            stream.write(" ".join(line.split()) + "\n")
                        bar.advance()

    def _pair(self, row: Mapping[str, Any], languages: Sequence[str]) -> list[str]:
        texts = row.get("translation")
        if not isinstance(texts, Mapping) or any(not isinstance(texts.get(language), str) for language in languages):
            raise InputError(f"{self.dataset}: expected rows with a translation into {' and '.join(languages)}")
        return [texts[language] for language in languages]

    def _prepare(self, xlm: TranslationModel, languages: tuple[str, ...]) -> None:
        name = self.dataset.rpartition("/")[2]
        splits = {
            split: [Corpus(name, tuple(self.text / f"{split}.{language}" for language in languages))]
            for split in SPLITS
            if (self.text / f"{split}.{languages[0]}").exists()
        }
        lines = sum(1 for _ in read_lines(self.text / f"train.{languages[0]}"))
        hold_out = {"selection": {name: SELECTION}} if lines > 10 * SELECTION else {}
        filters = FilterConfig(max_length=min(MAX_LENGTH, xlm.max_length))
        prepare(
            languages, splits, self.store, vocabulary=xlm.vocabulary, text=xlm.config.text, filters=filters,
            hold_out=hold_out,
        )  # fmt: skip


def keep_languages(model: TranslationModel, languages: tuple[str, ...]) -> TranslationModel:
    """The same model with the embeddings of only some of its languages."""
    numbers = torch.tensor([model.config.languages.index(language) for language in languages])
    weights = dict(model.state_dict())
    for name in ("transformer.languages.weight", "length.language.weight"):
        if name in weights:
            weights[name] = weights[name][numbers]
    return build(replace(model.config, languages=languages), model.vocabulary, weights, Path("the model"))


def load_splits(dataset: str, config: str) -> Mapping[str, Iterable[Mapping[str, Any]]]:
    """The rows of each split of a data set."""
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise InputError("WMT's data comes through the package datasets: pip install datasets") from None
    try:
        return datasets.load_dataset(dataset, config)
    except Exception as error:  # the package raises its own, the network's and the file system's errors
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"{dataset}: cannot be loaded ({reason})") from None
