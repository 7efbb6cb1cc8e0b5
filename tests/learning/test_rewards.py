"""Every reward against sacreBLEU or a plain loop, on whole sentences and on the partial ones of every step."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor

from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError
from anyorder.learning import rewards
from anyorder.learning.rewards import CorpusBleu, Outcome, Reward, make_reward

SMALL = Vocabulary.learn(dict.fromkeys("abcé", 50) | {"abba": 9, "abbe": 7, "cab": 5}, 30)
NAMES = ["bleu", "bleu-add-one", "bleu-paper", "chrf", "edit-distance", "likelihood"]
HOLE = -1

# ids, reference, step of every position, log-probability of every position
Sentence = tuple[list[int], list[int], list[int], list[float]]


def draw_steps(length: int, at_once: int, random_: random.Random) -> list[int]:
    """A random order in which every step fills one to `at_once` positions."""
    positions = random_.sample(range(length), length)
    steps, step = [0] * length, 0
    while positions:
        step += 1
        for _ in range(min(len(positions), random_.randint(1, at_once))):
            steps[positions.pop()] = step
    return steps


@st.composite
def sentences(draw: st.DrawFn) -> list[Sentence]:
    """Few kinds of tokens (of `SMALL`, among them <unk>), so that they repeat; lengths from 1 to 12."""
    kinds = draw(st.lists(st.integers(SMALL.unk, len(SMALL) - 1), min_size=1, max_size=4, unique=True))
    tokens = st.lists(st.sampled_from(kinds), min_size=1, max_size=12)
    random_ = random.Random(draw(st.integers(0, 999)))
    made: list[Sentence] = []
    for ids, reference in draw(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=4)):
        steps = draw_steps(len(ids), random_.randint(1, 3), random_)
        made.append((ids, reference, steps, [-3 * random_.random() for _ in ids]))
    return made


def outcome(batch: Sequence[Sentence], junk: int = 0, extra: int = 0) -> Outcome:
    """The batch as tensors, what lies behind the ends drawn from the seed `junk`, `extra` columns more than needed."""
    random_ = random.Random(junk)

    def padded(rows: Sequence[Sequence[float]], fill: Callable[[], float]) -> Tensor:
        width = max(map(len, rows)) + extra
        return torch.tensor([[*row, *(fill() for _ in range(width - len(row)))] for row in rows])

    ids, references, steps, logprobs = (list(column) for column in zip(*batch, strict=True))
    return Outcome(
        ids=padded(ids, lambda: random_.choice([0, 5, 6, 7, 8, -1, -100, 10**6])),
        lengths=torch.tensor([len(row) for row in ids]),
        references=padded(references, lambda: random_.choice([0, 5, 6, 7, 8, -1, -100, 10**6])),
        reference_lengths=torch.tensor([len(row) for row in references]),
        steps=padded(steps, lambda: random_.randint(0, 99)),
        logprobs=padded(logprobs, lambda: random_.choice([0.0, -1.0, math.nan, -math.inf])),
        languages=torch.zeros(len(ids), dtype=torch.int64),
    )


def plain_distance(a: Sequence[int], b: Sequence[int]) -> int:
    table = [[i + j if i * j == 0 else 0 for j in range(len(b) + 1)] for i in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = min(table[i][j + 1] + 1, table[i + 1][j] + 1, table[i][j] + (x != y))
    return table[-1][-1]


def add_one_bleu(ids: Sequence[int], reference: Sequence[int]) -> float:
    """Geometric mean of (matches + 1) / (n-grams + 1) over four orders, times the brevity penalty."""
    product = 1.0
    for n in range(1, 5):
        grams, reference_grams = (
            Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)) for tokens in (ids, reference)
        )
        product *= (sum((grams & reference_grams).values()) + 1) / (sum(grams.values()) + 1)
    return product**0.25 * math.exp(min(0.0, 1 - len(reference) / len(ids)))


def paper_bleu(ids: Sequence[int], reference: Sequence[int]) -> float:
    """Section 4's reward in the public code, on lower-cased subwords: 0 without a common one, else smoothed by one."""
    hypothesis, expected = ([str(i) if i == HOLE else lower(i) for i in tokens] for tokens in (ids, reference))
    product = 1.0
    for n in range(1, 5):
        grams, reference_grams = (
            Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)) for tokens in (hypothesis, expected)
        )
        matches = sum((grams & reference_grams).values())
        if n == 1 and not matches:
            return 0.0
        product *= (matches + 1) / (max(1, sum(grams.values())) + 1)
    return product**0.25 * math.exp(min(0.0, 1 - len(reference) / len(ids)))


