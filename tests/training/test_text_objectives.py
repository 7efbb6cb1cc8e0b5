"""Batches and losses of masked translation and of masked language modeling."""

import itertools
import math
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anyorder.data.store import Store
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError
from anyorder.models.native.attention import FullAttention, Segments, SourceIsolated
from anyorder.models.native.transformer import TransformerConfig
from anyorder.models.native.translation_model import offset_class
from anyorder.training.mlm_objective import MLMConfig, MLMObjective
from anyorder.training.objective import IGNORED, HostBatch
from anyorder.training.run_folder import Cursor
from anyorder.training.train import new_model
from anyorder.training.translation_objective import (
    MaskingConfig,
    TranslationObjective,
    smoothed_cross_entropy,
)
from tests.conftest import tiny
from tests.stores import write_store

TOKENS = 1000


def task_for(store: Store, fixed: bool = False, **shape: object) -> TranslationObjective:
    model = tiny(store.vocabulary, **shape)
    return TranslationObjective(store, model, MaskingConfig(label_smoothing=0.1), TOKENS, 1, fixed)


def loss_of(objective: TranslationObjective | MLMObjective, batch: HostBatch) -> list[float]:
    arrays = {name: torch.from_numpy(array) for name, array in batch.arrays.items()}
    names = [name.removesuffix("_cu_seqlens") for name in arrays if name.endswith("_cu_seqlens")]
    lengths = batch.lengths or {name: np.diff(batch.arrays[f"{name}_cu_seqlens"]) for name in names}
    return objective.module.eval()(arrays, batch.longest, lengths)[1].tolist()


def first_batch(objective: TranslationObjective | MLMObjective) -> HostBatch:
    return next(objective.batches(Cursor(), 0, 0, 1))[0]


def pairs_of(batch: HostBatch) -> list[slice]:
    offsets = batch.arrays["row_cu_seqlens"]
    return [slice(a, b) for a, b in itertools.pairwise(offsets)]


def test_a_batch_holds_whole_pairs_with_part_of_the_target_masked(store: Store) -> None:
    objective = task_for(store)
    batch = first_batch(objective)
    arrays, vocabulary = batch.arrays, store.vocabulary
    original = arrays["tokens"].copy()
    assert (original[arrays["predicted"]] == vocabulary.mask).all()
    original[arrays["predicted"]] = arrays["labels"]
    split = store.split("train")
    known = {
        (tuple(split.sides[a][i]), tuple(split.sides[b][i])) for a, b in (("de", "en"), ("en", "de"))
        for i in range(len(split))
    }  # fmt: skip
    directions = set()
    for pair in pairs_of(batch):
        tokens, target = original[pair], arrays["is_target"][pair]
        source, translation = tokens[~target], tokens[target]
        assert source[0] == source[-1] == translation[0] == translation[-1] == vocabulary.eos
        assert (tuple(source[1:-1]), tuple(translation[1:-1])) in known
        assert arrays["positions"][pair].tolist() == [*range(len(source)), *range(len(translation))]
        languages = arrays["languages"][pair]
        assert len(set(languages[~target])) == len(set(languages[target])) == 1
        directions.add((languages[0], languages[-1]))
        assert (arrays["tokens"][pair][~target] != vocabulary.mask).all()
        assert (arrays["tokens"][pair][target] == vocabulary.mask).any()
    assert directions == {(0, 1), (1, 0)}
    assert batch.tokens == len(original) <= TOKENS
    assert batch.predicted == len(arrays["labels"])


def soft_labels(labels: torch.Tensor, vocab_size: int, smoothing: float, first_word: int) -> torch.Tensor:
    """What the model should predict, written out: (N, vocab_size), rows add up to 1."""
    soft = torch.zeros(len(labels), vocab_size)
    soft[:, first_word:] = smoothing / (vocab_size - first_word)
    soft[torch.arange(len(labels)), labels] += 1 - smoothing
    return soft


def test_smoothing_by_hand() -> None:
    """Two special tokens and three words of probabilities 1/10, 1/10, 2/10, 4/10, 2/10; the label is the first word."""
    logits = torch.tensor([[1.0, 1.0, 2.0, 4.0, 2.0], [9.0, 1.0, 1.0, 1.0, 1.0]]).log().requires_grad_()
    loss = smoothed_cross_entropy(logits, torch.tensor([2, IGNORED]), 0.3, first_word=2)
    assert loss.item() == pytest.approx(-0.7 * math.log(0.2) - 0.1 * (math.log(0.2) + math.log(0.4) + math.log(0.2)))
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([0.1, 0.1, 0.2 - 0.8, 0.4 - 0.1, 0.2 - 0.1])
    assert logits.grad[1].tolist() == [0] * 5


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothing_leaves_special_tokens_to_the_plain_loss(smoothing: float) -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(7, 20), torch.randint(6, 20, (7,))
    labels[3] = 3  # <unk> may be a label; it gets no mass but its own
    soft = soft_labels(labels, 20, smoothing, 6)
    labels = torch.cat([labels, torch.tensor([IGNORED] * 2)])
    logits = torch.cat([logits, torch.randn(2, 20)]).requires_grad_()
    loss = smoothed_cross_entropy(logits, labels, smoothing, 6)
    expected = -(soft * logits[:7].log_softmax(1)).sum(1).mean()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    (smoothed,) = torch.autograd.grad(loss, logits)
    (plain,) = torch.autograd.grad(F.cross_entropy(logits, labels, ignore_index=IGNORED), logits)
    others = labels != 3
    assert torch.allclose(smoothed[others, :6], plain[others, :6], atol=1e-7)
    assert torch.allclose(smoothed[:7], (logits[:7].softmax(1) - soft) / 7, atol=1e-7)


