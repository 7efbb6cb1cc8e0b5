"""Turn words into subword ids and back: byte-pair encoding, run by `tokenizers`, kept in one `tokenizer.json`.

The file is written when a vocabulary is learned and copied unchanged into every store and model made with it. Knows
nothing of languages or raw text.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from anyorder.data.bpe import END_OF_WORD, learn_merges
from anyorder.data.subwords import CONTINUES
from anyorder.errors import InputError

FILE = "tokenizer.json"
# The layout of XLM's dictionaries, in which <special1> is the mask.
SPECIALS = ("<s>", "</s>", "<pad>", "<unk>", "<special0>", "<mask>")
_SPECIAL = re.compile(r"<(s|/s|pad|unk|mask|special\d+)>")


class Vocabulary:
    """Subwords and their ids. Special tokens come first: the ids of all others are `first_word` and above.

    `size` is for tokenizers with more entries than their model has embeddings: ids from `size` on become <unk>.
    """

    def __init__(self, tokenizer: Tokenizer, size: int | None = None):
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        ordered = sorted(vocabulary, key=vocabulary.__getitem__)
        if [vocabulary[piece] for piece in ordered] != list(range(len(ordered))):
            raise InputError(f"{FILE}: the ids are not the numbers from 0 to {len(ordered) - 1}, each once")
        self._pieces = ordered[:size]
        self._has_surplus = len(self._pieces) < len(vocabulary)
        self.first_word = next((i for i, piece in enumerate(self._pieces) if not _SPECIAL.fullmatch(piece)), len(self))
        try:
            self.eos = vocabulary["</s>"]
            self.pad = vocabulary["<pad>"]
            self.unk = vocabulary["<unk>"]
            self.mask = vocabulary["<mask>"] if "<mask>" in vocabulary else vocabulary["<special1>"]
        except KeyError as missing:
            raise InputError(f"{FILE}: has no special token {missing}") from None
        if max(self.eos, self.pad, self.unk, self.mask) >= self.first_word:
            raise InputError(f"{FILE}: the special tokens must come before all others")

    @classmethod
    def learn(cls, counts: Mapping[str, int], size: int, min_character: int = 10) -> "Vocabulary":
        """A joint vocabulary of `size` entries. Characters seen fewer than `min_character` times become <unk>."""
        characters: Counter[str] = Counter()
        for word, count in counts.items():
            for character in word:
                characters[character] += count
        known = {character for character, count in characters.items() if count >= min_character}
        alphabet = sorted(known | {character + END_OF_WORD for character in known})
        if size < len(SPECIALS) + len(alphabet):
            raise InputError(
                f"a vocabulary of {size} is too small: {len(SPECIALS)} special tokens and {len(alphabet)} letters "
                "(inside and at the end of words) need entries"
            )
        spellable = {word: count for word, count in counts.items() if known.issuperset(word)}
        merges = learn_merges(spellable, alphabet, size - len(SPECIALS))
        pieces = [*SPECIALS, *alphabet]
        pieces += dict.fromkeys(left + right for left, right in merges)
        return cls.from_merges({piece: i for i, piece in enumerate(pieces)}, merges)

    @classmethod
    def from_merges(
        cls, vocabulary: dict[str, int], merges: Sequence[tuple[str, str]], size: int | None = None
    ) -> "Vocabulary":
        model = models.BPE(vocab=vocabulary, merges=list(merges), unk_token="<unk>", end_of_word_suffix=END_OF_WORD)
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return cls(tokenizer, size)

    @classmethod
    def load(cls, path: Path, size: int | None = None) -> "Vocabulary":
        """From a `tokenizer.json`, or a folder (a store, a model) that holds one."""
        file = path / FILE if path.is_dir() else path
        if not file.exists():
            raise InputError(f"{file}: no such file")
        try:
            return cls(Tokenizer.from_file(str(file)), size)
        except InputError:
            raise
        except Exception as error:  # tokenizers raises bare Exception
            raise InputError(f"{file}: not a tokenizer file ({error})") from None

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(self._tokenizer.to_str(), encoding="utf-8")

    def __len__(self) -> int:
        return len(self._pieces)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the tokenizer: vocabularies with the same fingerprint encode every text in the same way."""
        return hashlib.sha256(self._tokenizer.to_str().encode()).hexdigest()[:16]

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line of words, without delimiters."""
        encodings = self._tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)
        if self._has_surplus:
            size = len(self)
            return [[i if i < size else self.unk for i in encoding.ids] for encoding in encodings]
        return [encoding.ids for encoding in encodings]

    def words(self, ids: Iterable[int]) -> list[str]:
        """The words that the ids spell."""
        return "".join(self._pieces[i] for i in ids).replace(END_OF_WORD, " ").split()

    def ends_word(self, i: int) -> bool:
        """Whether this subword is the last one of its word."""
        return self._pieces[i].endswith(END_OF_WORD)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The subwords as text, with `@@` if the word continues."""
        return [self._show(self._pieces[i]) for i in ids]

    def _show(self, piece: str) -> str:
        if piece.endswith(END_OF_WORD):
            return piece.removesuffix(END_OF_WORD)
        return piece if _SPECIAL.fullmatch(piece) else piece + CONTINUES
