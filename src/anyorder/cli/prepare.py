"""`anyorder prepare`: turn parallel text into a store."""

import re
from pathlib import Path

from anyorder.cli.common import connected
from anyorder.data.corpus import parse_corpora
from anyorder.data.prepare import FilterConfig
from anyorder.data.prepare import prepare as prepare_store
from anyorder.data.text import TextConfig, check_language
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError
from anyorder.progress import Screen


def prepare(
    languages: str,
    out: Path,
    train: str = "",
    dev: str = "",
    test: str = "",
    mono: str = "",
    splits: dict[str, str] = {},  # noqa: B006 - never modified
    hold_out: str = "",
    vocabulary: int = 16_000,
    vocabulary_alpha: float = 1.0,
    tokenizer: str | None = None,
    text: TextConfig = TextConfig(),  # noqa: B008 - frozen
    filters: FilterConfig = FilterConfig(),  # noqa: B008
    workers: int | None = None,
    cluster: str | None = None,
) -> None:
    """Turn parallel text into a prepared store.

    A corpus is written [NAME=]PATTERN[@LABELS]: % in the pattern stands for the language code, and LABELS is a file
    that names the corpus of each line. Separate several corpora with commas. Files may be plain, .gz or .xz.

    Args:
        languages: Language codes, such as de,en.
        out: The folder to write; it must not exist.
        train: Training corpora, such as news=data/news.%.xz,data/train.%.gz@data/train.corpus.gz.
        dev: Development set, for validation during training.
        test: Test set.
        mono: Monolingual corpora for pretraining. Languages need not be aligned, and each may have several files or
            none.
        splits: Other splits by name, such as {test2014: data/newstest2014.%}.
        hold_out: New splits, held out from the end of training corpora, such as selection=news:1000 (the split on which
            'train' and 'learn-order' select checkpoints). Separate several with commas; they may share a split.
        vocabulary: Size of the joint vocabulary to learn.
        vocabulary_alpha: Below 1, rarer languages get more weight when the vocabulary is learned: a language with a
            share p of the words is weighted in proportion to p ** vocabulary_alpha (XLM: 0.5).
        tokenizer: Reuse the vocabulary of a tokenizer.json, a store or a model (a bundled name, a folder, a hub id)
            instead of learning one.
        text: Text normalization.
        filters: Which training pairs to keep.
        workers: Number of processes; by default one per core.
        cluster: Work on a Ray cluster: auto (the one this machine belongs to, or else all of its cores), or HOST:PORT.
            The store is the same; see docs/cluster.md.
    """
    codes = tuple(check_language(code.strip()) for code in languages.split(","))
    if len(set(codes)) != len(codes):
        raise InputError(f"'{languages}' names a language twice")
    specs = {"train": train, "dev": dev, "test": test}
    for name in splits:
        if specs.get(name):
            raise InputError(f"split '{name}' is named twice")
    specs |= splits
    with connected(cluster) as machines:
        report = prepare_store(
            codes,
            {name: parse_corpora(spec, codes) for name, spec in specs.items() if spec},
            out,
            mono=parse_corpora(mono, codes),
            vocabulary=_vocabulary(tokenizer) if tokenizer else vocabulary,
            vocabulary_alpha=vocabulary_alpha,
            text=text,
            filters=filters,
            hold_out=_amounts(hold_out),
            workers=workers,
            cluster=machines,
        )
    from anyorder.report.terminal import filter_table

    screen = Screen()
    screen.print(filter_table(report))
    screen.print_text(f"wrote {out}")


def _vocabulary(name: str) -> Vocabulary:
    path = Path(name)
    if path.exists() or path.suffix == ".json":
        return Vocabulary.load(path)
    from anyorder.models.native.storage import find

    return Vocabulary.load(find(name))


def _amounts(spec: str) -> dict[str, dict[str, int]]:
    """How many pairs each split takes from each corpus: `selection=news:1000,order=news:5000,order=europarl:1000`."""
    amounts: dict[str, dict[str, int]] = {}
    for part in filter(None, (part.strip() for part in spec.split(","))):
        match = re.fullmatch(r"([^=]+)=(.+):([0-9]{1,9})", part)
        if not match:
            raise InputError(f"'{part}': expected SPLIT=CORPUS:NUMBER", "hold_out")
        split, corpus, count = (group.strip() for group in match.groups())
        if corpus in amounts.setdefault(split, {}):
            raise InputError(f"'{part}': split '{split}' takes pairs of '{corpus}' twice", "hold_out")
        amounts[split][corpus] = int(count)
    return amounts
