"""`anyorder convert`: a checkpoint as people have it, made into a folder that every verb can load."""

from pathlib import Path

from anyorder.models.hf.convert import convert as convert_checkpoint
from anyorder.progress import Screen

MOST = 4
"""Weights that are named of those that are left out."""


def convert(
    source: Path,
    out: Path,
    /,
    family: str | None = None,
    vocabulary: Path | None = None,
    lowercase: bool = False,
    split: str | None = None,
) -> None:
    """Convert the checkpoint of a masked language model, so that --model hf:OUT loads it.

    It takes pytorch_model.bin (one file or several), safetensors, and fairseq's RoBERTas (model.pt and dict.txt);
    vocab.txt becomes a tokenizer. Pickles are opened without running their code, and refused if they need more. OUT
    appears only if the model loads from the new files and fills a mask.

    Args:
        source: A folder, or the file in it that has the weights.
        out: The folder to write; it must not exist.
        family: The model_type, such as bert or roberta, if neither config.json nor the weights tell.
        vocabulary: vocab.txt, dict.txt or tokenizer.json, if it is not beside the weights.
        lowercase: Lower-case text, in a tokenizer that is made from a vocabulary. By default it does if
            tokenizer_config.json says so, or if the vocabulary has no capital letters.
        split: How to split a word into tokens, for text without spaces: characters, smiles, none, or a regular
            expression that matches one token. By default characters or smiles if that is what the vocabulary holds.
    """
    made = convert_checkpoint(source, out, family, vocabulary, lowercase or None, split)
    screen = Screen()
    screen.print_text(
        f"{made.model_type}: {made.parameters:,} parameters, {made.vocab_size:,} tokens, mask token {made.mask_token}"
    )
    screen.print_text(f"text: {made.reads}")
    if made.left_out:
        more = f" and {len(made.left_out) - MOST:,} more" if len(made.left_out) > MOST else ""
        screen.print_text(f"not needed to fill masks: {', '.join(made.left_out[:MOST])}{more}")
    screen.print_text(f"a mask alone is filled with {made.prediction}")
    screen.print_text(f"wrote {made.folder}; next, with your text, one per line:")
    screen.print_text(f"anyorder evaluate --model hf:{made.folder} --text lines.txt --limit 20")
