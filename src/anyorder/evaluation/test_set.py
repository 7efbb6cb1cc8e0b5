"""A test set: lines of a task, read for one model, and how that which is decoded from them is scored.

Evaluation, validation and `reproduce` decode and score in this way:

    test_set = read_test_set(decoder, sources, references)          # or stored_test_set(decoder, split)
    chosen = test_set.within(max_length=30)                         # indices; an InputError if there are none
    trajectories = test_set.decode(config, chosen)
    bleu = test_set.value(trajectories, chosen)                     # of the task's main metric
    score_systems({"margin": trajectories}, test_set.metrics(chosen), decoder.task.name)    # everything else
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from anyorder.data.line_problems import LineNote, Problem, clean_line, is_empty, join_notes, refuse
from anyorder.data.store import Split
from anyorder.data.text import Text
from anyorder.decoder import Decoder
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.evaluation.bleu import Bleu, ChrF, MosesScorer, SacreBLEUScorer, Scorer, default_tokenizer, make_scorer
from anyorder.evaluation.evaluate import References, reference_sets
from anyorder.evaluation.metrics import Exact, LogProbability, Metric, Recovered, Same, Tokens
from anyorder.evaluation.puzzles import puzzle_metrics
from anyorder.tasks import Example, Generate, Infill, PuzzleTask, Translation
from anyorder.tasks.masked import MASK_SHARE, MaskedLine, mask_lines
from anyorder.tasks.puzzles import read_puzzles
from anyorder.tasks.translation import Sentence, encode_sentences

NAMES = ("sources", "references")
UNUSABLE = np.iinfo(np.int64).max
"""The size of an example that cannot be scored."""


@dataclass(frozen=True)
class TestSet:
    """Examples of a decoder's task that can be scored."""

    __test__ = False  # not a test of pytest

    decoder: Decoder
    examples: Sequence[Example]
    sizes: np.ndarray
    """(examples,) int64: tokens of the longer side; `UNUSABLE` where it cannot be scored."""
    metrics: Callable[[Sequence[int]], list[Metric]]
    """How to score some of the examples, by their indices; the first metric is the main one."""
    problems: Sequence[Sequence[Problem]] = ()
    """Why each example is left out or changed; empty if nothing is known to be wrong."""
    references: Sequence[Sequence[str]] = ()
    """The lists of references, as plain text."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What messages call each side, such as the name of a file."""

    def within(self, max_length: int | None = None) -> list[int]:
        """The indices of the examples with at most that many tokens on both sides; an error if there are none."""
        found = np.flatnonzero(self.sizes <= (UNUSABLE - 1 if max_length is None else max_length)).tolist()
        if not found:
            sides = list(self.names.values())[:2]
            missing = "text" if max_length is None else f"at most {max_length} subwords"
            what = f"no pair has {missing} on both sides" if len(sides) > 1 else f"no line has {missing}"
            raise InputError(f"{' and '.join(sides)}: {what}")
        return found

    def notes(self, used: Iterable[int], strict: bool = False) -> list[LineNote]:
        """The lines that are left out or changed, except those beyond every length limit.

        used: the indices of the examples that are scored. strict: whether to raise an `InputError` at the first note.
        """
        scored = set(used)
        found = [i for i, one in enumerate(self.problems) if one and (i in scored or self.sizes[i] == UNUSABLE)]
        if strict:
            for i in found:
                refuse(self.problems[i], i + 1, self.names)
        return [LineNote(i + 1, join_notes(self.problems[i]), scored=i in scored) for i in found]

    def decode(
        self, config: DecodingConfig, indices: Iterable[int], on_progress: Callable[[int], None] = lambda lines: None
    ) -> list[Trajectory]:
        """Decode some of the examples."""
        return list(self.decoder.decode([self.examples[i] for i in indices], config, on_progress))

    def value(self, trajectories: Sequence[Trajectory], indices: Sequence[int]) -> float:
        """The main metric of some of the examples."""
        metric = self.metrics(indices)[0]
        return metric.value(metric.counts(trajectories).sum(0)) or 0.0


