"""DeepNorm by its formulas: the gains of the start, the rates of the branches, and that shallow models are as before."""

from pathlib import Path

import pytest
import torch

from anyorder.data.store import Store
from anyorder.errors import InputError
from anyorder.models.native.attention import FullAttention, Segments
from anyorder.models.native.transformer import Transformer, TransformerConfig
from anyorder.training.config import TextTrainConfig
from anyorder.training.mlm_objective import MLMConfig, MLMObjective
from anyorder.training.optimizer import branch_rates, make_optimizer, scale_branches, set_rate, use_deepnorm
from anyorder.training.train import new_model, train_model
from anyorder.training.translation_objective import MaskingConfig, TranslationObjective
from tests.conftest import tiny


def config(layers: int) -> TransformerConfig:
    return TransformerConfig(hidden_size=16, num_layers=layers, num_heads=2, max_positions=64, dropout=0.0)


@pytest.mark.parametrize(
    ("setting", "layers", "expected"),
    [("auto", 8, False), ("auto", 9, True), ("auto", 12, True), ("yes", 2, True), ("no", 24, False)],
)
def test_auto_is_for_deep_models(setting: str, layers: int, expected: bool) -> None:
    assert use_deepnorm(setting, layers) is expected  # type: ignore[arg-type]


def test_a_shallow_model_starts_as_before_and_a_deep_one_with_the_gains(store: Store) -> None:
    for layers in (6, 12):
        plain, chosen = (new_model(store, config(layers), None, 1, setting) for setting in ("no", "auto"))  # type: ignore[arg-type]
        ratios = {name: weight / plain.state_dict()[name] for name, weight in chosen.state_dict().items()}
        changed = {name.split(".", 3)[-1] for name, ratio in ratios.items() if (ratio.nan_to_num(1.0) != 1).any()}
        if layers == 6:
            assert changed == set()
            continue
        assert changed == {"key_value.weight", "attended.weight", "inner.weight", "outer.weight"}
        gain, residual = 96**-0.25, 24**0.25
        layer = chosen.transformer.layers[11], plain.transformer.layers[11]
        keys, values = (layer[0].key_value.weight / layer[1].key_value.weight).split(16)
        assert bool((keys == 1).all())
        for weight, expected in (
            (values, gain),
            (layer[0].attended.weight / layer[1].attended.weight, gain / residual),
            (layer[0].inner.weight / layer[1].inner.weight, gain),
            (layer[0].outer.weight / layer[1].outer.weight, gain / residual),
        ):
            assert torch.allclose(weight, torch.full_like(weight, expected), rtol=1e-5)


def test_it_is_deepnorm_with_the_residual_scale_folded_in() -> None:
    """LN(a x + f(x)) with branches b as large, computed directly."""
    torch.manual_seed(0)
    transformer = Transformer(config(3), vocab_size=20, languages=1)
    tokens, zeros = torch.randint(0, 20, (7,)), torch.zeros(7, dtype=torch.int64)
    pattern, inputs = FullAttention(Segments.of(torch.tensor([7]).numpy())), (tokens, torch.arange(7), zeros)
    scale, gain = 6**0.25, 24**-0.25
    states = transformer.norm(
        transformer.tokens(tokens) + transformer.positions(inputs[1]) + transformer.languages(zeros)
    )  # type: ignore[misc]
    for layer in transformer.layers:
        query, key, value = layer.query(states), *layer.key_value(states).split(16, -1)
        heads = [part.unflatten(-1, (2, 8)).transpose(0, 1) for part in (query, key, gain * value)]
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads).transpose(0, 1).flatten(1)
        states = layer.norm_attention(scale * states + gain * layer.attended(mixed))
        inner = torch.nn.functional.gelu(gain * layer.inner(states))
        states = layer.norm_feedforward(scale * states + gain * layer.outer(inner))
    scale_branches(transformer)
    assert torch.allclose(transformer(*inputs, pattern), states, atol=1e-5)


def test_the_last_matrix_of_a_branch_learns_slowly(store: Store) -> None:
    model = tiny(store.vocabulary, num_layers=2, hidden_size=16, num_heads=2)
    optimizer = make_optimizer(model, TextTrainConfig(steps=1), False, branch_rates(model.transformer))
    set_rate(optimizer, 0.5)
    rate_of = {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    decay_of = {parameter: group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        slow = ".attended." in name or (".outer." in name and "layers" in name)
        assert rate_of[parameter] == pytest.approx(0.5 * 4**-0.25 if slow else 0.5), name
        assert decay_of[parameter] == (0.01 if parameter.dim() > 1 else 0.0)


def test_both_objectives_train_deep_models_so(store: Store) -> None:
    for deep in (True, False):
        model = tiny(store.vocabulary, hidden_size=16, num_heads=2, num_layers=9 if deep else 3)
        for objective in (
            TranslationObjective(store, model, MaskingConfig(validation_split="none"), 600, 1, False),
            MLMObjective(store, model, MLMConfig(), 600, 1, False),
        ):
            assert bool(objective.rate_scales()) is deep
            assert objective.fingerprint()["deepnorm"] is deep


def test_it_cannot_change_when_a_run_is_resumed(store: Store, tmp_path: Path) -> None:
    masking = MaskingConfig(validation_split="none")
    run = {"batch_tokens": 300, "device": "cpu", "deepnorm": "yes"}
    train_model(store, tmp_path / "run", config(1), masking, TextTrainConfig(steps=1, **run))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="deepnorm was True, now it is False"):
        train_model(
            store,
            tmp_path / "run",
            config(1),
            masking,
            TextTrainConfig(steps=2, **run | {"deepnorm": "no"}),
            resume=True,
        )  # type: ignore[arg-type]
    assert (
        train_model(store, tmp_path / "run", config(1), masking, TextTrainConfig(steps=2, **run), resume=True).steps
        == 2
    )  # type: ignore[arg-type]