def lower(i: int) -> str:
    return SMALL.pieces([i])[0].lower()


def plain(name: str, ids: Sequence[int], reference: Sequence[int], logprobs: Sequence[float]) -> float:
    """The reward of one sentence, which may have holes."""
    if name == "bleu":
        texts = (" ".join(map(str, tokens)) for tokens in (ids, reference))
        metric = BLEU(tokenize="none", smooth_method="exp", effective_order=True)
        return metric.sentence_score(next(texts), [next(texts)]).score / 100
    if name == "bleu-add-one":
        return add_one_bleu(ids, reference)
    if name == "bleu-paper":
        return paper_bleu(ids, reference)
    if name == "chrf":
        texts = (" ".join(SMALL.words(i for i in tokens if i != HOLE)) for tokens in (ids, reference))
        return CHRF().sentence_score(next(texts), [next(texts)]).score / 100
    if name == "edit-distance":
        return -plain_distance(ids, reference)
    assert name == "likelihood"
    return math.exp(sum(logprobs) / len(logprobs))


def plain_scores(name: str, sentence: Sentence) -> list[float]:
    """Before the first step, after it, ..., after the last."""
    ids, reference, steps, logprobs = sentence
    scores = []
    for now in range(max(steps) + 1):
        filled = [step <= now for step in steps]
        partial = [token if there else HOLE for token, there in zip(ids, filled, strict=True)]
        scores.append(plain(name, partial, reference, [p * there for p, there in zip(logprobs, filled, strict=True)]))
    return scores


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(batch=sentences(), junk=st.integers(0, 99))
def test_finished_sentences(name: str, batch: list[Sentence], junk: int) -> None:
    found = make_reward(name, SMALL).final(outcome(batch, junk))
    assert found.dtype == torch.float32
    expected = [plain(name, ids, reference, logprobs) for ids, reference, _, logprobs in batch]
    assert found.tolist() == pytest.approx(expected, abs=1e-6, rel=0)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(batch=sentences())
def test_steps_against_partial_sentences_one_by_one(name: str, batch: list[Sentence]) -> None:
    found = make_reward(name, SMALL).each_step(outcome(batch))
    assert found.dtype == torch.float32
    for row, sentence in zip(found.tolist(), batch, strict=True):
        scores = plain_scores(name, sentence)
        changes = [after - before for before, after in pairwise(scores)]
        assert row == pytest.approx(changes + [0] * (len(row) - len(changes)), abs=2e-6, rel=0)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=30)
@given(batch=sentences())
def test_steps_add_up(name: str, batch: list[Sentence]) -> None:
    reward = make_reward(name, SMALL)
    start = [plain(name, [HOLE] * len(ids), reference, [0.0] * len(ids)) for ids, reference, _, _ in batch]
    expected = reward.final(outcome(batch)) - torch.tensor(start)
    assert reward.each_step(outcome(batch)).sum(1).tolist() == pytest.approx(expected.tolist(), abs=5e-6, rel=0)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=30)
