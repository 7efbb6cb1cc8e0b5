"""`anyorder evaluate`: score orders that are decoded now, or trajectories from files."""

import json as json_format
from pathlib import Path

from anyorder import progress
from anyorder.cli.common import check_apart, open_translator, output_file, print_note, several, split_limits
from anyorder.cli.evaluate_puzzles import score_puzzle_files, score_puzzle_orders
from anyorder.data.corpus import read_parallel
from anyorder.data.lines import LineReport
from anyorder.decoding.config import AUTO, DecodingConfig
from anyorder.decoding.revision import split_revisions
from anyorder.decoding.schedules import split_schedules
from anyorder.decoding.trajectory import check_systems, read_systems
from anyorder.device import Device
from anyorder.errors import InputError, check_number
from anyorder.evaluation.accuracy import AccuracyEvaluation
from anyorder.evaluation.evaluate import Evaluation, check_test
from anyorder.evaluation.evaluate import evaluate as evaluate_systems
from anyorder.evaluation.evaluate_orders import default_orders, evaluate_orders
from anyorder.evaluation.regimes import name_regimes
from anyorder.evaluation.significance import SAMPLES, Test
from anyorder.evaluation.systems import puzzle_task
from anyorder.models.pretrained import is_transformers
from anyorder.models.storage import find
from anyorder.orders import make_order, split_orders
from anyorder.report.accuracy_table import accuracy_table
from anyorder.report.table_data import TableData, evaluation_table
from anyorder.report.table_export import check_table_file, format_tables
from anyorder.report.terminal import render_tables
from anyorder.translator import Translator


