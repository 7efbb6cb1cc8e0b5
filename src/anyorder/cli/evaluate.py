"""`anyorder evaluate`: score orders that are decoded now, or trajectories from files."""

import json as json_format
from dataclasses import dataclass
from pathlib import Path

from anyorder import progress
from anyorder.cli.common import (
    SearchOptions,
    SlowNote,
    check_apart,
    connected,
    open_decoder,
    output_file,
    print_note,
    split_limits,
)
from anyorder.cli.parser import SharedOptions
from anyorder.cluster import Cluster
from anyorder.data.corpus import read_parallel
from anyorder.data.line_problems import LineReport
from anyorder.decoder import Decoder
from anyorder.decoding.config import AUTO
from anyorder.decoding.revision import split_revisions
from anyorder.decoding.schedules import split_schedules
from anyorder.decoding.trajectory import check_systems, read_systems
from anyorder.errors import InputError, check_number
from anyorder.evaluation.evaluate import Evaluation
from anyorder.evaluation.evaluate import evaluate as evaluate_systems
from anyorder.evaluation.evaluate_orders import default_orders, evaluate_orders, name_regimes
from anyorder.evaluation.puzzles import puzzle_task
from anyorder.evaluation.significance import SAMPLES, Test, check_test
from anyorder.models.hf.pretrained import is_transformers
from anyorder.orders import make_order, split_orders
from anyorder.report.tables import check_table_file, evaluation_table, format_tables
from anyorder.report.terminal import render_tables
from anyorder.tasks import TASKS, Infill, PuzzleTask, Task, Translation, make_puzzle, make_task


@dataclass(frozen=True)
class SystemOptions(SharedOptions):
    """What to decode, and how; not with --trajectories."""

    model: str | None = None
    """A bundled model (de-en), a folder, or a hub id; hf:NAME is a Transformers masked language model."""
    direction: str | None = None
    """Source and target language, such as de-en."""
    text: Path | None = None
    """Plain text to mask and fill in again, one text per line (plain, .gz, .xz)."""
    mask_share: float | None = None
    """Fraction of each line's tokens to mask, at least two of them; by default half. The masks depend on --seed; they
    are those that 'anyorder learn-order --text' uses."""
    task: str | None = None
    """The kind of puzzle, such as sudoku-9x9, or a task that a plugin registers; by default the kind of puzzle that the
    model was trained on."""
    source: Path | None = None
    """Sentences to translate, or puzzles (plain, .gz, .xz); by default the sample bundled with the model."""
    orders: str | None = None
    """Names separated by commas; by default all heuristic orders and the model's learned order."""
    schedule: str | None = None
    """How many positions to fill per step: one, a number, steps:T, cosine:T, threshold:P, blocks:B+threshold:P, and
    others that 'anyorder orders' lists. Separate several with commas; each is tried with every order. By default the
    schedule published with the revision; without a revision one, or blocks:B for a model with blocks of B positions."""
    revision: str | None = None
    """Which filled positions to mask again after a step: none (the default), mask-predict:T, refine:T, gibbs:N, p2:T,
    remdm:T. Separate several with commas; each is tried with every order and schedule."""
    max_length: str | None = None
    """Length limits in subwords (of translations, on both sides), such as 20,30,none; by default none."""
    length: str | None = None
    """How to choose the target length: gold (the default), predicted, candidates:N, table:N or fixed:N. N lengths take
    about N times as long as one; 'anyorder translate' tries 4 by default."""
    length_penalty: float | None = None
    """Hypotheses of different lengths are ranked by total log-probability / length ** length_penalty; by default 1."""
    strict: bool = False
    """Stop with an error at the first problematic line: an empty side, text that is too long, control characters, or
    invalid UTF-8. Without it, such lines are counted, and listed in the JSON."""


@dataclass(frozen=True)
class ScoringOptions(SharedOptions):
    """How to score and to compare."""

    tokenize: str | None = None
    """BLEU tokenizer: one of sacreBLEU's (13a, intl, zh, char, none, ...), or moses. By default zh into Chinese; into
    other languages moses with a model, and 13a for trajectories."""
    limit: int | None = None
    """Use only the first N lines."""
    against: str | None = None
    """Baseline orders (or systems) for the p-values, separated by commas; by default the first one."""
    test: Test = "randomization"
    """randomization (paired approximate randomization) or bootstrap (paired bootstrap resampling)."""
    samples: int = SAMPLES
    """Resamples of the test, 20 to 1,000,000; with fewer, no p-value could fall below 0.05."""


