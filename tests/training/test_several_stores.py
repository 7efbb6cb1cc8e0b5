"""One model and one order for several language pairs: what batches hold, in which directions, and how they are scored."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sacrebleu.metrics import BLEU

from anyorder.data.store import Split, Store, Stores, open_stores
from anyorder.data.vocabulary import SPECIALS, Vocabulary
from anyorder.decoder import Decoder
from anyorder.decoding.config import make_length
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.learning.config import LEARN_ORDER_RUN, RLConfig
from anyorder.learning.learn_order import learn_order
from anyorder.models.native.transformer import TransformerConfig
from anyorder.models.native.translation_model import LengthTable, ModelConfig, TranslationModel
from anyorder.orders.policy import PolicyConfig
from anyorder.training.config import TextTrainConfig
from anyorder.training.mlm_objective import MLMConfig, MLMObjective
from anyorder.training.run_folder import Cursor
from anyorder.training.train import new_model, train_model
from anyorder.training.translation_objective import MaskingConfig, TranslationObjective
from tests.learning.objectives import translation_order_objective
from tests.stores import write_store

SIZE = TransformerConfig(hidden_size=32, num_layers=2, num_heads=2, max_positions=32)
ALL = ["de-en", "en-de", "ro-en", "en-ro", "zh-en", "en-zh"]


@pytest.fixture(scope="module")
def stores(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    folder = tmp_path_factory.mktemp("pairs")
    splits = {"train": 40, "order": 12, "dev": 8}
    corpora = {"de-en": ("news", "web"), "ro-en": ("news", "made"), "zh-en": ("web",)}
    paths = [write_store(folder / pair, vocabulary, splits, names) for pair, names in corpora.items()]
    write_store(folder / "zh-en", vocabulary, {**splits, "selection": 6}, corpora["zh-en"])
    return open_stores(paths)


def task_for(
    stores: Stores, directions: list[str] | None = None, fixed: bool = False, **masking: object
) -> TranslationObjective:
    model = new_model(stores, SIZE, None, 1)
    config = MaskingConfig(validation_sentences=4, **masking)  # type: ignore[arg-type]
    return TranslationObjective(stores, model, config, 400, 1, fixed, directions or [])


def known_pairs(stores: Stores) -> dict[tuple[bytes, bytes], tuple[str, str]]:
    """Direction and corpus of every training pair, by the ids of its source and its target."""
    known = {}
    for store in stores:
        split = store.split("train")
        assert split.corpus is not None
        for source, target in (store.languages, store.languages[::-1]):
            for i in range(len(split)):
                ids = [np.asarray(split.sides[language][i], np.int64).tobytes() for language in (source, target)]
                known[ids[0], ids[1]] = (f"{source}-{target}", split.corpora[split.corpus[i]])
    return known


def drawn(objective: TranslationObjective, stores: Stores, epochs: int = 1) -> Counter[tuple[str, str]]:
    """How often every direction and corpus comes in the first epochs."""
    known, languages = known_pairs(stores), objective.learner.config.languages
    counts: Counter[tuple[str, str]] = Counter()
    for batch, behind in objective.batches(Cursor(), 0, 0, 1):
        if behind.epoch == epochs:
            break
        arrays = batch.arrays
        tokens = arrays["tokens"].copy()
        tokens[arrays["predicted"]] = arrays["labels"]
        halves = np.split(np.arange(len(tokens)), arrays["half_cu_seqlens"][1:-1])
        for number, (source, target) in enumerate(zip(halves[::2], halves[1::2], strict=True)):
            direction, corpus = known[tokens[source[1:-1]].tobytes(), tokens[target[1:-1]].tobytes()]
            spelled = [languages[arrays["languages"][half[0]]] for half in (source, target)]
            assert direction == "-".join(spelled)
            assert languages[arrays["target_language"][number]] == spelled[1]
            counts[direction, corpus] += 1
    return counts


def test_a_batch_mixes_the_pairs_of_all_stores_in_both_directions(stores: Stores) -> None:
    objective = task_for(stores)
    assert objective.learner.config.languages == ("de", "en", "ro", "zh")
    assert objective.learner.config.directions == ["de-en", "en-de", "en-ro", "en-zh", "ro-en", "zh-en"]
    assert list(objective.learner.length_table.seen) == ALL  # type: ignore[union-attr]
    counts = drawn(objective, stores)
    assert {direction for direction, _ in counts} == set(ALL)
    assert sum(counts.values()) == 120
    first = next(objective.batches(Cursor(), 0, 0, 1))[0].arrays
    assert set(first["languages"]) == {0, 1, 2, 3}


def test_weights_directions_and_one_way_corpora(stores: Stores) -> None:
    weights, only_into = {"web": 2.0, "ro-en/news": 3.0, "de-en/web": 0.0}, {"made": "en"}
    counts = drawn(task_for(stores, weights=weights, only_into=only_into), stores)
    by_corpus: Counter[tuple[frozenset[str], str]] = Counter()
    for (direction, corpus), count in counts.items():
        by_corpus[frozenset(direction.split("-")), corpus] += count
    of = {pair: frozenset(pair.split("-")) for pair in ("de-en", "ro-en", "zh-en")}
    expected = {
        (of["de-en"], "news"): 20,
        (of["ro-en"], "news"): 60,
        (of["ro-en"], "made"): 20,
        (of["zh-en"], "web"): 80,
    }
    assert by_corpus == expected
    assert counts["ro-en", "made"] == 20
    assert 0 < counts["en-ro", "news"] < 60

    some = drawn(task_for(stores, ["en-ro", "de-en", "zh-en", "en-zh"], only_into=only_into), stores)
    assert {direction for direction, _ in some} == {"en-ro", "de-en", "zh-en", "en-zh"}
    assert ("en-ro", "made") not in some
    assert some["en-ro", "news"] == 20


def test_the_length_table_leaves_out_what_is_not_learned(stores: Stores) -> None:
    table = task_for(stores, only_into={"made": "en"}).learner.length_table
    split = stores[1].split("train")
    assert split.corpus is not None
    news = split.sides["ro"].lengths[split.corpus == 0]
    assert set(table.seen["en-ro"]) == set(split.sides["en"].lengths[split.corpus == 0].tolist())  # type: ignore[union-attr]
    assert {length for row in table.seen["en-ro"].values() for length in row} <= set(news.tolist())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("directions", "masking", "message"),
    [
        (["de-en", "ro-en"], {}, "zh-en: holds none of the directions to learn"),
        ([], {"only_into": {"made": "de"}}, "unknown language of corpus 'ro-en/made' 'de'"),
        ([], {"only_into": {"zh-en/web": "en"}}, "no corpus is learned in the direction en-zh"),
        ([], {"weights": {"made-up": 1}}, "unknown corpus 'made-up'"),
        ([], {"validation_split": "selection"}, "unknown split 'selection'"),
    ],
)
def test_wrong_settings_are_explained(
    stores: Stores, directions: list[str], masking: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        task_for(stores, directions, **masking)


def test_shifted_pairs_reach_every_position(stores: Stores) -> None:
    plain, shifted = task_for(stores), task_for(stores, shifted=0.5)
    seen, moved, pairs = set(), 0, 0
    batches = [objective.batches(Cursor(), 0, 0, 1) for objective in (plain, shifted)]
    for _ in range(60):
        batch, other = (next(some)[0] for some in batches)
        positions, shifts = other.arrays["positions"], other.arrays["positions"] - batch.arrays["positions"]
        by_pair = [set(part) for part in np.split(shifts, batch.arrays["row_cu_seqlens"][1:-1])]
        assert all(len(shift) == 1 and min(shift) >= 0 for shift in by_pair)
        moved, pairs = moved + sum(shift != {0} for shift in by_pair), pairs + len(by_pair)
        seen |= set(positions.tolist())
    assert seen == set(range(SIZE.max_positions))
    assert abs(moved / pairs - 0.5 * 20 / 21) < 0.1  # some are shifted by 0


def test_every_direction_is_validated_on_its_own_store(stores: Stores) -> None:
    objective = task_for(stores)
    assert list(objective.validate(objective.learner.eval())) == [f"bleu {direction}" for direction in ALL]
    split = objective.fingerprint()["masking"].validation_split  # type: ignore[attr-defined]
    assert split == "de-en=dev,ro-en=dev,zh-en=selection"
    assert (len(objective.validations), objective.comparisons) == (6, 0)


@pytest.mark.parametrize("direction", ["en-zh", "zh-en"])
def test_chinese_is_scored_by_characters_and_the_others_by_words(
    direction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second subword of every reference is wrong, in one of its two characters."""
    pieces = [*SPECIALS, *(f"{a}{b}</w>" for a in "我们今天去看书" for b in "很好的人")]
    vocabulary = Vocabulary.from_merges({piece: i for i, piece in enumerate(pieces)}, [])
    store = Store(write_store(tmp_path / "zh-en", vocabulary, {"train": 4, "dev": 3}))
    objective = TranslationObjective(store, new_model(store, SIZE, None, 1), MaskingConfig(), 400, 1, False)
    references = store.split("dev").sides[direction[-2:]]
    wrong = [np.asarray(references[i], np.int64).copy() for i in range(3)]
    for ids in wrong:
        ids[1] += 1 if pieces[ids[1]][0] == pieces[(ids[1] + 1) % len(pieces)][0] else -1

    def decode(self: Decoder, sentences: object, *rest: object) -> Iterator[Trajectory]:
        for ids in wrong:
            tokens, text = self.model.to_tokens(ids), self.model.to_text(ids, self.task.name)
            yield Trajectory("", text, tokens, list(range(1, len(ids) + 1)), [], "", len(ids), "")

    monkeypatch.setattr(Decoder, "decode", decode)
    words = [[" ".join(vocabulary.words(ids)) for ids in made] for made in (wrong, [references[i] for i in range(3)])]
    if direction == "en-zh":
        texts = [[line.replace(" ", "") for line in lines] for lines in words]
        expected = BLEU(tokenize="zh").corpus_score(texts[0], [texts[1]]).score
    else:
        metric = BLEU(tokenize="none", smooth_method="none", force=True)
        expected = metric.corpus_score(words[0], [words[1]]).score
    assert 30 < expected < 95
    assert objective.validate(objective.learner)[f"bleu {direction}"] == pytest.approx(expected)


