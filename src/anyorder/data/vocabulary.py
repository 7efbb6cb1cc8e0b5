"""Turn words into subword ids and back: byte-pair encoding, run by `tokenizers`, kept in one `tokenizer.json`.

The file is written when a vocabulary is learned and copied unchanged into every store and model made with it. The
trainer inside `tokenizers` breaks ties in an order that depends on its threads, so merges (Sennrich et al. 2016) are
learned here: equal counts give equal merges on any machine. Knows nothing of raw text.
"""

import hashlib
import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from anyorder.errors import InputError

FILE = "tokenizer.json"
# The layout of XLM's dictionaries, in which <special1> is the mask.
SPECIALS = ("<s>", "</s>", "<pad>", "<unk>", "<special0>", "<mask>")
END_OF_WORD = "</w>"
CONTINUES = "@@"
"""Ends a readable subword if its word continues."""
MIN_FREQUENCY = 2
"""A pair that occurs less often is not merged."""
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
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises bare Exception
            raise InputError(f"{file}: not a tokenizer file ({error})") from None
        return cls(tokenizer, size)

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


def spell(word: str) -> list[str]:
    """The characters of a word, the last one carrying the end-of-word mark."""
    return [*word[:-1], word[-1] + END_OF_WORD]


def balance_languages(by_language: Mapping[str, Mapping[str, int]], alpha: float) -> Counter[str]:
    """The count of each word when merges are learned jointly for all languages.

    As in XLM (Lample & Conneau 2019, section 3.1), a language with a share p of all words gets a share proportional to
    p^alpha: 1 leaves the counts unchanged, 0 gives all languages equal weight. The largest language keeps its counts.
    With 1, the words of small languages are split into many pieces.
    """
    totals = {language: sum(counts.values()) for language, counts in by_language.items()}
    balanced: Counter[str] = Counter()
    for language, counts in by_language.items():
        scale = (max(totals.values()) / max(1, totals[language])) ** (1 - alpha)
        for word, count in counts.items():
            balanced[word] += round(scale * count)
    return balanced


def learn_merges(counts: Mapping[str, int], alphabet: Iterable[str], size: int) -> list[tuple[str, str]]:
    """Merge the most frequent pair of symbols until the alphabet has grown to `size` symbols.

    Each pair is counted after all earlier ones were merged; ties go to the lexicographically smallest. Learning
    stops early when no pair occurs twice. The alphabet must cover every word.
    """
    # A symbol is a small int and a pair is one int, `left << _SHIFT | right`: dictionary lookups dominate the cost.
    symbols: list[str] = sorted(alphabet)
    number = {symbol: i for i, symbol in enumerate(symbols)}
    words: list[list[int]] = []
    weights: list[int] = []
    for word in sorted(counts):
        if len(word) > 1:
            words.append([number[symbol] for symbol in spell(word)])
            weights.append(counts[word])

    frequency: dict[int, int] = defaultdict(int)
    occurs_in: dict[int, list[int]] = defaultdict(list)
    for i, word_symbols in enumerate(words):
        weight = weights[i]
        for left, right in pairwise(word_symbols):
            pair = left << _SHIFT | right
            frequency[pair] += weight
            occurs_in[pair].append(i)

    def entry(pair: int) -> tuple[int, str, str, int]:
        return -frequency[pair], symbols[pair >> _SHIFT], symbols[pair & _LOW], pair

    # The heap holds stale entries; one is valid only if its count is still the pair's count.
    heap = [entry(pair) for pair in frequency]
    heapq.heapify(heap)
    learned: list[tuple[str, str]] = []
    while heap and len(symbols) < size:
        negative, left_symbol, right_symbol, pair = heapq.heappop(heap)
        count = frequency.get(pair, 0)
        if count != -negative:
            if count >= MIN_FREQUENCY:
                heapq.heappush(heap, entry(pair))
            continue
        if count < MIN_FREQUENCY:
            break
        learned.append((left_symbol, right_symbol))
        merged = number.get(left_symbol + right_symbol)
        if merged is None:  # "a bc" may produce the same symbol as "ab c" did before
            merged = number[left_symbol + right_symbol] = len(symbols)
            symbols.append(left_symbol + right_symbol)
        grown = _merge_everywhere(pair, merged, words, weights, frequency, occurs_in)
        for changed in grown:
            if frequency[changed] >= MIN_FREQUENCY:
                heapq.heappush(heap, entry(changed))
    return learned


_SHIFT = 24
_LOW = (1 << _SHIFT) - 1


def _merge_everywhere(
    pair: int,
    merged: int,
    words: list[list[int]],
    weights: list[int],
    frequency: dict[int, int],
    occurs_in: dict[int, list[int]],
) -> set[int]:
    """Replace `pair` by the symbol `merged` in every word, update the counts, and return the pairs that grew."""
    left, right = pair >> _SHIFT, pair & _LOW
    grown: set[int] = set()
    previous_word = -1
    for i in occurs_in.pop(pair):
        if i == previous_word:  # a word is listed once per occurrence, consecutively
            continue
        previous_word = i
        old = words[i]
        size = len(old)
        new: list[int] = []
        at = 0
        while at < size:
            symbol = old[at]
            if symbol == left and at + 1 < size and old[at + 1] == right:
                new.append(merged)
                at += 2
            else:
                new.append(symbol)
                at += 1
        if len(new) == size:  # an earlier merge consumed these symbols
            continue
        words[i] = new
        weight = weights[i]
        for before, symbol in pairwise(old):
            frequency[before << _SHIFT | symbol] -= weight
        for before, symbol in pairwise(new):
            key = before << _SHIFT | symbol
            frequency[key] += weight
            if symbol == merged or before == merged:
                occurs_in[key].append(i)
                grown.add(key)
    frequency.pop(pair, None)
    return grown


def join_subwords(tokens: Sequence[str]) -> tuple[list[str], list[int]]:
    """Join subwords, which end in `@@` if the word continues; also returns each subword's word index.

    >>> join_subwords(["Aff@@", "le@@", "x", "'s", "film"])
    (['Afflex', "'s", 'film'], [0, 0, 0, 1, 2])
    """
    words: list[str] = []
    word_of: list[int] = []
    goes_on = False
    for token in tokens:
        if not goes_on:
            words.append("")
        goes_on = token.endswith(CONTINUES) and len(token) > len(CONTINUES)
        words[-1] += token[: -len(CONTINUES)] if goes_on else token
        word_of.append(len(words) - 1)
    return words, word_of