def evaluate(
    model: str | None = None,
    direction: str | None = None,
    trajectories: list[str] | str | None = None,
    source: Path | None = None,
    reference: list[str] | str | None = None,
    orders: str | None = None,
    max_length: str | None = None,
    length: str | None = None,
    schedule: str | None = None,
    seed: int | None = None,
    device: Device | None = None,
    batch_tokens: int | None = None,
    tokenize: str | None = None,
    limit: int | None = None,
    strict: bool = False,
    against: str | None = None,
    test: Test = "randomization",
    samples: int = SAMPLES,
    json: Path | None = None,
    timings: Path | None = None,
    table: Path | None = None,
    beam: str | None = None,
    length_penalty: float | None = None,
    task: str | None = None,
    revision: str | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
) -> None:
    """Score orders on a test set.

    Either decodes a test set in several orders (--model, --direction), or scores existing trajectories written by
    anyorder or another program (--trajectories, --reference). For decoded orders, BLEU is that of multi-bleu.perl:
    case-sensitive, on Moses tokens with subwords joined. For trajectories, it is sacreBLEU's BLEU on their text. chrF
    is sacreBLEU's chrF2 on plain text. Significance tests are paired and two-sided, on that BLEU.

    With a puzzle model, such as sudoku-4x4, the score is the share of puzzles solved entirely, with 95% Wilson
    intervals. Each line of --source is a puzzle: 16 characters for sudoku-4x4, 81 for sudoku-9x9, with 0 or . for an
    empty cell. Solutions (--reference) are optional. A line that is not a puzzle is left out, with a note.

    Args:
        model: A bundled model (de-en), a folder, or a hub id.
        direction: Source and target language, such as de-en.
        trajectories: Files to score, one trajectory per line (plain, .gz, .xz); each file is one system.
        source: Sentences to translate (plain, .gz, .xz); by default the sample bundled with the model.
        reference: Reference translations; several files give several references per sentence.
        orders: Names separated by commas; by default all heuristic orders and the model's learned order.
        max_length: Length limits in subwords, on both sides, such as 20,30,none; by default none.
        length: How to choose the target length: gold (the default), predicted, candidates:N, table:N or fixed:N.
        schedule: How many positions to fill per step: one, a number, steps:T, cosine:T, threshold:P,
            blocks:B+threshold:P, and others that 'anyorder orders' lists. Separate several with commas; each is tried
            with every order. By default the schedule published with the revision, or one without a revision.
        seed: Random seed for orders, revisions and sampled tokens; by default 1.
        device: Device to run on; by default auto.
        batch_tokens: Target tokens to decode per batch. On CUDA, rounding may change a few results.
        tokenize: BLEU tokenizer: one of sacreBLEU's (13a, intl, zh, char, none, ...), or moses. By default zh into
            Chinese; into other languages moses with a model, and 13a for trajectories.
        limit: Use only the first N sentences.
        strict: Stop with an error at the first problematic pair: an empty side, text that is too long, control
            characters, or invalid UTF-8. Without it, such pairs are counted, and listed in the JSON.
        against: Baseline orders (or systems) for the p-values, separated by commas; by default the first one.
        test: randomization (paired approximate randomization) or bootstrap (paired bootstrap resampling).
        samples: Resamples of the test, 20 to 1,000,000; with fewer, no p-value could fall below 0.05.
        json: Also write the results to this file.
        timings: Write decoding times to this file, separately from the results.
        table: Also write the table for a paper: a .tex (LaTeX, with booktabs) or .md (Markdown) file.
        beam: Beam size for each sentence and length: N (beam over tokens, in the given order), positions:N (over the
            positions that the order ranks highest), or joint:N (over positions and tokens at once, for the order
            max-prob). By default 1, which is greedy.
        length_penalty: Hypotheses of different lengths are ranked by total log-probability / length ** length_penalty;
            by default 1.
        task: The kind of puzzle, such as sudoku-9x9; by default the one that the model was trained on.
        revision: Which filled positions to mask again after a step: none (the default), mask-predict:T, refine:T,
            gibbs:N, p2:T, remdm:T. Separate several with commas; each is tried with every order and schedule.
        temperature: Sampling temperature; 0, the default, always picks the most likely token.
        top_p: Nucleus sampling: sample from the smallest set of tokens whose total probability reaches this; by default
            1.
    """
    check_number("limit", limit, at_least=1)
    check_test(test, samples)
    check_table_file(table)
    files, references = _files(trajectories), _files(reference)
    check_apart({"--json": json, "--table": table, "--timings": timings}, [source, *references, *files])
    with output_file(json) as file, output_file(table) as paper, output_file(timings) as times:
        if trajectories is not None:
            _refuse_with_trajectories(
                model=model, direction=direction, source=source, orders=orders, max_length=max_length, length=length,
                schedule=schedule, seed=seed, device=device, batch_tokens=batch_tokens, timings=timings,
                strict=strict or None, beam=beam, length_penalty=length_penalty, task=task, revision=revision,
                temperature=temperature, top_p=top_p,
            )  # fmt: skip
            result: Evaluation | AccuracyEvaluation = _score_files(
                files, references, tokenize, limit, against, test, samples
            )
        else:
            solves_puzzles = model is not None and (task is not None or is_transformers(model))
            if model is None or (direction is None and not solves_puzzles):
                raise InputError("give --model and --direction to decode, or --trajectories to score what was decoded")
            schedules = split_schedules(AUTO if schedule is None else schedule)
            revisions = split_revisions("none" if revision is None else revision)
            config = DecodingConfig(
                schedule=schedules[0],
                revision=revisions[0],
                length="gold" if length is None else length,
                seed=1 if seed is None else seed,
                batch_tokens=batch_tokens,
                beam="1" if beam is None else beam,
                length_penalty=1.0 if length_penalty is None else length_penalty,
                temperature=0.0 if temperature is None else temperature,
                top_p=1.0 if top_p is None else top_p,
            )
            name_regimes(config, [AUTO], schedules, revisions)  # fail on a wrong name before the model is loaded
            if solves_puzzles:
                _refuse_with_puzzles(
                    direction=direction, max_length=max_length, length=length, tokenize=tokenize,
                    length_penalty=length_penalty,
                )  # fmt: skip
                result = score_puzzle_orders(
                    model, task, source, references, orders, config, device or "auto", limit, strict, against, test,
                    samples, schedules, revisions,
                )  # fmt: skip
            else:
                assert direction is not None
                result = _score_orders(
                    model, direction, source, references, orders, "none" if max_length is None else max_length, config,
                    device or "auto", tokenize, limit, strict, against, test, samples, schedules, revisions,
                )  # fmt: skip
        if file:
            file.write(json_format.dumps(result.as_json(), indent=2) + "\n")
        if times:
            times.write(json_format.dumps(result.timings(), indent=2) + "\n")
        if paper and table:
            paper.write(format_tables([_table(result, speed=False)], table, [result.signature]))
    if progress.is_main_process():
        screen = progress.Screen()
        shown = _table(result)
        for part in render_tables(shown, screen.width):
            screen.print(part)
        for note in shown.notes:
            screen.print(note, highlight=False, markup=False)
        screen.print(result.signature, highlight=False, markup=False, soft_wrap=True)
    report = LineReport()
    for line in result.lines:
        report.add(line)
    print_note("evaluate", report.summary("scored"))


