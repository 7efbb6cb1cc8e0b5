"""Checkpoints as people have them load at the first try once they are converted, and compute the same numbers."""

import json
import os
import pickle
import random
import re
import shutil
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertTokenizer

from anyorder.cli import main
from anyorder.decoder import load
from anyorder.errors import InputError
from anyorder.models.hf.convert import Conversion, convert
from anyorder.models.hf.pretrained import TransformersModel, load_transformers
from anyorder.models.hf.vocabularies import make_tokenizer, read_vocabulary
from tests.models.checkpoints import ENCODERS, MASK, VOCABULARY, logits_of, network, tokenizer

TOKENS = [1, MASK, 3, MASK, 14]


def as_saved(name: str, folder: Path, weights: dict[str, Tensor] | None = None, **settings: object) -> Any:
    """A checkpoint with config.json, vocab.txt and pickled weights; returns the network in it."""
    model = network(name)
    folder.mkdir(exist_ok=True)
    config = {**json.loads(model.config.to_json_string()), **settings}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value != ""}))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    if weights is None:
        weights = model.state_dict()
    torch.save(weights, folder / "pytorch_model.bin")
    return model


def native_logits(plain: Any, model: TransformersModel) -> Tensor:
    canvas = torch.tensor([*model._before, *TOKENS, *model._after])
    with torch.no_grad():
        return plain(canvas[None]).logits[0, len(model._before) :][: len(TOKENS)]


def assert_same(out: Path, plain: Any) -> TransformersModel:
    model = load_transformers(out)
    torch.testing.assert_close(logits_of(model, TOKENS), native_logits(plain, model), atol=2e-5, rtol=1e-4)
    return model


def error_of(source: Path, out: Path, **options: Any) -> str:
    """The message, which is one line; nothing is left behind."""
    before = sorted(out.parent.iterdir())
    with pytest.raises(InputError) as caught:
        convert(source, out, **options)
    assert sorted(out.parent.iterdir()) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return tmp_path / "old"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "new"


@pytest.mark.parametrize("name", ENCODERS)
def test_a_pickle_and_a_vocabulary(name: str, old: Path, out: Path) -> None:
    plain = as_saved(name, old)
    made = convert(old, out)
    model = assert_same(out, plain)
    assert made.parameters == sum(weight.numel() for weight in plain.parameters())
    assert (made.mask_token, made.vocab_size) == ("[MASK]", len(VOCABULARY))
    assert [ids.tolist() for ids in model.encode(["w1 [MASK] w3"])] == [[1, MASK, 3]]
    assert {file.name for file in out.iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "checksums.json"
    }  # fmt: skip


