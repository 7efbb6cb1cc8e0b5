"""The paper's own data and models: WMT through `datasets`, XLM from the hub, masked translation with its settings.

    paper/PAIR/text     train, dev and test, one sentence per line
    paper/PAIR/store    prepared with XLM's vocabulary
    paper/PAIR/init     XLM with the two languages of the pair, if it has more
    paper/PAIR/run      the masked translation model

Each step is saved and never repeated. Nothing is downloaded unless a step needs it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from anyorder import progress
from anyorder.data.corpus import Corpus, read_lines
from anyorder.data.filters import FilterConfig
from anyorder.data.prepare import prepare
from anyorder.data.store import MANIFEST
from anyorder.errors import InputError, unknown
from anyorder.files import atomic_folder
from anyorder.files.records import read_record
from anyorder.models.storage import build
from anyorder.models.translation import TranslationModel
from anyorder.reproduce.cells import Job, Spent, device_name, read_log_seconds, write_whole_json
from anyorder.training.config import TextTrainConfig
from anyorder.training.train import train_model
from anyorder.training.translation_objective import MaskingConfig


@dataclass(frozen=True)
class WmtPair:
    """Where the text and the pretrained model of a language pair come from."""

    dataset: str
    """A hub id, or a folder that `datasets` can read."""
    config: str
    """Its configuration: the pair as the hub spells it."""
    model: str
    """An XLM model on the hub, or a folder."""


# WMT 2021 has no news data on the hub in the format of the others; 2019 is the last year that has Chinese.
PAIRS = {
    "de-en": WmtPair("wmt/wmt14", "de-en", "FacebookAI/xlm-mlm-ende-1024"),
    "ro-en": WmtPair("wmt/wmt16", "ro-en", "FacebookAI/xlm-mlm-enro-1024"),
    "zh-en": WmtPair("wmt/wmt19", "zh-en", "FacebookAI/xlm-mlm-17-1280"),
}
SPLITS = {"train": "train", "dev": "validation", "test": "test"}
"""Our names, and those in WMT's data sets."""
MAX_LENGTH = 100
"""Maximum number of subwords in a training sentence (the paper's appendix)."""
SELECTION = 1000
"""Training pairs to hold out for selecting checkpoints, if that leaves at least ten times as many."""
MASKED_TRANSLATION = TextTrainConfig(
    steps=200_000, batch_tokens=16_384, learning_rate=1e-4, warmup=4000, weight_decay=0.0, max_grad_norm=5.0,
    validate_every=5000, save_every=2000,
)  # fmt: skip
"""The paper's learning rate, warm-up, betas, dropout and clipping; about its 8 x 32 sentences per step. It does not
give the number of steps."""


def pairs_of(directions: Iterable[str]) -> list[str]:
    """The language pairs of directions, such as `de-en` for `en-de`."""
    found = []
    for direction in directions:
        source, _, target = direction.partition("-")
        pair = next((name for name in PAIRS if {source, target} == set(name.split("-"))), None)
        if pair is None:
            known = [name for pair in PAIRS for name in (pair, "-".join(reversed(pair.split("-"))))]
            raise unknown("direction", direction, known)
        found.append(pair)
    return list(dict.fromkeys(found))


def paper_jobs(
    results: Path,
    pairs: Sequence[str],
    datasets: Mapping[str, str],
    models: Mapping[str, str],
    steps: int | None,
    device: torch.device,
) -> list["WmtJob"]:
    """The jobs that prepare the data and the model of each pair.

    Args:
        results: The folder of all results.
        pairs: Language pairs, such as `de-en`.
        datasets: Data sets to use instead of the hub's, by pair.
        models: Models to use instead of the hub's, by pair.
        steps: Training steps; None for the default.
        device: The device to train on.
    """
    for given in (datasets, models):
        for pair in given:
            if pair not in PAIRS:
                raise unknown("pair of languages", pair, PAIRS)
    run = replace(MASKED_TRANSLATION, steps=steps or MASKED_TRANSLATION.steps)
    return [
        WmtJob(
            results,
            pair,
            replace(
                PAIRS[pair],
                dataset=datasets.get(pair, PAIRS[pair].dataset),
                model=models.get(pair, PAIRS[pair].model),
            ),
            run,
            device,
        )
        for pair in pairs
    ]


