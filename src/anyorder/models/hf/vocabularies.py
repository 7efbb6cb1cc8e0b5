"""Tokenizers made from vocabulary files: BERT's vocab.txt, fairseq's dict.txt, or the vocabulary of a tokenizer.json.

Texts of symbols, such as proteins and SMILES, are written without spaces. Their checkpoints come with a vocabulary and,
in the code of their package, a rule that splits a text into symbols. Here the rule becomes part of the tokenizer.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from anyorder.errors import InputError
from anyorder.models.native.storage import as_input_error
from anyorder.records import MAX_BYTES, Record, read_record

AUTO, NONE = "auto", "none"
SMILES = r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
"""The symbols of SMILES as in Schwaller et al. (2019), Molecular Transformer; rxnfp and rxnmapper use the same."""
SPLITS = {"characters": r"[\s\S]", "smiles": SMILES}
"""Named rules: the regular expression of a symbol."""
SPECIAL_TOKENS = {
    "mask_token": ("[MASK]", "<mask>", "<|mask|>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<cls>", "<s>"),
    "sep_token": ("[SEP]", "<sep>", "<eos>", "</s>"),
    "pad_token": ("[PAD]", "<pad>"),
}
"""What special tokens are called, unless a file says so."""
_FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")
_PIECE = "##"
"""Starts a piece that continues a word."""


@dataclass(frozen=True)
class Vocabulary:
    """Tokens and their ids."""

    ids: Mapping[str, int]
    file: Path
    special: Mapping[str, str]
    """The special tokens by role, such as `mask_token`."""
    settings: Mapping[str, Any]
    """What tokenizer_config.json says."""
    merges: Sequence[tuple[str, str]] | None = None
    """Of a byte-level vocabulary."""

    @property
    def ordinary(self) -> list[str]:
        """The tokens that text is made of."""
        special = set(self.special.values())
        return [token for token in self.ids if token not in special and not re.match(r"\[unused\d*]$", token)]

    @property
    def has_pieces(self) -> bool:
        return any(token.startswith(_PIECE) and token != _PIECE for token in self.ids)

    def natural_split(self) -> str:
        """The rule by which every token is one symbol: of the longest symbols first, if there are several."""
        tokens = self.ordinary
        if self.merges is None and tokens and not self.has_pieces:
            if all(len(token) == 1 for token in tokens):
                return "characters"
            if all(re.fullmatch(SMILES, token) for token in tokens):
                return "smiles"
        return NONE

    def has_capitals(self) -> bool:
        return any(token != token.lower() for token in self.ordinary)


def read_vocabulary(file: Path, folder: Path, is_fairseq: bool = False) -> Vocabulary:
    """A vocabulary file. folder: where files about special tokens and settings may be."""
    merges = None
    if file.suffix == ".json":
        ids = _tokenizer_json(file)
    elif is_fairseq:
        ids, merges = _fairseq_dictionary(file)
    else:
        ids = {token: number for number, token in enumerate(_lines(file)) if token}
    if not ids:
        raise InputError(f"{file}: is empty, expected one token per line")
    settings = _optional(folder / "tokenizer_config.json")
    named = {**_optional(folder / "special_tokens_map.json"), **settings}
    special = {}
    for role, usual in SPECIAL_TOKENS.items():
        token = named.get(role)
        token = token.get("content") if isinstance(token, dict) else token
        found = next((one for one in (token, *usual) if isinstance(one, str) and one in ids), None)
        if found is not None:
            special[role] = found
    return Vocabulary(ids, file, special, settings, merges)


def _lines(file: Path) -> list[str]:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise InputError(f"{file}: has {file.stat().st_size:,} bytes, expected at most {MAX_BYTES:,}")
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: invalid UTF-8 (byte {error.start + 1})") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]


def _optional(file: Path) -> dict[str, Any]:
    return read_record(file).values if file.is_file() else {}


def _tokenizer_json(file: Path) -> dict[str, int]:
    model = read_record(file).record("model", default={})
    if model.values.get("type") not in ("WordPiece", "WordLevel"):
        raise InputError(f"{file}: is not a list of words or pieces, so no rule to split text can be given")
    ids: dict[str, int] = model.take("vocab", dict[str, Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]])
    return ids


def _fairseq_dictionary(file: Path) -> tuple[dict[str, int], list[tuple[str, str]] | None]:
    """fairseq's dict.txt: `symbol count` lines, after four special symbols and before the mask."""
    symbols = [line.removesuffix(" #fairseq:overwrite").rpartition(" ")[0] for line in _lines(file) if line]
    if bad := next((number for number, symbol in enumerate(symbols, 1) if not symbol), None):
        raise InputError(f"{file}, line {bad}: expected a symbol, a space and a count, as in fairseq's dict.txt")
    merges = None
    if all(symbol.isdecimal() or symbol.startswith("madeupword") for symbol in symbols):
        symbols, merges = _gpt2_tokens(symbols, file)
    ids: dict[str, int] = {}
    for symbol in (*_FAIRSEQ, *symbols, "<mask>"):
        ids.setdefault(symbol, len(ids))
    return ids, merges


