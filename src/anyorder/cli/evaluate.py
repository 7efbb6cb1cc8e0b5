"""`anyorder evaluate`: orders times length limits, scored."""

import json as json_format
from pathlib import Path

from anyorder import progress
from anyorder.cli.common import Device, check_apart, open_translator, whole_file
from anyorder.data.corpus import read_parallel
from anyorder.decoding.config import DecodingConfig
from anyorder.errors import InputError, check_number
from anyorder.evaluation.evaluate import encode_pairs
from anyorder.evaluation.evaluate import evaluate as evaluate_orders
from anyorder.evaluation.significance import Test
from anyorder.models.checkpoint import find
from anyorder.orders import make_order, split_orders
from anyorder.orders.learned import default_order
from anyorder.report.table_data import evaluation_sheet
from anyorder.report.table_export import check_table, write_table
from anyorder.report.terminal import tables
from anyorder.translator import direction_languages

ALL = "left-to-right,right-to-left,uniform,outer-in:stride=1,outer-in:stride=2,outer-in:stride=3,"
ALL += "least-to-most,easy-first,entropy,max-prob,margin"


def evaluate(
    model: str,
    direction: str,
    source: Path | None = None,
    reference: Path | None = None,
    orders: str | None = None,
    max_length: str = "none",
    length: str = "gold",
    budget: str = "one",
    limit: int | None = None,
    against: str | None = None,
    test: Test = "bootstrap",
    samples: int = 1000,
    seed: int = 1,
    device: Device = "auto",
    batch_tokens: int | None = None,
    json: Path | None = None,
    table: Path | None = None,
) -> None:
    """Score orders on a test set.

    BLEU is what multi-bleu.perl prints: case-sensitive, on Moses tokens, subwords joined. chrF is sacreBLEU's chrF2 on
    plain text. p-values are sacreBLEU's paired tests on that BLEU.

    Args:
        model: A bundled model (de-en), a folder, or a hub id.
        direction: Source and target language, such as de-en.
        source: Sentences to translate (plain, .gz, .xz); the sample bundled with the model if not given.
        reference: Their reference translations.
        orders: Names separated by commas; all heuristic orders, and the model's learned one, if not given.
        max_length: Length limits in subwords, both sides, such as 20,30,none.
        length: How the target's length is found: gold, predicted, candidates:N, table:N or fixed:N.
        budget: Positions filled in one step, 'one' or a number.
        limit: Only the first so many pairs.
        against: Orders that p-values compare with, separated by commas; the first one if not given.
        test: bootstrap (paired bootstrap resampling) or randomization (paired approximate randomization).
        samples: Resamplings of the test; at least 20, or no p-value could fall below 0.05.
        seed: For orders that draw hash_uniform.
        device: Where to run.
        batch_tokens: Target tokens under way together; results do not depend on it.
        json: Also write the table to this file.
        table: Also write it for a paper: a file .tex (LaTeX, with booktabs) or .md (Markdown).
    """
    names = list(dict.fromkeys(split_orders(ALL if orders is None else orders, "--orders")))
    for name in names:
        make_order(name)
    compared_with = [] if against is None else split_orders(against, "--against")
    for name in compared_with:
        if name not in names and (orders is not None or name != "learned"):
            raise InputError(f"--against '{name}': is not among --orders ({', '.join(names)})")
    how = DecodingConfig.of(names[0], budget, length, seed, batch_tokens)
    limits = [_limit(part) for part in max_length.split(",")]
    check_number("--limit", limit, at_least=1)
    check_number("--samples", samples, at_least=20)
    check_table(table)
    check_apart({"--json": json, "--table": table}, [source, reference])
    if (source is None) != (reference is None):
        raise InputError("--source and --reference go together")
    with whole_file(json) as file, whole_file(table) as paper:
        translator = open_translator(model, device)
        from_language, to_language = direction_languages(translator.model, direction)
        if orders is None and default_order(translator.model, direction) == "learned":
            names.append("learned")
        if source is None or reference is None:
            folder = find(model)
            source, reference = folder / f"sample.{from_language}", folder / f"sample.{to_language}"
            if not source.exists() or not reference.exists():
                raise InputError(f"{model} comes without a sample: give --source and --reference")
        rows = list(read_parallel((source, reference)))[:limit]
        if not rows:
            raise InputError(f"{source}: is empty")
        texts, references = zip(*rows, strict=True)
        pairs = encode_pairs(translator, direction, texts, references, (str(source), str(reference)))
        with progress.bar("decoding", len(rows) * len(names), "sentences") as bar:
            result = evaluate_orders(
                translator, pairs, direction, names, limits, how, compared_with, test, samples, bar.advance
            )
        if file:
            file.write(json_format.dumps(result.as_json(), indent=2) + "\n")
        if paper and table:
            paper.write(write_table([evaluation_sheet(result, speed=False)], table, [result.signature]))
    if progress.is_main_process():
        screen = progress.Screen()
        for part in tables(evaluation_sheet(result), screen.width):
            screen.print(part)
        screen.print(result.signature, highlight=False, markup=False, soft_wrap=True)


def _limit(text: str) -> int | None:
    if text.strip() == "none":
        return None
    if not text.strip().isdigit() or int(text) < 1:
        raise InputError(f"--max-length '{text}': expected a whole number from 1, or none")
    return int(text)