@dataclass(frozen=True)
class WmtJob(Job):
    """Text, store and masked translation model of one language pair."""

    results: Path
    pair: str
    source: WmtPair
    run_config: TextTrainConfig
    device: torch.device
    kind = "train"
    needs = ()

    @property
    def folder(self) -> Path:
        return self.results / "paper" / self.pair

    @property
    def text(self) -> Path:
        return self.folder / "text"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def model(self) -> Path:
        return self.folder / "run" / "model"

    @property
    def title(self) -> str:
        return f"prepare {self.source.dataset} and train {self.pair} from {self.source.model}, {self.amount:,} steps"

    @property
    def amount(self) -> int:
        return self.run_config.steps or 0

    @property
    def done(self) -> bool:
        return self._record.exists() and self.model.is_dir()

    def spent(self) -> list[Spent]:
        seconds = read_log_seconds(self.folder / "run")
        if not seconds:
            return []
        device = read_record(self._record).text("device") if self._record.exists() else device_name(self.device)
        return [Spent("train", seconds, device, self.amount)]

    def run(self) -> bool:
        languages = (*self.pair.split("-"),)
        xlm = TranslationModel.from_pretrained(self.source.model)
        for language in languages:
            if language not in xlm.config.languages:
                raise InputError(f"{self.source.model}: does not know the language {language}")
        ordered = tuple(language for language in xlm.config.languages if language in languages)
        if not self.text.exists():
            self._write_text(ordered)
        if not (self.store / MANIFEST).exists():
            self._prepare(xlm, ordered)
        device: Any = self.device.type
        init = self._init(xlm, ordered)
        run = replace(self.run_config, device=device)
        masking = MaskingConfig(label_smoothing=0.0)
        result = train_model(self.store, self.folder / "run", masking=masking, run=run, init=init, resume=True)
        if result.finished:
            write_whole_json(self._record, {"steps": result.steps, "device": device_name(self.device)})
        return result.finished

    @property
    def _record(self) -> Path:
        return self.folder / "run.json"

    def _write_text(self, languages: tuple[str, ...]) -> None:
        with atomic_folder(self.text) as partial:
            for ours, theirs in SPLITS.items():
                pairs = read_wmt(self.source, theirs, languages)
                if pairs is None:
                    if ours != "test":
                        raise InputError(f"{self.source.dataset}: has no split '{theirs}'")
                    continue
                with progress.bar(f"{self.source.dataset} {theirs}", unit="pairs") as bar:
                    streams = [(partial / f"{ours}.{language}").open("w", encoding="utf-8") for language in languages]
                    try:
                        for pair in pairs:
                            for stream, line in zip(streams, pair, strict=True):
                                stream.write(" ".join(line.split()) + "\n")
                            bar.advance()
                    finally:
                        for stream in streams:
                            stream.close()

    def _prepare(self, xlm: TranslationModel, languages: tuple[str, ...]) -> None:
        name = self.source.dataset.rpartition("/")[2]
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

    def _init(self, xlm: TranslationModel, languages: tuple[str, ...]) -> str:
        """The model to start from; XLM itself if it has exactly these languages."""
        if xlm.config.languages == languages:
            return self.source.model
        place = self.folder / "init"
        if not place.exists():
            keep_languages(xlm, languages).save_pretrained(place)
        return str(place)


def keep_languages(model: TranslationModel, languages: tuple[str, ...]) -> TranslationModel:
    """The same model with the embeddings of only some of its languages."""
    numbers = torch.tensor([model.config.languages.index(language) for language in languages])
    weights = dict(model.state_dict())
    for name in ("transformer.languages.weight", "length.language.weight"):
        if name in weights:
            weights[name] = weights[name][numbers]
    config = replace(model.config, languages=languages)
    return build(config, model.vocabulary, weights, Path("the model"))


def read_wmt(source: WmtPair, split: str, languages: Sequence[str]) -> Iterator[tuple[str, ...]] | None:
    """The pairs of a split; None if the data set has no such split."""
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise InputError("WMT's data comes through the package datasets: pip install datasets") from None
    try:
        if split not in datasets.get_dataset_split_names(source.dataset, source.config):
            return None
        rows = datasets.load_dataset(source.dataset, source.config, split=split)
    except Exception as error:  # the package raises its own, the network's and the file system's errors
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{source.dataset}: cannot be loaded ({reason})") from None
    return (_pair(source, row, languages) for row in rows)


def _pair(source: WmtPair, row: Mapping[str, Any], languages: Sequence[str]) -> tuple[str, ...]:
    texts = row.get("translation")
    if not isinstance(texts, Mapping) or any(not isinstance(texts.get(language), str) for language in languages):
        raise InputError(f"{source.dataset}: expected rows with a translation into {' and '.join(languages)}")
    return tuple(texts[language] for language in languages)