@given(batch=sentences(), extra=st.integers(0, 5))
def test_nothing_behind_the_ends_matters(name: str, batch: list[Sentence], extra: int) -> None:
    reward, some, other = make_reward(name, SMALL), outcome(batch, junk=1), outcome(batch, junk=2, extra=extra)
    torch.testing.assert_close(reward.final(some), reward.final(other), atol=1e-6, rtol=0)
    wide = reward.each_step(other)
    torch.testing.assert_close(reward.each_step(some), wide[:, : some.ids.shape[1]], atol=1e-6, rtol=0)
    last = torch.tensor([max(steps) for _, _, steps, _ in batch])
    assert wide[torch.arange(wide.shape[1]) >= last[:, None]].count_nonzero() == 0


class Drifting(Reward):
    """No two scores are alike, not even of the same sentence."""

    def final(self, outcome: Outcome) -> Tensor:
        return torch.arange(len(outcome.ids)).float()


def test_rounding_is_no_reward_behind_the_last_step() -> None:
    batch = outcome([([7, 8, 7], [7], [1, 2, 1], [-1.0] * 3), ([7], [7], [1], [-1.0])], extra=2)
    assert Drifting().each_step(batch).tolist() == [[1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]


def by_hand() -> Outcome:
    """6 7 8 for 6 7 9 9, the middle first and then both ends at once; 7 for 7, with a position of padding."""
    logprobs = [math.log(p) for p in (0.5, 0.25, 1.0)]
    return outcome([([6, 7, 8], [6, 7, 9, 9], [2, 1, 2], logprobs), ([7], [7], [1], [math.log(0.3)])])


HAND = {
    # Precisions 2/3, 1/2 and, smoothed, 1/2, brevity e^(1 - 4/3). With 7 alone: 1/3, 1/(2 * 2), 1/(4 * 1).
    "bleu": [
        [math.exp(-1 / 3) * p ** (1 / 3) for p in (1 / 48, 1 / 6)],
        [1.0],
    ],
    # Precisions (2 + 1) / (3 + 1), (1 + 1) / (2 + 1), 1 / 2 and 1 / 1. With 7 alone: 2 / 4, 1 / 3, 1 / 2, 1 / 1.
    "bleu-add-one": [
        [math.exp(-1 / 3) * p ** (1 / 4) for p in (1 / 12, 1 / 4)],
        [1.0],
    ],
    # The same, but three words have no four in a row: (0 + 1) / (1 + 1). With 7 alone: 2 / 4, 1 / 3, 1 / 2, 1 / 2. One
    # word alone, right: 2 / 2 and three times 1 / 2.
    "bleu-paper": [
        [math.exp(-1 / 3) * p ** (1 / 4) for p in (1 / 24, 1 / 8)],
        [(1 / 8) ** (1 / 4)],
    ],
    # Everything wrong at first: 4 edits. 7 in its place: 3. Both ends, one of them right: 2.
    "edit-distance": [[-3, -2], [0]],
    "likelihood": [[0.25 ** (1 / 3), 0.5], [0.3]],
}
# Holes alone: 1 / 4, 1 / 3, 1 / 2 with the brevity penalty; 1 / 2.
ADD_ONE_START = [math.exp(-1 / 3) * (1 / 24) ** (1 / 4), (1 / 2) ** (1 / 4)]
START = {
    "bleu": [0.0, 0.0],
    "bleu-add-one": ADD_ONE_START,
    "bleu-paper": [0, 0],
    "edit-distance": [-4, -1],
    "likelihood": [1.0, 1.0],
}


@pytest.mark.parametrize("name", HAND)
def test_by_hand(name: str) -> None:
    reward = make_reward(name, SMALL)
    (first, second), (only,) = HAND[name]
    assert reward.final(by_hand()).tolist() == pytest.approx([second, only])
    steps = [[first - START[name][0], second - first, 0], [only - START[name][1], 0, 0]]
    assert reward.each_step(by_hand()).tolist() == [pytest.approx(row, abs=1e-6) for row in steps]


def test_the_papers_bleu_knows_no_case() -> None:
    words = Vocabulary.learn({"The": 20, "the": 20, "THE": 20, "dog": 20, "Dog": 20}, 100, min_character=1)
    ids, reference = (words.encode([text])[0] for text in ("The dog the Dog", "the Dog THE dog"))
    assert len(ids) == 4
    made = outcome([(ids, reference, [1, 2, 3, 4], [0.0] * 4)])
    assert make_reward("bleu-paper", words).final(made).tolist() == [1.0]
    assert make_reward("bleu-add-one", words).final(made).tolist() < [1.0]
    other = outcome([(words.encode(["The dog"])[0] * 2, words.encode(["the the"])[0], [1, 2, 3, 4], [0.0] * 4)])
    # Two of four words, no pair: 3 / 5, 1 / 4, 1 / 3, 1 / 2; longer than the reference.
    assert make_reward("bleu-paper", words).final(other).tolist() == pytest.approx([(1 / 40) ** (1 / 4)])


def test_chrf_by_hand() -> None:
    """`abc` for `abab`: 2 of 3 letters, 1 of 2 pairs and 0 of 1 triples; recall out of 4, 3 and 2."""
    ids, reference = SMALL.encode(["abc"])[0], SMALL.encode(["abab"])[0]
    precision, recall = (2 / 3 + 1 / 2) / 3, (2 / 4 + 1 / 3) / 3
    found = make_reward("chrf", SMALL).final(outcome([(ids, reference, [1] * len(ids), [0.0] * len(ids))]))
    assert found.tolist() == pytest.approx([5 * precision * recall / (4 * precision + recall)])


def drawn(count: int) -> Outcome:
    random_ = random.Random(5)
    lengths = [(random_.randint(1, 9), random_.randint(1, 9)) for _ in range(count)]
    return outcome(
        [
            (
                random_.choices(range(6, 10), k=n),
                random_.choices(range(6, 10), k=m),
                draw_steps(n, 2, random_),
                [-1.0] * n,
            )
            for n, m in lengths
        ]
    )


@pytest.mark.parametrize("name", NAMES)
def test_in_small_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: no table grows with sentences and steps, and the result is the same."""
    reward, batch = make_reward(name, SMALL), drawn(20)
    final, steps = reward.final(batch), reward.each_step(batch)
    sizes: list[int] = []
    whole = type(reward).final

    def watched(self: Reward, outcome: Outcome) -> Tensor:
        sizes.append(len(outcome.ids))
        return whole(self, outcome)

    monkeypatch.setattr(type(reward), "final", watched)
    monkeypatch.setattr(rewards, "ELEMENTS", 40 * (batch.ids.shape[1] + batch.references.shape[1]))
    torch.testing.assert_close(reward.each_step(batch), steps)
    assert max(sizes) == 40
    torch.testing.assert_close(reward.final(batch), final)


def test_chrf_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, widths, ngram_matches = drawn(20), [], rewards.ngram_matches

    def watched(ids: Tensor, lengths: Tensor, references: Tensor, reference_lengths: Tensor, max_order: int) -> Tensor:
        widths.append(ids.numel() + references.numel())
        return ngram_matches(ids, lengths, references, reference_lengths, max_order)

    monkeypatch.setattr(rewards, "ngram_matches", watched)
    monkeypatch.setattr(rewards, "ELEMENTS", 500)
    make_reward("chrf", SMALL).final(batch)
    assert len(widths) > 1
    assert max(widths) <= 500


@pytest.mark.parametrize("name", [*NAMES, "corpus-bleu"])
def test_the_host_never_waits(name: str) -> None:
    """Tensors of the meta device have no values: whoever asks for one fails."""
    batch, reward = drawn(3), make_reward(name, SMALL)
    nowhere = Outcome(**{field.name: getattr(batch, field.name).to("meta") for field in fields(batch)})
    assert reward.final(nowhere).shape == (3,)
    steps = reward.each_step(nowhere)
    assert (steps.shape, steps.dtype, steps.device.type) == (batch.ids.shape, torch.float32, "meta")


@pytest.mark.parametrize(("name", "near"), [("blue", "bleu"), ("edit", "edit-distance"), ("chrF", "chrf")])
def test_unknown_names(name: str, near: str) -> None:
    known = "bleu, bleu-add-one, bleu-paper, corpus-bleu, chrf, edit-distance, likelihood, accuracy, exact-match"
    with pytest.raises(InputError) as error:
        make_reward(name, SMALL)
    assert str(error.value) == f"unknown reward '{name}': did you mean '{near}'? (known: {known})"


def as_words(ids: Sequence[int], vocabulary: Vocabulary) -> str:
    """Subword numbers joined to words: two words are equal if their subwords are."""
    spelled = "".join(f"{i}{' ' if vocabulary.ends_word(i) else '+'}" for i in ids)
    return spelled.strip().removesuffix("+")


def many(count: int, vocabulary: Vocabulary, seed: int) -> tuple[Outcome, list[str], list[str]]:
    """Sentences that share much with their references, and both as lines of words."""
    draw = random.Random(seed)
    rows, references = [], []
    for _ in range(count):
        reference = [draw.randrange(6, len(vocabulary)) for _ in range(draw.randint(3, 14))]
        rows.append([i if draw.random() < 0.8 else draw.randrange(6, len(vocabulary)) for i in reference])
        references.append(reference)
    lengths = torch.tensor([len(row) for row in rows])
    padded = [
        torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in some], True, 3) for some in (rows, references)
    ]
    steps, logprobs = torch.ones_like(padded[0]), torch.zeros(padded[0].shape)
    batch = Outcome(padded[0], lengths, padded[1], lengths, steps, logprobs, torch.zeros_like(lengths))
    return batch, [as_words(row, vocabulary) for row in rows], [as_words(row, vocabulary) for row in references]


def corpus(lines: list[str], references: list[str]) -> float:
    return BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(lines, [references]).score / 100


@pytest.mark.parametrize("seed", range(4))
def test_corpus_bleu_is_shared_out_among_its_sentences(vocabulary: Vocabulary, seed: int) -> None:
    reward = make_reward("corpus-bleu", vocabulary)
    made, lines, references = many(400, vocabulary, seed)
    shares = reward.final(made)
    assert float(shares.mean()) == pytest.approx(corpus(lines, references), abs=1e-6)
    # Other translations of some sentences: the score changes by what their shares do.
    other, other_lines, _ = many(400, vocabulary, seed)
    changed = random.Random(seed).sample(range(400), 8)
    for i in changed:
        n = int(made.lengths[i])
        other.ids[i, :n] = made.references[i, :n] if i % 2 else other.ids[i, :n].flip(0)
        other_lines[i] = as_words(other.ids[i, :n].tolist(), vocabulary)
    gained = corpus(other_lines, references) - corpus(lines, references)
    both = Outcome(*(torch.cat([getattr(made, name), getattr(other, name)]) for name in Outcome.__dataclass_fields__))
    judged = reward.final(both).view(2, 400)
    expected = float((judged[1] - judged[0]).sum()) / 400
    assert abs(expected) > 1e-3
    assert gained == pytest.approx(expected, rel=0.1)


def test_corpus_bleu_sees_words_and_brevity(vocabulary: Vocabulary) -> None:
    reward = make_reward("corpus-bleu", vocabulary)
    assert isinstance(reward, CorpusBleu)
    inner, last = (
        next(i for i in range(6, len(vocabulary)) if vocabulary.ends_word(i) is ends) for ends in (False, True)
    )
    words, counts = reward.words(
        torch.tensor([[inner, last, last, inner, last, 0], [last, inner, inner, 0, 0, 0]]), torch.tensor([5, 3])
    )
    assert counts.tolist() == [3, 2]  # a word that the sentence breaks off is one, too
    assert words[0, 0] == words[0, 2] != words[0, 1] == words[1, 0]
    assert len({int(word) for word in words[1, :2]} | {int(words[0, 0])}) == 3