def test_pretraining_reads_the_text_of_all_stores(stores: Stores) -> None:
    objective = MLMObjective(stores, new_model(stores, SIZE, None, 1), MLMConfig(), 4000, 1, fixed=False)
    batch = next(objective.batches(Cursor(), 0, 0, 1))[0]
    assert len(batch.arrays["row_cu_seqlens"]) - 1 == 240
    assert set(batch.arrays["languages"]) == {0, 1, 2, 3}


def test_a_model_may_know_more_languages_than_the_data(stores: Stores, tmp_path: Path) -> None:
    new_model(stores, SIZE, None, 1).save_pretrained(tmp_path / "m")
    model = new_model(stores[1], TransformerConfig(), tmp_path / "m", 1)
    objective = TranslationObjective(stores[1], model, MaskingConfig(), 400, 1, False)
    assert objective.validation_order(model)[1] is model  # in single precision on the CPU
    assert set(next(objective.batches(Cursor(), 0, 0, 1))[0].arrays["languages"]) == {1, 2}
    assert model.config.trained_directions == ("ro-en", "en-ro")
    narrow = TranslationModel(ModelConfig(SIZE, len(stores.vocabulary), ("de", "en")), stores.vocabulary)
    narrow.save_pretrained(tmp_path / "narrow")
    with pytest.raises(InputError, match="knows"):
        new_model(stores, TransformerConfig(), tmp_path / "narrow", 1)