def test_weights_in_several_files(old: Path, out: Path) -> None:
    plain = as_saved("BertForMaskedLM", old)
    weights = list(plain.state_dict().items())
    (old / "pytorch_model.bin").unlink()
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    for number, name in enumerate(names):
        torch.save(dict(weights[number::2]), old / name)
    places = {name: names[i % 2] for i, (name, _) in enumerate(weights)}
    (old / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    convert(old, out)
    assert_same(out, plain)
    (old / names[1]).unlink()
    assert f"lacks {names[1]}" in error_of(old, out.with_name("another"))


@pytest.mark.parametrize("case", ["module", "wrapped", "old-names", "bare-body", "untied-names-missing", "half"])
def test_what_programs_do_to_weights(case: str, old: Path, out: Path) -> None:
    plain = network("BertForMaskedLM")
    weights = plain.state_dict()
    if case == "module":
        weights = {f"module.{name}": tensor for name, tensor in weights.items()}
    elif case == "old-names":
        for theirs, ours in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
            weights = {name.replace(ours, theirs): tensor for name, tensor in weights.items()}
    elif case == "bare-body":
        weights = {name.removeprefix("bert."): tensor for name, tensor in weights.items()}
    elif case == "untied-names-missing":
        weights = {name: tensor for name, tensor in weights.items() if "predictions.decoder" not in name}
    elif case == "half":
        weights = {name: tensor.double() if "LayerNorm" in name else tensor for name, tensor in weights.items()}
    weights["bert.pooler.dense.weight"] = torch.zeros(24, 24)
    saved: Any = {"epoch": 3, "state_dict": weights} if case == "wrapped" else weights
    as_saved("BertForMaskedLM", old, saved, model_type="")
    made = convert(old, out)
    assert made.model_type == "bert"
    assert made.left_out == ("bert.pooler.dense.weight",)
    assert_same(out, plain)


def test_output_weights_of_their_own(old: Path, out: Path) -> None:
    plain = network("BertForMaskedLM")
    plain.cls.predictions.decoder.weight = torch.nn.Parameter(plain.cls.predictions.decoder.weight + 0.5)
    as_saved("BertForMaskedLM", old, plain.state_dict())
    convert(old, out)
    assert_same(out, plain)


def test_everything_that_is_missing_is_named_at_once(old: Path, out: Path) -> None:
    old.mkdir()
    message = error_of(old, out)
    assert "no weights" in message
    assert "config.json: no such file" in message
    assert "no vocabulary" in message
    plain = as_saved("BertForMaskedLM", old, model_type="", vocab_size=20)
    body = {name.removeprefix("bert."): w for name, w in plain.state_dict().items() if name.startswith("bert.")}
    torch.save(body, old / "pytorch_model.bin")
    (old / "vocab.txt").rename(old.parent / "vocab.txt")
    assert error_of(old, out) == (
        f"{old}: cannot be converted: config.json: does not say its model_type: give its family, such as bert; "
        f"no vocabulary (tokenizer.json, vocab.txt): give {old.parent / 'vocab.txt'}, if that is it"
    )
    message = error_of(old, out, family="bert", vocabulary=old.parent / "vocab.txt")
    assert "lacking cls.predictions.bias, cls.predictions.transform.dense.weight" in message
    assert "its output layer: it cannot fill masks" in message
    assert "bert.embeddings.word_embeddings.weight has the shape 28x24 but 20x24 by this file" in message
    assert "vocab.txt: has 25 tokens, but the model 20" in message


def test_settings_and_weights_that_disagree(old: Path, out: Path) -> None:
    as_saved("BertForMaskedLM", old, num_hidden_layers=1)
    assert "says 1 layers, but there is bert.encoder.layer.1." in error_of(old, out)
    as_saved("BertForMaskedLM", old, num_hidden_layers=3)
    assert "lacking bert.encoder.layer.2." in error_of(old, out)
    as_saved("BertForMaskedLM", old, num_hidden_layers=10**9)
    assert "expected at most 1,024" in error_of(old, out)
    as_saved("BertForMaskedLM", old, hidden_size="many")
    assert "does not describe a BertForMaskedLM" in error_of(old, out)
    as_saved("BertForMaskedLM", old, model_type="t5")
    assert "model_type 't5' is not one of the masked models" in error_of(old, out)
    with pytest.raises(InputError, match="unknown family 'brt': did you mean 'bert'"):
        convert(old, out, family="brt")


def test_no_code_is_run(old: Path, out: Path, tmp_path: Path) -> None:
    as_saved("BertForMaskedLM", old)
    marker = tmp_path / "run"

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {marker}",)

    for save in (torch.save, lambda value, file: file.write_bytes(pickle.dumps(value))):
        save({"a": torch.zeros(1), "b": Evil()}, old / "pytorch_model.bin")
        assert re.search("needs posix.system, more than weights|is damaged", error_of(old, out))
    torch.save({"weights": [1, 2]}, old / "pytorch_model.bin")
    assert "holds no weights by name" in error_of(old, out)
    torch.save({"a": torch.zeros(1).expand(10**9)}, old / "pytorch_model.bin")
    assert "a is not a plain tensor" in error_of(old, out)
    torch.save({"a": torch.tensor([float("nan")])}, old / "pytorch_model.bin")
    assert "a holds numbers that are not finite" in error_of(old, out)
    assert not marker.exists()


def test_damaged_files(old: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Truncated, or with a few bytes changed: one line each, or the same numbers."""
    plain = as_saved("BertForMaskedLM", old)
    files = {file.name: file.read_bytes() for file in old.iterdir()}
    draw = random.Random(3)
    for _ in range(30):
        name = draw.choice(list(files))
        whole = files[name]
        damaged = bytearray(whole[: draw.randrange(len(whole))] if draw.random() < 0.4 else whole)
        for _ in range(draw.choice((1, 4, 64))):
            if damaged:
                damaged[draw.randrange(min(len(damaged), 4000))] = draw.randrange(256)
        (old / name).write_bytes(damaged)
        code = main(["convert", str(old), str(out)])
        printed = capsys.readouterr()
        assert (code, len(printed.err.splitlines())) in ((0, 0), (2, 1))
        assert sorted(file.name for file in out.parent.iterdir()) == (["old"] if code else ["new", "old"])
        shutil.rmtree(out, ignore_errors=True)
        (old / name).write_bytes(whole)
    convert(old, out)
    assert_same(out, plain)
    assert "already exists" in error_of(old, out)


# fairseq


FAIRSEQ_NAMES = {
    r"roberta\.embeddings\.word_embeddings": "embed_tokens",
    r"roberta\.embeddings\.position_embeddings": "embed_positions",
    r"roberta\.embeddings\.LayerNorm": "emb_layer_norm",
    r"roberta\.encoder\.layer\.(\d)\.attention\.self\.(.)(?:uery|ey|alue)": r"layers.\1.self_attn.\2_proj",
    r"roberta\.encoder\.layer\.(\d)\.attention\.output\.dense": r"layers.\1.self_attn.out_proj",
    r"roberta\.encoder\.layer\.(\d)\.attention\.output\.LayerNorm": r"layers.\1.self_attn_layer_norm",
    r"roberta\.encoder\.layer\.(\d)\.intermediate\.dense": r"layers.\1.fc1",
    r"roberta\.encoder\.layer\.(\d)\.output\.dense": r"layers.\1.fc2",
    r"roberta\.encoder\.layer\.(\d)\.output\.LayerNorm": r"layers.\1.final_layer_norm",
}
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"


def as_fairseq(folder: Path, age: str) -> Any:
    """A RoBERTa of 20 symbols as fairseq saves it; returns the same network of Transformers."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(
        vocab_size=25, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40,
        max_position_embeddings=32, type_vocab_size=1, layer_norm_eps=1e-5,
    )  # fmt: skip
    torch.manual_seed(1)
    plain = RobertaForMaskedLM(config).eval()
    for weight in plain.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    plain.roberta.embeddings.token_type_embeddings.weight.data.zero_()
    root = "decoder" if age == "old" else "encoder"
    theirs: OrderedDict[str, Tensor] = OrderedDict()
    for name, tensor in plain.state_dict().items():
        if name.startswith("lm_head."):
            theirs[f"{root}.lm_head.{name.removeprefix('lm_head.').removeprefix('decoder.')}"] = tensor
        for native, fairseq in FAIRSEQ_NAMES.items():
            if re.match(native, name):
                theirs[f"{root}.sentence_encoder.{re.sub(native, fairseq, name)}"] = tensor
    if age == "oldest":
        for layer in range(2):
            for kind in ("weight", "bias"):
                stem = f"{root}.sentence_encoder.layers.{layer}.self_attn"
                parts = [theirs.pop(f"{stem}.{part}_proj.{kind}") for part in "qkv"]
                theirs[f"{stem}.in_proj_{kind}"] = torch.cat(parts)
    theirs[f"{root}.sentence_encoder.version"] = torch.zeros(1)
    settings = Namespace(encoder_attention_heads=2, activation_fn="gelu", arch="roberta_small")
    saved = {"cfg": {"model": vars(settings)}} if age == "new" else {"args": settings}
    folder.mkdir()
    torch.save({**saved, "model": theirs, "extra_state": {"epoch": 7}}, folder / "model.pt")
    (folder / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in AMINO_ACIDS))
    return plain