def evaluate(
    system: SystemOptions,
    scoring: ScoringOptions,
    decoding: SearchOptions,
    trajectories: list[str] | None = None,
    reference: list[str] | None = None,
    json: Path | None = None,
    timings: Path | None = None,
    table: Path | None = None,
) -> None:
    """Score orders on a test set.

    Either decodes a test set in several orders (--model, --direction), or scores existing trajectories written by
    anyorder or another program (--trajectories, --reference). For decoded orders, BLEU is that of multi-bleu.perl:
    case-sensitive, on Moses tokens with subwords joined. For trajectories, it is sacreBLEU's BLEU on their text. chrF
    is sacreBLEU's chrF2 on plain text. Significance tests are paired and two-sided, on that BLEU.

    With any masked language model (--model hf:..., --text), a share of the tokens of each line of text is masked at
    random and filled in again; the score is the share recovered, with intervals over lines.

    With a puzzle model, such as sudoku-4x4, the score is the share of puzzles solved entirely, with 95% Wilson
    intervals. Each line of --source is a puzzle: 16 characters for sudoku-4x4, 81 for sudoku-9x9, with 0 or . for an
    empty cell. Solutions (--reference) are optional. A line that is not a puzzle is left out, with a note.

    Args:
        trajectories: Files to score, one trajectory per line (plain, .gz, .xz); each file is one system.
        reference: Reference translations; several files give several references per sentence.
        json: Also write the results to this file.
        timings: Write decoding times to this file, separately from the results.
        table: Also write the table for a paper: a .tex (LaTeX, with booktabs) or .md (Markdown) file.
    """
    check_number("limit", scoring.limit, at_least=1)
    check_test(scoring.test, scoring.samples)
    check_table_file(table)
    files, references = ([Path(name) for name in given or ()] for given in (trajectories, reference))
    outputs = {"--json": json, "--table": table, "--timings": timings}
    check_apart(outputs, [system.source, system.text, *references, *files])
    with (
        connected(decoding.cluster if trajectories is None else None, json) as cluster,
        output_file(json) as file,
        output_file(table) as paper,
        output_file(timings) as times,
    ):
        if trajectories is not None:
            given = {**system.changed(), **decoding.changed(), **({} if timings is None else {"timings": timings})}
            for name in given:
                raise InputError("is for decoding with a model and does not go together with --trajectories", name)
            result = _score_files(files, references, scoring)
        else:
            result = _score_orders(decoding, system, scoring, references, cluster)
        if file:
            file.write(json_format.dumps(result.as_json(), indent=2) + "\n")
        if times:
            times.write(json_format.dumps(result.timings(), indent=2) + "\n")
        if paper and table:
            paper.write(format_tables([evaluation_table(result, speed=False)], table, [result.signature]))
    if progress.is_main_process():
        screen = progress.Screen()
        shown = evaluation_table(result)
        for part in render_tables(shown, screen.width):
            screen.print(part)
        for note in shown.notes:
            screen.print_text(note)
        screen.print_text(result.signature)
    report = LineReport()
    for line in result.lines:
        report.add(line)
    print_note("evaluate", report.summary("scored"))


def _score_files(files: list[Path], references: list[Path], scoring: ScoringOptions) -> Evaluation:
    if scoring.tokenize == "moses":
        why = "moses: is for decoding with a model; files are scored with a tokenizer of sacreBLEU"
        raise InputError(why, "tokenize")
    systems = read_systems(files)
    lines = [list(lines) for lines in zip(*read_parallel(references), strict=True)] if references else []
    for one in lines:
        check_systems(systems, one)
    if puzzle_task(systems) is not None:
        _check_solutions(references)
    elif not references:
        raise InputError("--trajectories needs --reference")
    first = {name: trajectories[: scoring.limit] for name, trajectories in systems.items()}
    expected = [one[: scoring.limit] for one in lines] or None
    against = scoring.against
    # A file name may contain a comma.
    baselines = [] if against is None else [against] if against in systems else against.split(",")
    return evaluate_systems(first, expected, scoring.tokenize, baselines, scoring.test, scoring.samples)