RL = RLConfig(sentences=24, rollouts=2, validation_sentences=2, validation_orders="", weights={"ro-en/made": 0})


def test_an_order_for_all_directions_rolls_out_real_pairs(stores: Stores) -> None:
    model = new_model(stores, SIZE, None, 1)
    objective = translation_order_objective(stores, model, ALL, PolicyConfig("confidence"), RL, seed=1)
    batch, _ = next(objective.batches(Cursor(), 0, 0, 1))
    canvases = batch.sentences.canvases
    assert canvases.sources is not None
    known = {}
    for store in stores:
        split = store.split("order")
        for source, target in (store.languages, store.languages[::-1]):
            for i in range(len(split)):
                key = tuple(split.sides[source][i].tolist())
                known[key] = (source, target, split.sides[target][i].tolist(), i)
    seen = set()
    ends = np.cumsum(canvases.sources.sizes)
    for number, (end, size) in enumerate(zip(ends, canvases.sources.sizes, strict=True)):
        ids = canvases.sources.tokens[end - size + 1 : end - 1]
        source, target, reference, row = known[tuple(ids.tolist())]
        assert batch.references[number, : batch.reference_lengths[number]].tolist() == reference
        languages = (canvases.sources.languages[end - 1], canvases.packed.languages[canvases.starts[number]])
        assert tuple(model.config.languages[language] for language in languages) == (source, target)
        assert "ro" not in (source, target) or row % 2 == 0  # the made text has weight 0
        seen.add(f"{source}-{target}")
    assert seen == set(ALL)
    assert len(objective._data) == 72
    rollouts = objective.minibatches(batch, torch.device("cpu"))[0]["rollouts"]
    assert bool(rollouts.returns.isfinite().all())


