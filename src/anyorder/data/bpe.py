"""Learn byte-pair merges (Sennrich et al. 2016); equal counts give equal merges on any machine.

The trainer inside `tokenizers` breaks ties in an order that depends on its threads, so the merges are learned here and
loaded into it; `vocabulary.py` does that. Nothing here knows about files or ids.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

END_OF_WORD = "</w>"


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


def learn_merges(
    counts: Mapping[str, int], alphabet: Iterable[str], size: int, min_frequency: int = 2
) -> list[tuple[str, str]]:
    """Merge the most frequent pair of symbols until the alphabet has grown to `size` symbols.

    Each pair is counted after all earlier ones were merged; ties go to the lexicographically smallest. Learning
    stops early when no pair occurs `min_frequency` times. The alphabet must cover every word.
    """
    # A symbol is a small int and a pair is one int, `left << SHIFT | right`: dictionary lookups dominate the cost.
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
        left = word_symbols[0]
        for right in word_symbols[1:]:
            pair = left << SHIFT | right
            frequency[pair] += weight
            occurs_in[pair].append(i)
            left = right

    def entry(pair: int) -> tuple[int, str, str, int]:
        return -frequency[pair], symbols[pair >> SHIFT], symbols[pair & LOW], pair

    # The heap holds stale entries; one is valid only if its count is still the pair's count.
    heap = [entry(pair) for pair in frequency]
    heapq.heapify(heap)
    learned: list[tuple[str, str]] = []
    while heap and len(symbols) < size:
        negative, left_symbol, right_symbol, pair = heapq.heappop(heap)
        count = frequency.get(pair, 0)
        if count != -negative:
            if count >= min_frequency:
                heapq.heappush(heap, entry(pair))
            continue
        if count < min_frequency:
            break
        learned.append((left_symbol, right_symbol))
        merged = number.get(left_symbol + right_symbol)
        if merged is None:  # "a bc" may produce the same symbol as "ab c" did before
            merged = number[left_symbol + right_symbol] = len(symbols)
            symbols.append(left_symbol + right_symbol)
        grown = _merge_everywhere(pair, merged, words, weights, frequency, occurs_in)
        for changed in grown:
            if frequency[changed] >= min_frequency:
                heapq.heappush(heap, entry(changed))
    return learned


SHIFT = 24
LOW = (1 << SHIFT) - 1


def _merge_everywhere(
    pair: int,
    merged: int,
    words: list[list[int]],
    weights: list[int],
    frequency: dict[int, int],
    occurs_in: dict[int, list[int]],
) -> set[int]:
    """Replace `pair` by the symbol `merged` in every word, update the counts, and return the pairs that grew."""
    left, right = pair >> SHIFT, pair & LOW
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
        before = old[0]
        for symbol in old[1:]:
            frequency[before << SHIFT | symbol] -= weight
            before = symbol
        before = new[0]
        for symbol in new[1:]:
            key = before << SHIFT | symbol
            frequency[key] += weight
            if symbol == merged or before == merged:
                occurs_in[key].append(i)
                grown.add(key)
            before = symbol
    frequency.pop(pair, None)
    return grown