def read_test_set(
    decoder: Decoder,
    lines: Sequence[str],
    references: References | None = None,
    is_gold: bool = True,
    tokenize: str | Scorer | None = None,
    mask_share: float | None = None,
    seed: int = 1,
    names: Sequence[str] = NAMES,
    strict: bool = False,
) -> TestSet:
    """Read lines of any content as the decoder's task does.

    - Translations have references, and BLEU and chrF.
    - Puzzles may have solutions; without them, their rules decide whether they are solved.
    - Of texts to fill, a share of the tokens is masked at random, and what is counted is the tokens recovered.
    - Anything else has references, and is right if its text equals the reference.

    `lines` are the `sources` of `evaluate_orders`; what else is not listed is as there.

    Args:
        is_gold: Whether the references determine the lengths of translations.
        seed: Seed of the masks.
        names: What messages call the lines and each list of references, such as file names.
        strict: Whether to raise an `InputError` for a puzzle that would be left out; for others, see `TestSet.notes`.
    """
    task = decoder.task
    sets = [] if references is None else reference_sets(references)
    for one in sets:
        if len(lines) != len(one):
            raise InputError(f"{names[0]} has {len(lines):,} {task.unit}s but {names[1]} has {len(one):,}")
    for name, value, kind in (("tokenize", tokenize, Translation), ("mask_share", mask_share, Infill)):
        if value is not None and (not isinstance(task, kind) or isinstance(task, PuzzleTask | Generate)):
            raise InputError(f"is for {'translation' if kind is Translation else 'texts'}, not for {task.name}", name)
    if isinstance(task, Generate):
        raise InputError("generate: has no right answers to score; infill has", "task")
    if isinstance(task, PuzzleTask):
        return _puzzle_set(decoder, task, lines, sets, names, strict)
    if isinstance(task, Infill):
        if sets:
            raise InputError("are for other tasks: of texts, the masked tokens are the references", "references")
        share = MASK_SHARE if mask_share is None else mask_share
        return masked_test_set(decoder, mask_lines(decoder.model, lines, share, seed), share, names[0])
    if not sets:
        raise InputError(f"are missing: {task.name} is scored against them", "references")
    # Lists of references without a name get the last name.
    sides = {"source": names[0], **{_side(k): names[min(k + 1, len(names) - 1)] for k in range(len(sets))}}
    if isinstance(task, Translation):
        return _pairs(decoder, lines, sets, is_gold, tokenize, sides)
    examples = task.examples(decoder.model, lines, sets[0])

    def metrics(indices: Sequence[int]) -> list[Metric]:
        return [Same([sets[0][i] for i in indices])]

    sizes, problems = np.ones(len(lines), np.int64), [example.problems for example in examples]
    return TestSet(decoder, examples, sizes, metrics, problems, sets, sides)


def stored_test_set(decoder: Decoder, split: Split, rows: Sequence[int] | None = None) -> TestSet:
    """Pairs of a store that was prepared with the model's vocabulary; by default all pairs of the split.

    It holds only ids, so the references are the words that the ids spell.
    """
    model, direction = decoder.model, decoder.task.name
    languages = model.languages(direction)
    source, target = (split.sides[language] for language in languages)
    text, spell = Text(languages[1], model.config.text), model.vocabulary.words
    rows = range(len(source)) if rows is None else rows
    examples: list[Sentence] = []
    for i in rows:
        ids, length = np.asarray(source[i], np.int64), int(target.lengths[i])
        line = " ".join(spell(ids))
        fits = len(ids) <= model.max_length
        examples += [Sentence(line, ids, length)] if fits else encode_sentences(model, [line], direction, [length])
    words = [spell(np.asarray(target[i], np.int64)) for i in rows]
    references = [text.sentence(one) for one in words]
    sizes = np.array([_longer(source.lengths[i], target.lengths[i]) for i in rows], np.int64)
    tokenize = default_tokenizer(languages[1])
    is_moses = tokenize == "moses"
    scored = [" ".join(one) for one in words] if is_moses else references
    scorer = MosesScorer(list) if is_moses else SacreBLEUScorer(tokenize)

    def metrics(indices: Sequence[int]) -> list[Metric]:
        return [Bleu(scorer, [[scored[i] for i in indices]]), ChrF([[references[i] for i in indices]])]

    return TestSet(decoder, examples, sizes, metrics, references=[references], names={"source": split.name})