@pytest.mark.parametrize("together", [False, True])
def test_the_loss_is_that_of_one_pair_after_the_other(store: Store, together: bool) -> None:
    objective = task_for(store, source_sees_target=together)
    batch, model = first_batch(objective), objective.learner.eval()
    arrays = {name: torch.from_numpy(array) for name, array in batch.arrays.items()}
    label_at = torch.full_like(arrays["tokens"], IGNORED)
    label_at[arrays["predicted"]] = arrays["labels"]
    words, lengths = [], []
    with torch.no_grad():
        for pair in pairs_of(batch):
            target = arrays["is_target"][pair]
            sizes = np.array([int((~target).sum()), int(target.sum())])
            whole, halves = Segments.of(sizes.sum(keepdims=True)), Segments.of(sizes)
            pattern = FullAttention(whole) if together else SourceIsolated(whole, halves, target)
            inputs = [arrays[name][pair] for name in ("tokens", "positions", "languages")]
            logits = model.logits(model.transformer(*inputs, pattern))
            labels = label_at[pair]
            predicted = labels != IGNORED
            soft = soft_labels(labels[predicted], logits.shape[1], 0.1, store.vocabulary.first_word)
            words.append(-(soft * logits[predicted].log_softmax(1)).sum(1))
            alone = [tensor[~target] for tensor in inputs]
            below = model.transformer.below_last(*alone, FullAttention(Segments.of(sizes[:1])))
            scores = model.length(below.mean(0)[None], torch.tensor(sizes[:1] - 2), inputs[2][-1:])
            lengths.append(F.cross_entropy(scores, torch.from_numpy(offset_class(sizes[:1] - 2, sizes[1:] - 2))))
    expected = [torch.cat(words).mean().item(), torch.stack(lengths).mean().item()]
    assert loss_of(objective, batch) == pytest.approx(expected, abs=1e-4)


def test_fixed_shapes_change_nothing(store: Store) -> None:
    exact, fixed = task_for(store), task_for(store, fixed=True)
    shapes = []
    for (a, _), (b, _), _ in zip(exact.batches(Cursor(), 0, 0, 1), fixed.batches(Cursor(), 0, 0, 1), range(30)):  # noqa: B905
        assert (a.tokens, a.predicted) == (b.tokens, b.predicted)
        assert loss_of(exact, a) == pytest.approx(loss_of(fixed, b), abs=1e-5)
        assert b.arrays["row_cu_seqlens"].max() == TOKENS
        shapes.append({name: array.shape for name, array in b.arrays.items()})
        longest = max(np.diff(b.arrays[f"{name}_cu_seqlens"]).max() for name in ("row", "half", "predicted"))
        assert longest <= b.longest
    assert all(shape == shapes[0] for shape in shapes)


def test_padding_of_batches_with_few_rows(store: Store) -> None:
    """The padding is split into rows, too; predictions beyond what fits are dropped."""
    exact, fixed = task_for(store), task_for(store, fixed=True)
    for objective in (exact, fixed):
        objective._max_rows = 3
    a, b = first_batch(exact), first_batch(fixed)
    assert b.arrays["row_cu_seqlens"][3] == a.tokens < b.arrays["row_cu_seqlens"].max() == TOKENS
    assert loss_of(exact, a) == pytest.approx(loss_of(fixed, b), abs=1e-5)
    fixed._max_predicted = 2
    b = first_batch(fixed)
    assert (b.predicted, b.arrays["labels"].tolist()) == (2, a.arrays["labels"][:2].tolist())