def _score_orders(
    decoding: SearchOptions,
    system: SystemOptions,
    scoring: ScoringOptions,
    references: list[Path],
    cluster: Cluster | None,
) -> Evaluation:
    model, direction, text, source = system.model, system.direction, system.text, system.source
    fills = model is not None and (system.task is not None or text is not None or is_transformers(model))
    if model is None or (direction is None and not fills):
        raise InputError(
            "give --model and --direction (or --text) to decode, or --trajectories to score what was decoded"
        )
    _check_options(system, scoring, references, fills)
    schedules = split_schedules(AUTO if system.schedule is None else system.schedule)
    revisions = split_revisions("none" if system.revision is None else system.revision)
    config = decoding.config(
        schedule=schedules[0],
        revision=revisions[0],
        length="gold" if system.length is None else system.length,
        length_penalty=1.0 if system.length_penalty is None else system.length_penalty,
    )
    orders = None if system.orders is None else split_orders(system.orders)
    # Fail on a wrong name before the model is loaded.
    name_regimes(config, [AUTO], schedules, revisions)
    for name in orders or ():
        make_order(name)
    limits = split_limits("none" if system.max_length is None else system.max_length)
    task: Task | None = None if direction is None else Translation(direction)
    if text is not None:
        task = Infill()
    elif system.task is not None:
        task = make_task(system.task) if system.task in TASKS else make_puzzle(system.task)
    decoder = open_decoder(model, decoding.device, task, cluster, decoding.dtype)
    if text is None and decoder.task.name == Infill.name:
        raise InputError(f"{model} fills masks: give --text with plain text, or --task with the puzzles that it solves")
    files = [text] if text else [source, *references] if source else _sample(decoder, model)
    lines = list(read_parallel(files, "strict" if system.strict else "replace"))[: scoring.limit]
    if not lines:
        raise InputError(f"{files[0]}: is empty")
    sources, *targets = (list(column) for column in zip(*lines, strict=True))
    orders = orders or default_orders(decoder)
    count = len(lines) * len(orders) * len(schedules) * len(revisions)
    slow = SlowNote("evaluate", f"decoding {count:,} {decoder.task.unit}s in all", count)
    with progress.bar("decoding", count, f"{decoder.task.unit}s") as bar:

        def on_progress(lines: int) -> None:
            bar.advance(lines)
            slow(lines)

        return evaluate_orders(
            decoder,
            sources,
            targets or None,
            orders,
            limits,
            config,
            scoring.tokenize,
            [] if scoring.against is None else split_orders(scoring.against),
            scoring.test,
            scoring.samples,
            names=[*map(str, files)],
            strict=system.strict,
            on_progress=on_progress,
            schedules=schedules,
            revisions=revisions,
            mask_share=system.mask_share,
        )


def _check_options(system: SystemOptions, scoring: ScoringOptions, references: list[Path], fills: bool) -> None:
    """Refuse options that are for other tasks. fills: whether the model fills masks."""
    given = [*system.changed(), *scoring.changed(), *(["reference"] if references else [])]

    def refuse(why: str, *names: str) -> None:
        for name in names:
            if name in given:
                raise InputError(why, name)

    for_translation = ("direction", "length", "length_penalty")
    if system.text is not None:
        refuse("does not go together with --text", *for_translation, "task", "tokenize", "source", "reference")
        return
    refuse("is for --text", "mask_share")
    if not fills:
        if (system.source is None) != (not references):
            raise InputError("--source and --reference go together")
        return
    refuse("is for translation, not for puzzles", *for_translation, "max_length", "tokenize")
    if references:
        _check_solutions(references)
        if system.source is None:
            raise InputError("--reference needs --source")


def _check_solutions(references: list[Path]) -> None:
    if len(references) > 1:
        raise InputError("must be one file: a puzzle has one solution", "reference")


def _sample(decoder: Decoder, model: str) -> list[Path]:
    """The test set that comes with a model: sample.de and sample.en, or one for each pair, such as sample.ro-en.ro, or
    sample.puzzles.txt and sample.solutions.txt."""
    if isinstance(decoder.task, PuzzleTask):
        pairs, missing = [("sample.puzzles.txt", "sample.solutions.txt")], ": give --source"
    elif not isinstance(decoder.task, Translation):
        pairs, missing = [], f" for {decoder.task.name}: give --source and --reference"
    else:
        one, other = decoder.model.languages(decoder.task.name)
        stems = ("sample", f"sample.{one}-{other}", f"sample.{other}-{one}")
        pairs = [(f"{stem}.{one}", f"{stem}.{other}") for stem in stems]
        missing = f" for {decoder.task.name}: give --source and --reference"
    folder = decoder.model.path
    for pair in pairs if folder else ():
        files = [folder / name for name in pair]
        if all(file.exists() for file in files):
            return files
    raise InputError(f"{model} comes without a sample{missing}")