evaluate.positionals = {  # type: ignore[attr-defined]
    "--trajectories": {
        "nargs": "+",
        "default": None,
        "metavar": "FILE",
        "help": "files to score, one trajectory per line (plain, .gz, .xz); each file is one system",
    },
    "--reference": {
        "nargs": "+",
        "default": None,
        "metavar": "FILE",
        "help": "reference translations; several files give several references per sentence",
    },
}


def _files(given: list[str] | str | None) -> list[Path]:
    """The files of an option that takes several; empty if it is not given."""
    return [] if given is None else [Path(name) for name in several(given)]


def _table(result: Evaluation | AccuracyEvaluation, speed: bool = True) -> TableData:
    return accuracy_table(result, speed) if isinstance(result, AccuracyEvaluation) else evaluation_table(result, speed)


def _refuse_with_puzzles(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise InputError("is for translation, not for puzzles", name)


def _refuse_with_trajectories(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise InputError("is for decoding with a model and does not go together with --trajectories", name)


def _score_files(
    files: list[Path],
    references: list[Path],
    tokenize: str | None,
    limit: int | None,
    against: str | None,
    test: Test,
    samples: int,
) -> Evaluation | AccuracyEvaluation:
    if tokenize == "moses":
        raise InputError(
            "moses: is for decoding with a model; files are scored with a tokenizer of sacreBLEU", "tokenize"
        )
    systems = read_systems(files)
    lines = [list(lines) for lines in zip(*read_parallel(references), strict=True)] if references else []
    for one in lines:
        check_systems(systems, one)
    first = {name: trajectories[:limit] for name, trajectories in systems.items()}
    # A file name may contain a comma.
    baselines = [] if against is None else [against] if against in systems else against.split(",")
    task = puzzle_task(systems)
    if task is not None:
        _refuse_with_puzzles(tokenize=tokenize)
        return score_puzzle_files(first, task, [one[:limit] for one in lines], baselines, test, samples)
    if not references:
        raise InputError("--trajectories needs --reference")
    return evaluate_systems(first, [one[:limit] for one in lines], tokenize, baselines, test, samples)


def _score_orders(
    model: str,
    direction: str,
    source: Path | None,
    references: list[Path],
    orders: str | None,
    max_length: str,
    config: DecodingConfig,
    device: Device,
    tokenize: str | None,
    limit: int | None,
    strict: bool,
    against: str | None,
    test: Test,
    samples: int,
    schedules: list[str],
    revisions: list[str],
) -> Evaluation:
    if (source is None) != (not references):
        raise InputError("--source and --reference go together")
    names = None if orders is None else split_orders(orders)
    baselines = [] if against is None else split_orders(against)
    for name in names or ():
        make_order(name)
    limits = split_limits(max_length)
    translator = open_translator(model, device)
    if source is None:
        source, *references = _sample(translator, model, direction)
    lines = list(read_parallel((source, *references), "strict" if strict else "replace"))[:limit]
    if not lines:
        raise InputError(f"{source}: is empty")
    sources, *targets = (list(column) for column in zip(*lines, strict=True))
    names = names or default_orders(translator, direction)
    systems = len(names) * len(schedules) * len(revisions)
    with progress.bar("decoding", len(lines) * systems, "sentences") as bar:
        return evaluate_orders(
            translator,
            sources,
            targets,
            direction,
            names,
            limits,
            config,
            tokenize,
            baselines,
            test,
            samples,
            names=(str(source), *map(str, references)),
            strict=strict,
            on_progress=bar.advance,
            schedules=schedules,
            revisions=revisions,
        )


def _sample(translator: Translator, model: str, direction: str) -> tuple[Path, Path]:
    """The test set that comes with a model: sample.de and sample.en, or one for each pair, such as sample.ro-en.ro."""
    source, target = translator.direction_languages(direction)
    for name in ("sample", f"sample.{source}-{target}", f"sample.{target}-{source}"):
        files = find(model) / f"{name}.{source}", find(model) / f"{name}.{target}"
        if all(file.exists() for file in files):
            return files
    raise InputError(f"{model} comes without a sample for {direction}: give --source and --reference")