@pytest.mark.parametrize(("direction", "pair"), [("de-en", (0, 1)), ("en-de", (1, 0))])
def test_one_direction_alone(store: Store, direction: str, pair: tuple[int, int]) -> None:
    both, model = task_for(store), tiny(store.vocabulary)
    objective = TranslationObjective(store, model, MaskingConfig(), TOKENS, 1, False, [direction])
    batches = [batch.arrays for (batch, _), _ in zip(objective.batches(Cursor(), 0, 0, 1), range(20))]  # noqa: B905
    for arrays in batches:
        source, target = (set(arrays["languages"][arrays["is_target"] == is_target]) for is_target in (False, True))
        assert (source, target) == ({pair[0]}, {pair[1]})
        assert set(arrays["target_language"]) == {pair[1]}
    assert model.config.trained_directions == (direction,)
    assert model.config.directions == [direction]
    assert model.length_table is not None
    assert both.learner.length_table is not None
    assert model.length_table.seen == {direction: both.learner.length_table.seen[direction]}
    assert both.learner.config.trained_directions == ()
    assert objective.fingerprint() != both.fingerprint()
    assert set(objective.validate(model)) == {f"bleu {direction}"}
    with pytest.raises(InputError, match="unknown direction 'de-fr': did you mean 'de-en'"):
        TranslationObjective(store, model, MaskingConfig(), TOKENS, 1, False, ["de-fr"])


def test_a_model_of_one_direction_can_learn_both(store: Store) -> None:
    model = TranslationObjective(store, tiny(store.vocabulary), MaskingConfig(), TOKENS, 1, False, ["de-en"]).learner
    objective = TranslationObjective(store, model, MaskingConfig(), TOKENS, 1, False, ["en-de", "de-en"])
    assert (model.config.trained_directions, list(objective.learner.length_table.seen)) == ((), ["de-en", "en-de"])  # type: ignore[union-attr]
    assert objective.fingerprint()["directions"] == ["de-en", "en-de"]


def test_pretraining_batches(store: Store) -> None:
    model = tiny(store.vocabulary)
    exact = MLMObjective(store, model, MLMConfig(), TOKENS, 1, fixed=False)
    fixed = MLMObjective(store, model, MLMConfig(), TOKENS, 1, fixed=True)
    a, b = first_batch(exact), first_batch(fixed)
    assert loss_of(exact, a) == pytest.approx(loss_of(fixed, b), abs=1e-5)
    batches = [batch.arrays for (batch, _), _ in zip(exact.batches(Cursor(), 0, 0, 1), range(40))]  # noqa: B905
    before = np.concatenate([arrays["labels"] for arrays in batches])
    after = np.concatenate([arrays["tokens"][arrays["predicted"]] for arrays in batches])
    share = len(before) / sum(len(arrays["tokens"]) for arrays in batches)
    assert 0.11 < share < 0.15  # 15% of the words; delimiters are not words
    assert abs((after == store.vocabulary.mask).mean() - 0.8) < 0.02
    assert abs((after == before).mean() - 0.1) < 0.02


def test_wrong_settings_are_explained(store: Store) -> None:
    with pytest.raises(InputError, match="unknown corpus 'trian': did you mean 'train'"):
        TranslationObjective(store, tiny(store.vocabulary), MaskingConfig(weights={"trian": 2}), TOKENS, 1, False)
    with pytest.raises(InputError, match="raise max_positions to"):
        TranslationObjective(store, tiny(store.vocabulary, max_positions=12), MaskingConfig(), TOKENS, 1, False)
    with pytest.raises(InputError, match="more than a batch"):
        TranslationObjective(store, tiny(store.vocabulary), MaskingConfig(), 20, 1, False)


def test_starting_from_another_model(store: Store, tmp_path) -> None:
    tiny(store.vocabulary).save_pretrained(tmp_path / "m")
    model = new_model(store, TransformerConfig(), tmp_path / "m", 1)
    assert torch.equal(model.output_bias, tiny(store.vocabulary).output_bias)
    with pytest.raises(InputError, match="transformer cannot be set"):
        new_model(store, TransformerConfig(hidden_size=128), tmp_path / "m", 1)


@pytest.mark.parametrize("fixed", [False, True])
def test_something_is_predicted_in_every_batch(store: Store, fixed: bool) -> None:
    """Small batches, or the last of an epoch, would often have nothing to predict: their loss would not be defined."""
    objective = MLMObjective(store, tiny(store.vocabulary), MLMConfig(probability=0.002), 64, 1, fixed)
    for (batch, _), _ in zip(objective.batches(Cursor(), 0, 0, 1), range(60)):  # noqa: B905
        assert batch.predicted >= 1
        assert (batch.arrays["labels"] != IGNORED).sum() == batch.predicted
        assert np.isfinite(loss_of(objective, batch)).all()


def test_no_label_is_lost_where_targets_are_long(vocabulary: Vocabulary, tmp_path: Path) -> None:
    """With a single direction more than a quarter of the tokens may be masked."""
    folder = write_store(tmp_path / "de-en", vocabulary, {"train": 3000, "dev": 5}, longer=25)
    dropped = {}
    for direction in ("de-en", "en-de"):
        exact, fixed = (
            TranslationObjective(folder, tiny(vocabulary), MaskingConfig(), 4000, 1, fixed, [direction])
            for fixed in (False, True)
        )
        batches = [islice(one.batches(Cursor(), 0, 0, 1), 20) for one in (exact, fixed)]
        dropped[direction] = sum(a.predicted - b.predicted for (a, _), (b, _) in zip(*batches, strict=True))
    assert dropped == {"de-en": 0, "en-de": 0}