@pytest.mark.parametrize("age", ["oldest", "old", "new"])
def test_a_roberta_of_fairseq(age: str, old: Path, out: Path) -> None:
    plain = as_fairseq(old, age)
    made = convert(old, out)
    model = assert_same(out, plain)
    assert (made.model_type, made.vocab_size, made.mask_token) == ("roberta", 25, "<mask>")
    assert made.reads == "split into characters, with its case"
    assert model.max_positions == 30
    [ids] = model.encode(["AY[MASK]X"])
    assert ids.tolist() == [4, 23, 24, 3]
    assert model.tokenizer("A")["input_ids"] == [0, 4, 2]
    assert not model.has_spaces
    [filled] = load(out, device="cpu").fill("ACD[MASK]F")
    assert re.fullmatch(f"ACD[{AMINO_ACIDS}]F", filled.text)


def test_what_is_no_roberta(old: Path, out: Path) -> None:
    as_fairseq(old, "new")
    saved = torch.load(old / "model.pt", weights_only=True)
    saved["cfg"]["model"]["activation_fn"] = "swish"
    torch.save(saved, old / "model.pt")
    assert "activation_fn: 'swish', expected one of gelu, relu" in error_of(old, out)
    saved["model"]["encoder.sentence_encoder.layer_norm.weight"] = torch.zeros(24)
    torch.save(saved, old / "model.pt")
    assert "is not a RoBERTa as published, it has encoder.sentence_encoder.layer_norm.weight" in error_of(old, out)
    torch.save(saved, old / "last.pt")
    assert "has several checkpoints, give one of them: last.pt, model.pt" in error_of(old, out)


