"""`anyorder generate`: prompts in, continued texts out, and the record of how they were generated."""

from anyorder.cli.common import DecodingOptions, LineOptions, masked_model
from anyorder.cli.streaming import open_input, run_lines, texts_input
from anyorder.errors import InputError
from anyorder.tasks import Generate
from anyorder.tasks.masked import DEFAULT_LENGTH


def generate(
    input: list[str],
    /,
    model: str,
    decoding: DecodingOptions,
    output: LineOptions,
    prompt: str | None = None,
    length: int = DEFAULT_LENGTH,
) -> None:
    """Continue a prompt, a file with one prompt per line, or standard input.

    --length masks are appended to each prompt and filled. The text ends at the first end-of-sequence token among them.
    A prompt that is too long for the model is returned unchanged and never stops the others; if it is the only prompt,
    it is an error.

    Args:
        input: A file (plain, .gz, .xz), a prompt, or nothing for standard input.
        model: A Transformers masked language model: a folder or a hub id, with or without the prefix hf:.
        prompt: The prompt; use this or the input argument.
        length: Number of tokens to generate.
    """
    if prompt is not None and input:
        raise InputError("give --prompt or an input, not both")
    lines = open_input(input, output.on_invalid) if prompt is None else texts_input([prompt])
    run_lines("generate", "fill", lines, masked_model(model), Generate(length), decoding, output)