def _gpt2_tokens(numbers: list[str], file: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """RoBERTa's symbols are the ids of GPT-2's tokens: the tokens, and how they are merged."""
    encoder, merged = file.with_name("encoder.json"), file.with_name("vocab.bpe")
    missing = [one.name for one in (encoder, merged) if not one.is_file()]
    if missing:
        raise InputError(f"{file}: lists numbers of GPT-2's tokens, and {' and '.join(missing)} is not beside it")
    record = read_record(encoder)
    token_of = {str(record.integer(token)): token for token in record}
    merges = [(parts[0], parts[1]) for line in _lines(merged) if len(parts := line.split(" ")) == 2 and line[0] != "#"]
    return [token_of.get(number, number) for number in numbers], merges


def make_tokenizer(vocabulary: Vocabulary, split: str = AUTO, lowercase: bool | None = None) -> tuple[Any, str]:
    """A fast tokenizer of Transformers, and in words how it reads text.

    split: `characters`, `smiles`, `none` (words, and pieces of words), or a regular expression that every symbol of a
    text matches; `auto` is whatever makes each token of the vocabulary one symbol. lowercase: None is what
    tokenizer_config.json says, or whether the vocabulary has no capital letter.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids, special = dict(vocabulary.ids), dict(vocabulary.special)
    missing = [role.replace("_", " ") for role in ("mask_token", "unk_token") if role not in special]
    if missing and (vocabulary.merges is None or "mask_token" not in special):
        raise InputError(f"{vocabulary.file}: has no {' and no '.join(missing)}, such as [MASK], [UNK], <mask>, <unk>")
    kind = vocabulary.natural_split() if split == AUTO else split
    named = vocabulary.settings.get("do_lower_case")
    if lowercase is None:
        is_bytes = vocabulary.merges is not None
        lowercase = named if isinstance(named, bool) else not is_bytes and not vocabulary.has_capitals()
    unknown, fused = special.get("unk_token"), kind != NONE
    if vocabulary.merges is not None:
        known = [(left, right) for left, right in vocabulary.merges if {left, right, left + right} <= ids.keys()]
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=known))
    elif vocabulary.has_pieces and not fused:
        tokenizer = Tokenizer(models.WordPiece(vocab=ids, unk_token=unknown))
    else:
        tokenizer = Tokenizer(models.WordLevel(vocab=ids, unk_token=unknown))
    if fused:
        rule = SPLITS.get(kind, kind)
        with as_input_error(f"{kind}: is not a regular expression, nor one of {', '.join((*SPLITS, NONE, AUTO))}"):
            pattern = Regex(rule)
        # What the rule does not match stays, and is unknown.
        split_symbols = pre_tokenizers.Split(pattern, "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split_symbols])
        tokenizer.decoder = decoders.Fuse()
        tokenizer.normalizer = normalizers.Lowercase() if lowercase else None
        words = f"split into {kind}" if kind in SPLITS else f"split by {kind}"
    elif vocabulary.merges is not None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.normalizer = normalizers.Lowercase() if lowercase else None
        words = "split into pieces of words"
    else:
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, **_normalizer(vocabulary))
        is_bert = vocabulary.file.name != "dict.txt"
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer() if is_bert else pre_tokenizers.WhitespaceSplit()
        tokenizer.decoder = decoders.WordPiece() if vocabulary.has_pieces else None
        words = "split into pieces of words" if vocabulary.has_pieces else "split at spaces"
    edges = [special.get("cls_token"), special.get("sep_token")]
    if any(edges):
        template = " ".join([*([edges[0]] if edges[0] else []), "$A", *([edges[1]] if edges[1] else [])])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[(token, ids[token]) for token in edges if token]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)
    return fast, f"{words}, {'in lower case' if lowercase else 'with its case'}"


def _normalizer(vocabulary: Vocabulary) -> dict[str, Any]:
    settings = Record(str(vocabulary.file.with_name("tokenizer_config.json")), dict(vocabulary.settings))
    return {
        "strip_accents": settings.take("strip_accents", bool | None, None),
        "handle_chinese_chars": settings.boolean("tokenize_chinese_chars", default=True),
    }