def test_a_dictionary_of_gpt2_tokens(tmp_path: Path) -> None:
    """As in the RoBERTas that were published: symbols are numbers of GPT-2's tokens."""
    (tmp_path / "dict.txt").write_text("2 9\n0 7\n3 5\n1 2\nmadeupword0000 0\n")
    with pytest.raises(InputError, match="encoder.json and vocab.bpe is not beside it"):
        read_vocabulary(tmp_path / "dict.txt", tmp_path, is_fairseq=True)
    (tmp_path / "encoder.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "Ġ": 3}))
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\na b\nab b\n", encoding="utf-8")
    made, reads = make_tokenizer(read_vocabulary(tmp_path / "dict.txt", tmp_path, is_fairseq=True))
    assert made("ab b<mask>")["input_ids"] == [0, 4, 6, 7, 9, 2]
    assert made.decode([4, 6, 7]) == "ab b"
    assert reads == "split into pieces of words, with its case"


# Vocabularies


BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", ",", "e", "##e", "中"]
LINES = ["The cats sat, eé", "CATS the  cat\tsat?", "thecats , [MASK] e", "中cat", "", "é"]


@pytest.mark.parametrize("words", [BERT, [*BERT, "The", "CAT"]], ids=["uncased", "cased"])
def test_vocab_txt_reads_as_in_transformers(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    made, reads = make_tokenizer(read_vocabulary(tmp_path / "vocab.txt", tmp_path))
    is_cased = "The" in words
    theirs = BertTokenizer(vocab=str(tmp_path / "vocab.txt"), do_lower_case=not is_cased)
    assert made(LINES)["input_ids"] == theirs(LINES)["input_ids"]
    assert made.decode([5, 6, 7, 8]) == theirs.decode([5, 6, 7, 8]) == "the cats sat"
    assert reads == f"split into pieces of words, {'with its case' if is_cased else 'in lower case'}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": is_cased, "strip_accents": False}))
    made, _ = make_tokenizer(read_vocabulary(tmp_path / "vocab.txt", tmp_path))
    theirs = BertTokenizer(vocab=str(tmp_path / "vocab.txt"), do_lower_case=is_cased, strip_accents=False)
    assert made(LINES)["input_ids"] == theirs(LINES)["input_ids"]


SYMBOLS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]"]


