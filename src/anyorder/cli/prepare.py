"""`anyorder prepare`: aligned text to a store."""

from pathlib import Path

from anyorder.data.prepare import FilterConfig, parse_corpora
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
    splits: dict[str, str] = {},  # noqa: B006 - never changed
    hold_out: dict[str, str] = {},  # noqa: B006
    vocabulary: int = 16_000,
    tokenizer: str | None = None,
    text: TextConfig = TextConfig(),  # noqa: B008 - frozen
    filters: FilterConfig = FilterConfig(),  # noqa: B008
    workers: int | None = None,
) -> None:
    """Turn aligned text into a prepared store.

    A corpus is written [NAME=]PATTERN[@LABELS]: % in the pattern stands for the language, LABELS is a file that names
    the corpus of each line, and several corpora are separated by commas. Files may be plain, .gz or .xz.

    Args:
        languages: Codes of the languages, such as de,en.
        out: The folder to write; it must not exist.
        train: Training corpora, such as news=data/news.%.xz,data/train.%.gz@data/train.corpus.gz.
        dev: Development set, for validation while training.
        test: Test set.
        mono: Monolingual corpora for pretraining; the files of different languages need not be aligned.
        splits: Further splits by name.
        hold_out: New splits made of the last pairs of training corpora, such as {order: "news=5000,europarl=1000"}.
        vocabulary: Size of the joint vocabulary to learn.
        tokenizer: A tokenizer.json, a store or a model (a bundled one, a folder, a hub id) whose vocabulary is used
            instead of learning one.
        text: How lines become words.
        filters: Which training pairs are kept.
        workers: Processes; all cores if not given.
    """
    codes = tuple(check_language(code.strip()) for code in languages.split(","))
    if len(set(codes)) != len(codes):
        raise InputError(f"'{languages}' names a language twice")
    named = {"train": train, "dev": dev, "test": test}
    for name in splits:
        if named.get(name):
            raise InputError(f"split '{name}' is named twice")
    named |= splits
    corpora = {name: parse_corpora(spec, codes) for name, spec in named.items() if spec}
    account = prepare_store(
        codes,
        corpora,
        out,
        mono=parse_corpora(mono, codes),
        vocabulary=_vocabulary(tokenizer) if tokenizer else vocabulary,
        rules=text,
        filters=filters,
        hold_out={split: _amounts(split, spec) for split, spec in hold_out.items()},
        workers=workers,
    )
    from anyorder.report.terminal import account_table

    screen = Screen()
    screen.print(account_table(account))
    screen.print(f"wrote {out}", highlight=False)


def _vocabulary(name: str) -> Vocabulary:
    path = Path(name)
    if path.exists() or path.suffix == ".json":
        return Vocabulary.load(path)
    from anyorder.models.checkpoint import find

    return Vocabulary.load(find(name))


def _amounts(split: str, spec: str) -> dict[str, int]:
    amounts = {}
    for part in filter(None, spec.split(",")):
        name, _, count = part.partition("=")
        if not count.isdigit():
            raise InputError(f"--hold-out '{part}': expected CORPUS=NUMBER")
        amounts[name.strip()] = int(count)
    if not amounts:
        raise InputError(f"--hold-out: '{split}' names no corpus, expected CORPUS=NUMBER")
    return amounts
