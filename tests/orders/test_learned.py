"""Learned orders: what the network sees, that it starts as a heuristic, that it is saved, found and refused by name."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.engine import decode
from anyorder.decoding.schedules import ONE, make_schedule
from anyorder.errors import InputError
from anyorder.models.base import AllowedTokens, Canvas
from anyorder.models.native.attention import Segments
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import State, make_order
from anyorder.orders.learned import LearnedOrder, default_order, load_order, save_order
from anyorder.orders.policy import FEATURES, STARTS, PolicyConfig, PolicyInputs, PolicyNetwork, prediction_stats
from tests.conftest import tiny

MASK, FIRST_WORD = 5, 6
KINDS = ("hidden", "features", "confidence", "linear")


def canvases(model: TranslationModel, direction: str = "de-en", count: int = 8) -> list[Canvas]:
    rng = np.random.default_rng(3)
    low, high = model.vocabulary.first_word, len(model.vocabulary)
    sizes = [(int(rng.integers(1, 12)), int(rng.integers(1, 12))) for _ in range(count)]
    return [
        model.blank_canvas(rng.integers(low, high, source), target, direction, key)
        for key, (source, target) in enumerate(sizes)
    ]


def policy_network(model: TranslationModel, **options: object) -> PolicyNetwork:
    torch.manual_seed(5)
    config = PolicyConfig(**{"size": 64 * (options.get("kind") != "linear"), **options})  # type: ignore[arg-type]
    return PolicyNetwork(config, model.config.transformer.hidden_size).eval()


def shuffled(network: PolicyNetwork) -> PolicyNetwork:
    """It has learned something, it does not matter what."""
    torch.nn.init.normal_(network.linear if network.config.kind == "linear" else network.out)
    return network


@pytest.mark.parametrize("start", [name for name in STARTS if name != "none"])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_it_starts_as_the_heuristic(model: TranslationModel, kind: str, start: str) -> None:
    learned = LearnedOrder(policy_network(model, kind=kind, start=start, attention=int(kind != "linear")))
    ours = decode(model, canvases(model), learned, make_schedule("one"))
    theirs = decode(model, canvases(model), make_order(start), make_schedule("one"))
    assert all((a.steps == b.steps).all() and (a.ids == b.ids).all() for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("kind", "attention"), [(kind, layers) for kind in KINDS for layers in (0, 1) if (kind, layers) != ("linear", 1)]
)
@pytest.mark.usefixtures("two_threads")
def test_a_trajectory_does_not_depend_on_its_batch(model: TranslationModel, kind: str, attention: int) -> None:
    network = shuffled(policy_network(model, kind=kind, attention=attention))
    order, schedule = LearnedOrder(network), make_schedule("one")
    together = decode(model, canvases(model), order, schedule)
    for canvas, one in zip(canvases(model), together, strict=True):
        alone = decode(model, [canvas], order, schedule)[0]
        assert (alone.ids == one.ids).all()
        assert (alone.steps == one.steps).all()
        assert (alone.logprobs == one.logprobs).all()
        assert sorted(one.steps) == list(range(1, len(canvas.tokens) + 1))
    assert any((one.steps != np.arange(1, len(one.steps) + 1)).any() for one in together)


def test_an_order_that_has_decoded_can_be_pickled(model: TranslationModel) -> None:
    order = LearnedOrder(policy_network(model, kind="confidence").eval())
    [canvas] = canvases(model, count=1)
    [once] = decode(model, [canvas], order, ONE)
    [again] = decode(model, [canvas], pickle.loads(pickle.dumps(order)), ONE)
    assert once.steps.tolist() == again.steps.tolist()


def test_what_the_network_sees() -> None:
    """Two sentences of 5 and 3 positions; in the first, positions 0 and 3 are filled; in the second, position 2."""
    masked = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0]], dtype=torch.bool)
    tokens = torch.tensor([[8, MASK, MASK, 9, MASK], [MASK, MASK, 7, 99, 99]])
    where = torch.tensor([1, 2, 4, 5, 6])
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 10, generator=draw)
    logits[0, 8] = 9.0  # position 1 wants the word that stands to its left
    logits[1, 9] = 9.0  # position 2 wants the word that stands to its right
    logits[4, 7] = 9.0
    hidden = torch.randn(5, 4, generator=draw)
    state = State(
        masked, torch.tensor([5, 3]), torch.zeros(2, dtype=torch.int64), 2, where,
        Segments.of(np.array([3, 2])), tokens, hidden, logits, mask_token=MASK,
        allowed=AllowedTokens(np.arange(10) >= FIRST_WORD, torch.device("cpu")),
    )  # fmt: skip
    inputs = LearnedOrder(PolicyNetwork(PolicyConfig("features"), 4)).inputs(state)
    assert inputs.hidden is hidden
    assert inputs.features is not None
    seen = dict(zip(FEATURES, inputs.features.T, strict=True))
    logp = logits.log_softmax(-1)
    words = logp[:, FIRST_WORD:]
    top = words.topk(2).values
    assert torch.allclose(seen["best"], top[:, 0], atol=1e-6)
    assert torch.allclose(seen["margin"], top[:, 0].exp() - top[:, 1].exp(), atol=1e-6)
    assert torch.allclose(seen["entropy"], -(logp.exp() * logp).sum(-1), atol=1e-6)
    assert torch.allclose(seen["mask"], logp[:, MASK], atol=1e-6)
    highest = torch.tensor([top[:3, 0].max()] * 3 + [top[3:, 0].max()] * 2)
    assert torch.allclose(seen["lead"], top[:, 0] - highest, atol=1e-6)
    best = words.argmax(-1) + FIRST_WORD
    p = logp.exp()
    assert torch.allclose(
        seen["twin right"], torch.stack([p[1, best[0]], *torch.zeros(2), p[4, best[3]], torch.zeros(())])
    )
    assert torch.allclose(
        seen["twin left"], torch.stack([torch.zeros(()), p[0, best[1]], *torch.zeros(2), p[3, best[4]]])
    )
    assert seen["same left"].tolist() == [1, 0, int(best[2] == 9), 0, 0]
    assert seen["same right"].tolist() == [0, 1, 0, 0, 1]
    assert torch.allclose(seen["from left"], torch.tensor([2 / 6, 3 / 6, 5 / 6, 1 / 4, 2 / 4]))
    assert torch.allclose(seen["from right"], torch.tensor([4 / 6, 3 / 6, 1 / 6, 3 / 4, 2 / 4]))
    assert torch.allclose(seen["share masked"], torch.tensor([3 / 5] * 3 + [2 / 3] * 2))
    assert seen["filled left"].tolist() == [1, 0, 1, 1, 0]
    assert seen["filled right"].tolist() == [0, 1, 1, 0, 1]
    assert seen["leftmost"].tolist() == [1, 0, 0, 1, 0]
    assert seen["rightmost"].tolist() == [0, 0, 1, 0, 1]
    assert seen["gap left"].tolist() == [1, 0.5, 1, 1, 0.5]
    assert seen["gap right"].tolist() == [0.5, 1, 1, 0.5, 1]


def test_what_it_sees_near_certainty() -> None:
    """Logits near 30 are multiples of 2e-6; what sets the best tokens apart from certainty is far less."""
    logits = torch.zeros(4, 10)
    logits[torch.arange(4), [6, 7, 8, 9]] = torch.tensor([17.0, 23.0, 20.0, 26.0])
    best, _, _, mask, token, _ = prediction_stats(logits, FIRST_WORD, None, MASK)
    expected = logits.double().log_softmax(-1)
    assert token.tolist() == [6, 7, 8, 9]
    assert torch.allclose(best.double(), expected[torch.arange(4), token], rtol=1e-5, atol=0)
    assert torch.allclose(mask.double(), expected[:, MASK], rtol=1e-6)
    assert best.argsort(descending=True).tolist() == [3, 1, 2, 0]


def test_scores_of_the_hidden_policy_by_hand() -> None:
    network = PolicyNetwork(PolicyConfig("hidden"), 64)
    hidden = torch.randn(7, 64)
    scores = network(PolicyInputs(hidden, None), Segments.of(np.array([4, 3]))).order
    inner = torch.nn.functional.leaky_relu(hidden @ network.read.weight.T + network.read.bias, 0.1)
    assert torch.allclose(scores, inner @ network.out, atol=1e-6)


@pytest.mark.parametrize("kind", ["confidence", "linear"])
def test_an_order_that_knows_no_words_serves_other_models(vocabulary: Vocabulary, tmp_path: Path, kind: str) -> None:
    small, large = tiny(vocabulary), tiny(Vocabulary.from_merges(*_other_words()), hidden_size=128)
    network = shuffled(policy_network(small, kind=kind, size=192 if kind == "confidence" else 0))
    assert not any(small.config.transformer.hidden_size in value.shape for value in network.state_dict().values())
    save_order(network, tmp_path / "order", small, ["de-en"])
    again, record = load_order(tmp_path / "order")
    assert record.directions == ("de-en",)
    assert again.state_dict().keys() == network.state_dict().keys()
    for model, direction in ((small, "en-de"), (large, "de-en")):
        order = make_order(f"learned:{tmp_path}/order").bind(model, direction)
        assert order.needs == "logits"
        given = decode(model, canvases(model, direction), LearnedOrder(network), make_schedule("one"))
        found = decode(model, canvases(model, direction), order, make_schedule("one"))
        assert all((a.steps == b.steps).all() and (a.ids == b.ids).all() for a, b in zip(given, found, strict=True))


def _other_words() -> tuple[dict[str, int], list[tuple[str, str]]]:
    special = ("<s>", "</s>", "<pad>", "<unk>", "<mask>")
    return {name: i for i, name in enumerate([*special, *(f"{letter}</w>" for letter in "abcdefghij")])}, []


def test_a_bundled_order_by_name(vocabulary: Vocabulary, tmp_path: Path) -> None:
    tiny(vocabulary).save_pretrained(tmp_path / "model")
    model = TranslationModel.from_pretrained(tmp_path / "model")
    for name in ("learned:de-en/confidence", "learned:de-en/confidence/"):
        assert make_order(name).bind(model, "de-en").name == name
    with pytest.raises(InputError, match="unknown learned order of de-en 'confidnce': did you mean 'confidence'"):
        make_order("learned:de-en/confidnce").bind(model, "de-en")
    with pytest.raises(InputError, match="was learned for another model"):
        make_order("learned:de-en/default").bind(model, "de-en")
    for place in (".", "de-en/", "/de-en/confidence", "../de-en/confidence", "nothing/confidence", "/"):
        with pytest.raises(InputError, match="no learned order there"):
            make_order(f"learned:{place}").bind(model, "de-en")
    own = model.path / "learned" / "de-en" / "confidence"  # type: ignore[operator]
    save_order(policy_network(model, kind="linear"), own, model, ["de-en"])
    assert make_order("learned:de-en/confidence").bind(model, "de-en").network.config.kind == "linear"  # type: ignore[attr-defined]


def test_saved_beside_the_model_it_is_found_by_name(vocabulary: Vocabulary, tmp_path: Path) -> None:
    tiny(vocabulary).save_pretrained(tmp_path / "model")
    model = TranslationModel.from_pretrained(tmp_path / "model")
    assert default_order(model, "de-en") == "margin"
    with pytest.raises(InputError, match="this model has no learned order"):
        make_order("learned").bind(model, "de-en")
    network = policy_network(model, kind="features", start="max-prob")
    torch.nn.init.normal_(network.out)
    save_order(network, tmp_path / "model" / "learned" / "default", model, ["de-en"], seed=3)
    save_order(network, tmp_path / "model" / "learned" / "other" / "en-de", model, ["en-de"])
    assert default_order(model, "de-en") == "learned"
    assert default_order(model, "en-de") == "margin"  # the model's own order is not for this direction
    by_name, by_path = make_order("learned"), make_order(f"learned:{tmp_path}/model/learned/default")
    schedule = make_schedule("one")
    one, two, three = (
        decode(model, canvases(model), order, schedule)
        for order in (by_name.bind(model, "de-en"), by_path.bind(model, "de-en"), LearnedOrder(network))
    )
    assert all(
        (a.steps == b.steps).all() and (a.steps == c.steps).all() for a, b, c in zip(one, two, three, strict=True)
    )
    bound = by_name.bind(model, "de-en")
    assert bound is by_name.bind(model, "de-en")
    assert bound.name == "learned"
    about = json.loads((tmp_path / "model" / "learned" / "default" / "order.json").read_text())
    assert bound.identity == f"learned@{about['fingerprint']}"
    assert about["seed"] == 3
    assert make_order("learned:other").bind(model, "en-de").name == "learned:other"
    with pytest.raises(InputError, match="was learned for de-en, not for en-de"):
        make_order("learned").bind(model, "en-de")
    with pytest.raises(InputError, match="unknown learned order 'othr': did you mean 'other'"):
        make_order("learned:othr").bind(model, "de-en")


def test_orders_that_do_not_fit_are_refused(vocabulary: Vocabulary, tmp_path: Path) -> None:
    model = tiny(vocabulary)
    folder = tmp_path / "order"
    order = make_order(f"learned:{folder}")
    with pytest.raises(InputError, match="no learned order there"):
        order.bind(model, "de-en")
    save_order(policy_network(model, kind="hidden"), folder, model, ["de-en", "en-de"])
    order.bind(model, "de-en")
    other = tiny(vocabulary, hidden_size=32)
    with pytest.raises(InputError, match="was learned for another model"):
        make_order(f"learned:{folder}").bind(other, "de-en")
    content = (folder / "order.safetensors").read_bytes()
    (folder / "order.safetensors").write_bytes(content[:100])
    with pytest.raises(InputError, match="order.safetensors: damaged"):
        make_order(f"learned:{folder}").bind(model, "de-en")
    (folder / "checksums.json").unlink()
    with pytest.raises(InputError, match="order.safetensors: damaged"):
        make_order(f"learned:{folder}").bind(model, "de-en")
    about = json.loads((folder / "order.json").read_text())
    for change, message in (
        ({"format": 9}, "format 9"),
        ({"policy": {"x": 1}}, "policy.x: no such field"),
        ({"policy": {"attention": 10**9}}, "policy.attention 1000000000: expected a number"),
        ({"directions": "de-en"}, 'directions: "de-en", expected a list'),
        ({"hidden_size": 65_536}, "read.weight is"),
        ({"features": ["a"]}, "other features"),
        ({"format": None}, "order.json: format"),
    ):
        changed = {key: value for key, value in (about | change).items() if value is not None}
        (folder / "order.json").write_text(json.dumps(changed))
        (folder / "order.safetensors").write_bytes(content)
        with pytest.raises(InputError, match=message):
            make_order(f"learned:{folder}").bind(model, "de-en")


@pytest.mark.parametrize("factor", [-5.0, float("nan")])
def test_weights_are_compared_with_the_fingerprint(vocabulary: Vocabulary, tmp_path: Path, factor: float) -> None:
    """The signature names the fingerprint, so it must be that of the weights."""
    model = tiny(vocabulary)
    save_order(policy_network(model, kind="hidden"), tmp_path, model, ["de-en"])
    (tmp_path / "checksums.json").unlink()
    file = tmp_path / "order.safetensors"
    save_file({name: tensor * factor for name, tensor in load_file(file).items()}, file)
    with pytest.raises(InputError, match=r"order.safetensors: (damaged, its fingerprint|\w+.* not finite)"):
        load_order(tmp_path)


@pytest.mark.parametrize("hidden_size", [200, 480, 720])
@pytest.mark.parametrize("attention", [0, 1])
def test_any_hidden_size_has_a_policy(hidden_size: int, attention: int) -> None:
    network = PolicyNetwork(PolicyConfig(kind="hidden", attention=attention), hidden_size)
    inputs = PolicyInputs(torch.randn(5, hidden_size), None)
    assert network(inputs, Segments.of(np.array([3, 2]), torch.device("cpu"))).order.isfinite().all()
