"""Checkpoints of other projects load by native classes, and damaged or unsuitable ones are refused in one line."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from anyorder.errors import InputError
from anyorder.models.hf.pretrained import is_transformers, load_transformers, wrap_transformers
from tests.models.checkpoints import (
    DECODERS,
    ENCODERS,
    MASK,
    PAD,
    VOCABULARY,
    logits_of,
    network,
    rewrite,
    save,
    tokenizer,
)

TOKENS = [1, MASK, 3, MASK, 14]
LLADA_NAMES = {
    "model.embed_tokens.": "model.transformer.wte.",
    "model.norm.": "model.transformer.ln_f.",
    "lm_head.": "model.transformer.ff_out.",
    "model.layers.": "model.transformer.blocks.",
    "self_attn.o_proj": "attn_out",
    "self_attn.": "",
    "mlp.gate_proj": "ff_proj",
    "mlp.down_proj": "ff_out",
    "mlp.": "",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    folder = tmp_path_factory.mktemp("saved")
    names = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GPT2LMHeadModel", "BertForMaskedLM")
    return {name: (folder / name, save(name, folder / name)) for name in names}


@pytest.fixture
def copy_of(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> Callable[[str], tuple[Path, Any]]:
    def copied(name: str) -> tuple[Path, Any]:
        folder, network = saved[name]
        return Path(shutil.copytree(folder, tmp_path / name)), network

    return copied


def native_logits(plain: Any) -> torch.Tensor:
    with torch.inference_mode():
        return plain(input_ids=torch.tensor([TOKENS])).logits[0]


def llada_name(name: str) -> str:
    for native, theirs in LLADA_NAMES.items():
        name = name.replace(native, theirs)
    return name


def llada_config() -> dict[str, Any]:
    llama = DECODERS["LlamaForCausalLM"]
    return {
        "model_type": "llada", "architectures": ["LLaDAModelLM"], "auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"},
        "block_type": "llama", "layer_norm_type": "rms", "rope": True, "alibi": False, "include_bias": False,
        "activation_type": "silu", "d_model": llama["hidden_size"], "n_heads": llama["num_attention_heads"],
        "n_kv_heads": llama["num_key_value_heads"], "n_layers": llama["num_hidden_layers"],
        "mlp_hidden_size": llama["intermediate_size"], "vocab_size": len(VOCABULARY),
        "embedding_size": llama["vocab_size"], "max_sequence_length": llama["max_position_embeddings"],
        "rope_theta": 10_000.0, "rms_norm_eps": 1e-6, "weight_tying": False, "mask_token_id": MASK,
        "eos_token_id": llama["eos_token_id"], "pad_token_id": PAD,
    }  # fmt: skip


def test_llada_loads_by_renaming(copy_of: Callable[[str], tuple[Path, Any]]) -> None:
    folder, plain = copy_of("LlamaForCausalLM")
    rewrite(folder, llada_config(), llada_name)
    torch.testing.assert_close(logits_of(load_transformers(folder), TOKENS), native_logits(plain))


@pytest.mark.parametrize("name", ["input_emb_norm", "attention_layer_norm", "scale_logits"])
def test_what_llama_does_not_compute_is_refused(name: str, copy_of: Callable[[str], tuple[Path, Any]]) -> None:
    folder, _ = copy_of("LlamaForCausalLM")
    rewrite(folder, llada_config() | {name: True}, llada_name)
    with pytest.raises(InputError, match=f"{name}: true, expected false as in 'llada' models"):
        load_transformers(folder)


def test_dream_loads_as_qwen2_shifted_by_one(copy_of: Callable[[str], tuple[Path, Any]]) -> None:
    folder, plain = copy_of("Qwen2ForCausalLM")
    config = {**DECODERS["Qwen2ForCausalLM"], "model_type": "Dream", "architectures": ["DreamModel"]}
    rewrite(folder, {**config, "mask_token_id": MASK, "auto_map": {"AutoModel": "modeling_dream.DreamModel"}})
    native = native_logits(plain)
    torch.testing.assert_close(logits_of(load_transformers(folder), TOKENS), torch.cat([native[:1], native[:-1]]))


def test_sdar_is_qwen3_with_block_causal_attention(copy_of: Callable[[str], tuple[Path, Any]]) -> None:
    """What is seen by a block does not depend on later blocks, so a prefix of whole blocks gives the same logits."""
    folder, plain = copy_of("Qwen3ForCausalLM")
    config = {**DECODERS["Qwen3ForCausalLM"], "model_type": "sdar", "mask_token_id": MASK, "block_size": 2}
    rewrite(folder, config)
    found = logits_of(load_transformers(folder), TOKENS)
    for block in (slice(0, 2), slice(2, 4), slice(4, 5)):
        tokens = torch.tensor([TOKENS[: block.stop]])
        sees = torch.arange(block.stop) // 2 <= torch.arange(block.stop)[:, None] // 2
        with torch.inference_mode():
            native = plain(input_ids=tokens, attention_mask=sees[None, None]).logits[0]
        torch.testing.assert_close(found[block], native[block])
    assert not torch.allclose(found[:4], native_logits(plain)[:4])  # full attention is something else


def test_diffugpt_names_and_shift(copy_of: Callable[[str], tuple[Path, Any]]) -> None:
    folder, plain = copy_of("GPT2LMHeadModel")
    config = {**DECODERS["GPT2LMHeadModel"], "model_type": "gpt2", "logits_shift": 0}
    theirs = {"transformer.wte.": "embed_tokens.", "transformer.": "denoise_model."}

    def rename(name: str) -> str:
        for native, other in theirs.items():
            name = name.replace(native, other)
        return name

    rewrite(folder, config, rename)
    torch.testing.assert_close(logits_of(load_transformers(folder), TOKENS), native_logits(plain))


def test_a_folder_says_what_it_holds(saved: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    assert is_transformers(saved["BertForMaskedLM"][0])
    assert is_transformers("hf:anything/at-all")
    (tmp_path / "config.json").write_text('{"model_type": []}')
    assert not is_transformers(tmp_path)
    assert not is_transformers("de-en")


@pytest.mark.parametrize("name", ["BertForMaskedLM", "LlamaForCausalLM", "GPT2LMHeadModel", "Qwen3ForCausalLM"])
def test_objects_in_memory_are_the_model_in_a_folder(name: str, saved: dict[str, tuple[Path, Any]]) -> None:
    theirs, words = network(name).train(), tokenizer(delimiters=name in ENCODERS)
    theirs.config.is_causal, words.model_max_length = True, 8
    theirs.set_attn_implementation("eager")
    model = wrap_transformers(theirs, words, "mine")
    loaded = load_transformers(saved[name][0])
    assert torch.equal(logits_of(model, TOKENS), logits_of(loaded, TOKENS))
    assert (model.name, model.path, model.network) == ("mine", None, theirs)
    assert (model.mask_token, model.is_shifted, model.block_size) == (MASK, loaded.is_shifted, loaded.block_size)
    assert model.vocabulary_fingerprint == loaded.vocabulary_fingerprint
    assert not theirs.training
    assert not any(weight.requires_grad for weight in theirs.parameters())
    assert words.model_max_length == 8


def test_objects_that_are_not_a_masked_model_are_refused() -> None:
    import transformers

    bert = network("BertForMaskedLM")
    for theirs, message in (
        (bert.bert, "mine: is a BertModel, expected a BertForMaskedLM, which predicts tokens"),
        (torch.nn.Linear(2, 2), "network a Linear is not a network of Transformers"),
        (
            transformers.T5Model(transformers.T5Config(d_model=8, num_layers=1, d_ff=8)),
            "mine: model_type 't5' is not one",
        ),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            wrap_transformers(theirs, tokenizer(), "mine")
    with pytest.raises(InputError, match="tokenizer a str is not a tokenizer of Transformers"):
        wrap_transformers(bert, "bert-base", "mine")
    maskless = tokenizer()
    maskless.mask_token = None
    with pytest.raises(InputError, match="mine: is not a masked model: neither its tokenizer nor its config"):
        wrap_transformers(bert, maskless, "mine")
    bert.cls.predictions.bias.data[0] = torch.nan
    with pytest.raises(InputError, match="mine: cls.predictions.bias holds numbers that are not finite"):
        wrap_transformers(bert, tokenizer(), "mine")


def damage(file: str, write: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda folder: write(folder / file)


def change_config(**settings: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage("config.json", Path.unlink), "no model in this folder"),
        (damage("config.json", lambda file: file.write_text("{")), "not JSON"),
        (change_config(model_type="t5"), "model_type 't5' is not one of the masked models"),
        (change_config(model_type="roberta"), "is not a RobertaForMaskedLM: its weights lack"),
        (change_config(num_hidden_layers=1), "more layers than its config.json says"),
        (change_config(hidden_size="wide"), "does not describe a BertForMaskedLM"),
        (change_config(hidden_size=48), "has the shape 24, expected 48 by its config.json"),
        (change_config(logits_shift=2), "logits_shift"),
        (damage("model.safetensors", lambda file: file.write_bytes(b"no")), "its weights cannot be read"),
        (damage("model.safetensors", lambda file: file.rename(file.parent / "model.bin")), "is pickled and will not"),
        (damage("tokenizer.json", Path.unlink), "has no tokenizer"),
        (damage("tokenizer.json", lambda file: file.write_text("[1]")), "its tokenizer cannot be read"),
    ],
)
def test_bad_checkpoints_give_one_line(
    change: Callable[[Path], None], message: str, copy_of: Callable[[str], tuple[Path, Any]]
) -> None:
    folder, _ = copy_of("BertForMaskedLM")
    change(folder)
    with pytest.raises(InputError, match=re.escape(message)) as raised:
        load_transformers(folder)
    assert "\n" not in str(raised.value)


def without_mask(folder: Path) -> None:
    """Its tokenizer names no mask, though it has the token."""
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    del settings["mask_token"]
    file.write_text(json.dumps(settings))


def test_all_that_is_missing_is_said_at_once(copy_of: Callable[[str], tuple[Path, Any]]) -> None:
    folder, _ = copy_of("BertForMaskedLM")
    (folder / "tokenizer.json").unlink()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    change_config(is_decoder=True)(folder)
    with pytest.raises(InputError) as raised:
        load_transformers(folder)
    assert str(raised.value) == (
        f"{folder}: config.json: is_decoder: true, expected false as in 'bert' models; has no tokenizer (tokenizer.json "
        "or vocab.txt); 'anyorder convert' can make one; model.safetensors: no such file; pytorch_model.bin is pickled "
        "and will not be opened; 'anyorder convert' makes it safetensors"
    )


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            3,
            "its tokenizer's mask token is 10 ('[MASK]'), but mask_token_id in its config.json is 3 ('w3'); correct one",
        ),
        (MASK, None),
        (None, None),
    ],
)
def test_tokenizer_and_config_agree_on_the_mask(
    named: int | None, message: str | None, copy_of: Callable[[str], tuple[Path, Any]]
) -> None:
    folder, _ = copy_of("LlamaForCausalLM")
    change_config(mask_token_id=named)(folder)
    if message is None:
        assert load_transformers(folder).mask_token == MASK
        return
    with pytest.raises(InputError, match=re.escape(message)):
        load_transformers(folder)


def test_an_ordinary_word_is_no_mask_unless_the_tokenizer_says_so(copy_of: Callable[[str], tuple[Path, Any]]) -> None:
    folder, _ = copy_of("LlamaForCausalLM")
    without_mask(folder)
    change_config(mask_token_id=MASK)(folder)
    assert load_transformers(folder).mask_token == MASK  # a special token
    change_config(mask_token_id=3)(folder)
    with pytest.raises(
        InputError, match=r"mask_token_id in its config.json is 3 \('w3'\), an ordinary token; if that is"
    ):
        load_transformers(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "mask_token": "w3"}))
    assert load_transformers(folder).mask_token == 3


def test_a_mask_that_the_model_does_not_have_is_refused() -> None:
    words = tokenizer()
    words.add_special_tokens({"mask_token": "<new>", "additional_special_tokens": ["<1>", "<2>", "<3>", "<4>"]})
    words.add_special_tokens({"mask_token": "<4>"})
    with pytest.raises(InputError, match=r"mask token is 29 \('<4>'\), but the model has 28 tokens"):
        wrap_transformers(network("BertForMaskedLM"), words, "mine")


def test_autoregressive_models_are_refused(copy_of: Callable[[str], tuple[Path, Any]]) -> None:
    folder, _ = copy_of("GPT2LMHeadModel")
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / file).exists():
            settings = json.loads((folder / file).read_text())
            settings.pop("mask_token", None)
            (folder / file).write_text(json.dumps(settings))
    with pytest.raises(InputError, match="is not a masked model"):
        load_transformers(folder)


def test_hub_ids_need_the_network_or_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="could not be fetched from the hub") as raised:
        load_transformers("hf:nobody/no-such-model")
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match="no such folder"):
        load_transformers("hf:./no/such/folder")


def test_hub_ids_load_from_the_cache(
    saved: dict[str, tuple[Path, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "models--me--tiny-bert"
    shutil.copytree(saved["BertForMaskedLM"][0], cached / "snapshots" / "abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert load_transformers("hf:me/tiny-bert").mask_token == MASK
