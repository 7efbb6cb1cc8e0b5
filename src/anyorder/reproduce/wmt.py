"""The paper's own data and models: WMT through `datasets`, XLM from the hub, masked translation with its settings.

    paper/PAIR/text     train, dev and test, one sentence per line
    paper/PAIR/store    prepared with XLM's vocabulary
    paper/PAIR/init     XLM with the two languages of the pair, if it has more
    paper/PAIR/run      the masked translation model

Each step is saved and never repeated. Nothing is downloaded unless a step needs it.
"""

from collections.abc import Iterable, Mapping
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
from anyorder.errors import InputError
from anyorder.files import atomic_folder
from anyorder.models.native.storage import build
from anyorder.models.native.translation_model import TranslationModel
from anyorder.reproduce.jobs import RunJob
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


def wmt_job(name: str, folder: Path, dataset: str, xlm: str, steps: int | None, device: torch.device) -> RunJob:
    """Prepare the data of one language pair, as the hub spells it, such as `de-en`, and train the model on it."""
    place: Any = device.type
    run = replace(MASKED_TRANSLATION, steps=steps or MASKED_TRANSLATION.steps, device=place)
    out, text, store = folder / "run", folder / "text", folder / "store"

    def train() -> bool:
        torch.manual_seed(run.seed)  # XLM has no length predictor: its weights are new
        model, init = TranslationModel.from_pretrained(xlm), xlm
        languages = tuple(language for language in model.config.languages if language in name.split("-"))
        if len(languages) < 2:
            raise InputError(f"{xlm}: does not know both languages of {name}")
        if not text.exists():
            _write_text(text, dataset, name, languages)
        if not (store / MANIFEST).exists():
            _prepare(store, text, dataset.rpartition("/")[2], model, languages)
        if model.config.languages != languages:
            init = str(folder / "init")
            if not Path(init).exists():
                keep_languages(model, languages).save_pretrained(init)
        masking = MaskingConfig(label_smoothing=0.0)
        return train_model(store, out, masking=masking, run=run, init=init, resume=True).finished

    title = f"prepare {dataset} and train {name} from {xlm}, {run.steps:,} steps"
    return RunJob("train", title, out, out / "model", {}, device, train)


def _write_text(text: Path, dataset: str, name: str, languages: tuple[str, ...]) -> None:
    splits = load_splits(dataset, name)
    with atomic_folder(text) as partial:
        for ours, theirs in SPLITS.items():
            if theirs not in splits and ours == "test":
                continue
            if theirs not in splits:
                raise InputError(f"{dataset}: has no split '{theirs}'")
            with progress.bar(f"{dataset} {theirs}", unit="pairs") as bar, ExitStack() as files:
                paths = [partial / f"{ours}.{language}" for language in languages]
                streams = [files.enter_context(path.open("w", encoding="utf-8")) for path in paths]
                for row in splits[theirs]:
                    texts = row.get("translation")
                    known = texts if isinstance(texts, Mapping) else {}
                    lines: list[Any] = [known.get(language) for language in languages]
                    if not all(isinstance(line, str) for line in lines):
                        wanted = " and ".join(languages)
                        raise InputError(f"{dataset}: expected rows with a translation into {wanted}")
                    for stream, line in zip(streams, lines, strict=True):
                        stream.write(" ".join(line.split()) + "\n")
                    bar.advance()


def _prepare(store: Path, text: Path, corpus: str, xlm: TranslationModel, languages: tuple[str, ...]) -> None:
    splits = {
        split: [Corpus(corpus, tuple(text / f"{split}.{language}" for language in languages))]
        for split in SPLITS
        if (text / f"{split}.{languages[0]}").exists()
    }
    lines = sum(1 for _ in read_lines(text / f"train.{languages[0]}"))
    hold_out = {"selection": {corpus: SELECTION}} if lines > 10 * SELECTION else {}
    filters = FilterConfig(max_length=min(MAX_LENGTH, xlm.max_length))
    rules, vocabulary = xlm.config.text, xlm.vocabulary
    prepare(languages, splits, store, vocabulary=vocabulary, text=rules, filters=filters, hold_out=hold_out)


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