def _pairs(
    decoder: Decoder,
    lines: Sequence[str],
    sets: Sequence[Sequence[str]],
    is_gold: bool,
    tokenize: str | Scorer | None,
    sides: Mapping[str, str],
) -> TestSet:
    """Sentences and their translations. Gold lengths and length limits are those of the first list of references."""
    model = decoder.model
    target = model.languages(decoder.task.name)[1]
    cleaned = [[clean_line(text, _side(k)) for text in one] for k, one in enumerate(sets)]
    references = [[text for text, _ in one] for one in cleaned]
    words = {text: line for one in references for text, line in zip(one, model.words(one, target), strict=True)}
    lengths = [len(ids) for ids in model.vocabulary.encode([words[text] for text in references[0]])]
    examples = encode_sentences(model, lines, decoder.task.name, lengths if is_gold else None)
    problems = []
    for i, (example, length) in enumerate(zip(examples, lengths, strict=True)):
        empty = () if length else (is_empty(_side(0)),)
        problems.append((*example.problems, *empty, *(problem for one in cleaned for problem in one[i][1])))
    sizes = [_longer(len(example.ids), length) for example, length in zip(examples, lengths, strict=True)]
    scorer = make_scorer(tokenize or default_tokenizer(target), words)

    def metrics(indices: Sequence[int]) -> list[Metric]:
        chosen = [[one[i] for i in indices] for one in references]
        return [Bleu(scorer, chosen), ChrF(chosen)]

    return TestSet(decoder, examples, np.array(sizes, np.int64), metrics, problems, references, sides)


def _side(reference: int) -> str:
    """What notes call a list of references."""
    return "reference" if reference == 0 else f"reference {reference + 1}"


def _longer(source: int, target: int) -> int:
    return max(int(source), int(target)) if source and target else UNUSABLE


def _puzzle_set(
    decoder: Decoder, task: PuzzleTask, lines: Sequence[str], sets: list[list[str]], names: Sequence[str], strict: bool
) -> TestSet:
    """Puzzles, and their solutions if there are any. All have the same size."""
    if len(sets) > 1:
        raise InputError("must be one list: a puzzle has one solution", "references")
    read = read_puzzles(task, lines, sets[0] if sets else None, names, strict)
    sizes = np.array([UNUSABLE if problem else task.cells for problem in read.problems])
    problems = [(problem,) if problem else () for problem in read.problems]
    examples = task.examples(decoder.model, lines)
    metrics = partial(puzzle_metrics, task, read)
    return TestSet(decoder, examples, sizes, metrics, problems, sets, {"source": names[0]})


def masked_test_set(
    decoder: Decoder, lines: Sequence[MaskedLine], share: float | None = None, name: str = NAMES[0]
) -> TestSet:
    """Texts of which a share of the tokens is masked. name: what messages call them."""
    targets = [decoder.model.to_tokens(line.ids[line.masked]) for line in lines]

    def metrics(indices: Sequence[int]) -> list[Metric]:
        chosen = [targets[i] for i in indices]
        return [Recovered(chosen, share), Exact(chosen), LogProbability(), Tokens()]

    examples = [line.example for line in lines]
    sizes = np.array([len(line.ids) if line.example.can_fill else UNUSABLE for line in lines], np.int64)
    problems = [example.problems for example in examples]
    return TestSet(decoder, examples, sizes, metrics, problems, names={"source": name})
