"""`anyorder translate`: text in, text out, and the record of how it was generated."""

from pathlib import Path

from anyorder import progress
from anyorder.cli.common import check_apart, open_translator, print_note
from anyorder.cli.streaming import input_argument, open_input, open_output, show
from anyorder.data.corpus import OnInvalid, read_lines
from anyorder.decoding.config import AUTO, DecodingConfig
from anyorder.decoding.lengths import DEFAULT_LENGTH
from anyorder.device import Device
from anyorder.errors import InputError


def translate(
    input: list[str],
    model: str,
    direction: str,
    order: str = AUTO,
    schedule: str = AUTO,
    length: str = DEFAULT_LENGTH,
    reference: Path | None = None,
    trace: bool = False,
    json: Path | None = None,
    seed: int = 1,
    device: Device = "auto",
    batch_tokens: int | None = None,
    strict: bool = False,
    beam: str = "1",
    length_penalty: float = 1.0,
    revision: str = "none",
    temperature: float = 0.0,
    top_p: float = 1.0,
) -> None:
    """Translate a sentence, a file or standard input.

    A problematic line never stops the others. An empty line gives an empty line. A line that is too long for the model
    is split into sentences, or else clauses, and whatever still does not fit is truncated. Control characters become
    spaces, and invalid UTF-8 becomes U+FFFD. The trajectories of such lines have a note, and the lines are listed on
    standard error at the end.

    Args:
        input: A file (plain, .gz, .xz), a sentence, or nothing for standard input.
        model: A bundled model (de-en), a folder, or a hub id.
        direction: Source and target language, such as de-en.
        order: Which position to fill next; 'anyorder orders' lists the names. auto is the model's learned order, or
            margin if it has none.
        schedule: How many positions to fill per step: one, a number, steps:T, cosine:T, threshold:P (all positions
            whose best token has probability P or more), blocks:B+threshold:P, and others that 'anyorder orders' lists.
            auto is the schedule published with the revision, or one without a revision.
        length: How to choose the target length: predicted, candidates:N (the N most likely, re-ranked), table:N (the N
            most frequent, as in the paper), fixed:N (N subwords), or gold (needs --reference).
        reference: Reference translations, one per line, for --length gold.
        trace: Show the sentence after every step: [ ] marks neighbors filled from left to right, { } from right to
            left, and old->new a revised token.
        json: Also write the trajectories to this file, one per line (plain, .gz, .xz).
        seed: Random seed for orders, revisions and sampled tokens.
        device: Device to run on.
        batch_tokens: Target tokens to decode per batch. On CUDA, rounding may change a few results.
        strict: Stop with an error at the first problematic line.
        beam: Beam size for each sentence and length: N (beam over tokens, in the given order), positions:N (over the
            positions that the order ranks highest), or joint:N (over positions and tokens at once). 1 is greedy.
        length_penalty: Hypotheses of different lengths are ranked by total log-probability / length ** length_penalty.
        revision: Which filled positions to mask again after a step: none, mask-predict:T, refine:T, gibbs:N, p2:T or
            remdm:T.
        temperature: Sampling temperature; 0 always picks the most likely token.
        top_p: Nucleus sampling: sample from the smallest set of tokens whose total probability reaches this.
    """
    config = DecodingConfig(
        order=order,
        schedule=schedule,
        length=length,
        seed=seed,
        batch_tokens=batch_tokens,
        beam=beam,
        length_penalty=length_penalty,
        revision=revision,
        temperature=temperature,
        top_p=top_p,
    )
    if (length == "gold") != (reference is not None):
        raise InputError("--length gold and --reference FILE go together")
    check_apart({"--json": json}, [*map(Path, input), reference])
    on_invalid: OnInvalid = "strict" if strict else "replace"
    lines, name = open_input(input, on_invalid)
    with open_output(json) as writer:
        translator = open_translator(model, device)
        with progress.bar("translating", unit="sentences") as bar:
            stream = translator.stream(
                lines,
                direction,
                config,
                read_lines(reference, on_invalid) if reference else None,
                on_progress=bar.advance,
                source_name=name,
                reference_name=str(reference),
                strict=strict,
            )
            shown = show(stream, writer, trace)
    note = shown.report.summary("translated") if shown.lines else f"{name} is empty: nothing to translate"
    print_note("translate", note)


translate.positionals = input_argument("a sentence")  # type: ignore[attr-defined]