@pytest.mark.parametrize(
    ("words", "options", "text", "tokens"),
    [
        (list("ACD"), {}, "CAD", ["C", "A", "D"]),
        (list("ACD"), {}, "C A [MASK]D", ["C", "A", "[MASK]", "D"]),
        (list("ACD"), {}, "CaX", ["C", "[UNK]", "[UNK]"]),
        (list("acd"), {}, "CAd", ["c", "a", "d"]),
        (list("ACD"), {"split": "none"}, "CAD A", ["[UNK]", "A"]),
        (["C", "Cl", "[C@@H]", ">>", "%10", "c", "1", "="], {}, "ClC[C@@H]c1[MASK]%10>>C", None),
        (["C", "Cl", "[C@@H]", ">>"], {}, "C¿¿Cl>>", ["C", "[UNK]", "Cl", ">>"]),
        (["AUG", "CCC"], {"split": "[ACGU]{3}"}, "AUGCCCAUGA", ["AUG", "CCC", "AUG", "[UNK]"]),
        (["aug", "ccc"], {"split": "[acgu]{3}", "lowercase": True}, "AUGccc", ["aug", "ccc"]),
    ],
)
def test_symbols_without_spaces(
    words: list[str], options: dict[str, Any], text: str, tokens: list[str] | None, tmp_path: Path
) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SYMBOLS, *words]))
    made, _ = make_tokenizer(read_vocabulary(tmp_path / "vocab.txt", tmp_path), **{"split": "auto", **options})
    expected = tokens or re.findall(r"\[MASK\]|\[C@@H\]|Cl|>>|%10|.", text)
    ids = made(text, add_special_tokens=False)["input_ids"]
    assert made.convert_ids_to_tokens(ids) == expected
    if options.get("split") != "none" and "[UNK]" not in expected and not options.get("lowercase"):
        assert made.decode(ids) == "".join(expected)


def test_odd_vocabularies(old: Path, out: Path) -> None:
    as_saved("BertForMaskedLM", old)
    for contents, message in {
        b"": "is empty, expected one token per line",
        b"a\nb\n": "has no mask token and no unk token",
        b"a\n\xff\n": "invalid UTF-8 (byte 3)",
        ("\n".join([*VOCABULARY, *"abcdefg"])).encode(): "vocab.txt: has 32 tokens, but the model 28",
        b"[MASK]\n[UNK]\n": "its tokenizer has no tokens but special ones",
    }.items():
        (old / "vocab.txt").write_bytes(contents)
        assert message in error_of(old, out)
    (old / "vocab.txt").write_bytes("\ufeff".encode() + "\r\n".join(VOCABULARY).encode())
    convert(old, out)
    assert len(load_transformers(out).tokenizer) == len(VOCABULARY)
    assert "is not a regular expression" in error_of(old, out.with_name("other"), split="(")
    assert "no such file" in error_of(old, out.with_name("other"), vocabulary=old / "none.txt")


def test_a_tokenizer_that_is_there_is_kept(old: Path, out: Path) -> None:
    plain = as_saved("BertForMaskedLM", old)
    tokenizer().save_pretrained(old)
    made: Conversion = convert(old, out)
    assert made.reads == "as tokenizer.json says"
    assert (out / "tokenizer.json").read_bytes() == (old / "tokenizer.json").read_bytes()
    model = assert_same(out, plain)
    assert [ids.tolist() for ids in model.encode(["w1w2"])] == [[VOCABULARY.index("[UNK]")]]
    convert(old, out.with_name("split"), split=r"w\d")
    model = load_transformers(out.with_name("split"))
    assert [ids.tolist() for ids in model.encode(["w1w2"])] == [[1, 2]]


def test_the_command(old: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_fairseq(old, "old")
    assert main(["convert", str(old / "model.pt"), str(out)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "roberta: 11,073 parameters, 25 tokens, mask token <mask>"
    assert printed[1] == "text: split into characters, with its case"
    assert re.fullmatch(f"a mask alone is filled with [{AMINO_ACIDS}]", printed[2])
    assert printed[3] == f"wrote {out}; next, with your text, one per line:"
    assert printed[4] == f"anyorder evaluate --model hf:{out} --text lines.txt --limit 20"
    assert main(["convert", str(old), str(out)]) == 2
    assert capsys.readouterr().err == f"anyorder convert: {out}: already exists; remove it or choose another place\n"
    assert main(["convert", str(old / "none"), str(out / "new")]) == 2
    assert capsys.readouterr().err == f"anyorder convert: {old / 'none'}: no such file or folder\n"