@pytest.mark.parametrize("rule", ["gold", "table:2"])
def test_target_lengths_are_those_of_the_rule(stores: Stores, rule: str) -> None:
    model = new_model(stores, SIZE, None, 1)
    seen = {
        direction: {number: [number + 1, number + 2] for number in range(30)} for direction in model.config.directions
    }
    model.length_table = LengthTable(seen)
    policy, rl = PolicyConfig("confidence"), replace(RL, length=rule, sentences=72, weights={})
    objective = translation_order_objective(stores, model, ALL, policy, rl, seed=1)
    batches = objective.batches(Cursor(), 0, 0, 1)
    drawn: dict[bytes, set[int]] = {}
    for batch, _ in (next(batches) for _ in range(8)):
        canvases = batch.sentences.canvases
        assert canvases.sources is not None
        assert (np.diff(canvases.lengths) <= 0).all()
        sources = np.split(canvases.sources.tokens, np.cumsum(canvases.sources.sizes)[:-1])
        for source, length, reference in zip(sources, canvases.lengths, batch.reference_lengths, strict=True):
            known = [reference] if rule == "gold" else [len(source) - 1, len(source)]  # two delimiters in the source
            assert length in known
            drawn.setdefault(source.tobytes(), set()).add(int(length))
    assert max(map(len, drawn.values())) == make_length(rule).count
    rollouts = objective.minibatches(batch, torch.device("cpu"))[0]["rollouts"]
    assert bool(rollouts.returns.isfinite().all())


@pytest.mark.parametrize("rule", ["fixed:7", "candidates:4", "given", "longest"])
def test_other_length_rules_are_refused(rule: str) -> None:
    with pytest.raises(InputError, match="expected gold"):
        replace(RL, length=rule)


def test_only_stores_with_a_direction_are_opened(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    original = Store.split

    def split(self: Store, name: str) -> Split:
        opened.append(self.path)
        return original(self, name)

    monkeypatch.setattr(Store, "split", split)
    model, rl = new_model(stores, SIZE, None, 1), replace(RL, weights={})
    objective = translation_order_objective(stores, model, ["ro-en", "en-de"], PolicyConfig("confidence"), rl, seed=1)
    assert len(objective._data) == 24
    assert set(opened) == {stores[0].path, stores[1].path}
    with pytest.raises(InputError, match="unknown direction 'de-ro'"):
        translation_order_objective(stores, model, ["de-ro"], PolicyConfig("confidence"), rl, seed=1)


def test_a_model_and_an_order_are_trained_on_all_and_resumed(stores: Stores, tmp_path: Path) -> None:
    run = TextTrainConfig(steps=2, batch_tokens=400, device="cpu", validate_every=0)
    masking = MaskingConfig(validation_sentences=2)
    paths = [store.path for store in stores]
    result = train_model(paths, tmp_path / "run", SIZE, masking, run)
    assert set(result.scores) == {f"bleu {direction}" for direction in ALL}
    with pytest.raises(InputError, match="cannot resume: .*pairs was 120, now it is 80"):
        train_model(paths[:2], tmp_path / "run", SIZE, masking, replace(run, steps=3), resume=True)
    assert train_model(paths, tmp_path / "run", SIZE, masking, replace(run, steps=3), resume=True).steps == 3
    learned = replace(LEARN_ORDER_RUN, steps=1, device="cpu")
    order = learn_order(
        result.model, "all", tmp_path / "order", paths, policy=PolicyConfig("confidence"), rl=RL, run=learned
    )
    assert {name for name in order.scores if name.startswith("bleu")} == {f"bleu {direction}" for direction in ALL}
