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

    A line that cannot be translated as it is never stops the others. An empty one gives an empty line; one that the
    model has no room for is split into sentences, or else clauses, and what does not fit even then is cut off; control
    characters become spaces, and bytes that are not UTF-8 become U+FFFD. A note in the trajectory says so, and at the
    end standard error names such lines.

    Args:
        input: A file (plain, .gz, .xz), a sentence, or nothing for standard input.
        model: A bundled model (de-en), a folder, or a hub id.
        direction: Source and target language, such as de-en.
        order: Which position is filled next; 'anyorder orders' lists the names. auto is the model's learned order, or
            margin where it has none.
        schedule: How many positions a step fills: one, a number, steps:T, cosine:T, threshold:P (all whose best token
            has at least probability P), blocks:B+threshold:P, and others that 'anyorder orders' lists. auto is one, or
            what the revision was published with.
        length: How the target's length is found: predicted, candidates:N (the N most likely, re-ranked), table:N (the N
            most frequent, as in the paper), fixed:N (N subwords), or gold (needs --reference).
        reference: Reference translations, one per line, for --length gold.
        trace: Show the sentence after every step; [ ] was filled rightwards, { } leftwards,
            old->new was revised.
        json: Write one trajectory per line to this file (plain, .gz, .xz).
        seed: For random orders and revisions, and for sampled tokens.
        device: Where to run.
        batch_tokens: Target tokens that are decoded together; results do not depend on it.
        strict: Stop with an error at the first line that cannot be translated as it is.
        beam: Hypotheses kept of each sentence and length: N (over tokens, in the given order), positions:N (over the
            positions that the order ranks first), or joint:N (over positions and tokens at once). 1 is greedy.
        length_penalty: Hypotheses of several lengths are ranked by summed log-probability / length ** length_penalty.
        revision: Which filled positions are masked again after a step: none, mask-predict:T, refine:T, gibbs:N, p2:T or
            remdm:T.
        temperature: 0 writes the most likely token; above 0 tokens are sampled.
        top_p: Sample only from the most likely tokens, as many as have this probability together.
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
