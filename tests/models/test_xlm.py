"""Parity with Transformers' XLM: the same logits, and the same subwords."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from anyorder.data.packing import pack_sentences
from anyorder.data.text import Text
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError
from anyorder.models.native.attention import FullAttention, QueryPositions, Segments
from anyorder.models.native.translation_model import TranslationModel

transformers = pytest.importorskip("transformers")


def write_xlm(folder: Path, vocabulary: Vocabulary, **changes: object) -> "transformers.XLMWithLMHeadModel":
    """A small XLM repository as the hub would hold it."""
    torch.manual_seed(5)
    options = {
        "vocab_size": len(vocabulary), "emb_dim": 48, "n_layers": 3, "n_heads": 4, "n_langs": 2, "causal": False,
        "max_position_embeddings": 64, "gelu_activation": True, "lang2id": {"de": 0, "en": 1},
        "id2lang": {"0": "de", "1": "en"}, "use_lang_emb": True, "init_std": 0.12, "embed_init_std": 0.12, **changes,
    }  # fmt: skip
    xlm = transformers.XLMWithLMHeadModel(transformers.XLMConfig(**options)).eval()
    with torch.no_grad():
        xlm.pred_layer.proj.bias.normal_()
    xlm.save_pretrained(folder)
    vocabulary.save(folder)
    return xlm


SOURCES = [[20, 30, 40, 50, 60], [21, 22], list(range(25, 45))]
TARGETS = [[31, 5, 5], [5, 5, 5, 33, 44, 55, 66], [70]]


def our_logits(model: TranslationModel) -> torch.Tensor:
    """Logits at every token of all pairs, packed."""
    halves = [half for pair in zip(SOURCES, TARGETS, strict=True) for half in pair]
    row = pack_sentences(halves, np.array([0, 1] * 3), model.vocabulary.eos)
    pairs = Segments.of(row.sizes.reshape(-1, 2).sum(1))
    inputs = [torch.from_numpy(array) for array in (row.tokens, row.positions, row.languages)]
    at = QueryPositions(torch.arange(len(row.tokens)), pairs)
    with torch.no_grad():
        return model.logits(model.transformer(*inputs, FullAttention(pairs), at))


def their_logits(xlm: "transformers.XLMWithLMHeadModel", eos: int) -> torch.Tensor:
    """The same, one pair at a time."""
    out = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        tokens = torch.tensor([[eos, *source, eos, eos, *target, eos]])
        first, second = len(source) + 2, len(target) + 2
        languages = torch.tensor([[0] * first + [1] * second])
        positions = torch.tensor([[*range(first), *range(second)]])
        with torch.no_grad():
            out.append(xlm(tokens, langs=languages, position_ids=positions).logits[0])
    return torch.cat(out)


PAPER_SIZE = {"emb_dim": 1024, "n_layers": 6, "n_heads": 8, "max_position_embeddings": 512}
PAPER_SIZE |= {"init_std": 0.02, "embed_init_std": 1024**-0.5}  # XLM's own
VARIANTS = {
    "gelu": {},
    "relu": {"gelu_activation": False},
    "no-languages": {"use_lang_emb": False},
    "paper": PAPER_SIZE,
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_logits(tmp_path: Path, vocabulary: Vocabulary, variant: str) -> None:
    xlm = write_xlm(tmp_path, vocabulary, **VARIANTS[variant])
    model = TranslationModel.from_pretrained(tmp_path)
    theirs = their_logits(xlm, vocabulary.eos)
    assert theirs.std(0).mean() > 0.1  # a comparison of numbers that differ from token to token
    assert (our_logits(model) - theirs).abs().max() <= 1e-5
    in_double = our_logits(model.double()) - their_logits(xlm.double(), vocabulary.eos)
    assert in_double.abs().max() <= 1e-6  # our logits come back in single precision


def test_one_of_ours_again_after_saving(tmp_path: Path, vocabulary: Vocabulary) -> None:
    write_xlm(tmp_path / "xlm", vocabulary)
    model = TranslationModel.from_pretrained(tmp_path / "xlm")
    model.save_pretrained(tmp_path / "ours")
    again = TranslationModel.from_pretrained(tmp_path / "ours")
    assert torch.equal(our_logits(again), our_logits(model))
    assert again.config == model.config
    assert again.config.transformer.source_sees_target


def test_it_has_no_length_predictor(tmp_path: Path, vocabulary: Vocabulary) -> None:
    write_xlm(tmp_path, vocabulary)
    with pytest.raises(InputError, match="no trained length predictor"):
        TranslationModel.from_pretrained(tmp_path).predict_lengths([np.array([20, 21])], "de-en", 1)


@pytest.mark.parametrize("damage", ["missing", "another shape"])
def test_values_that_do_not_fit_their_keys(tmp_path: Path, vocabulary: Vocabulary, damage: str) -> None:
    write_xlm(tmp_path, vocabulary)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if name.endswith(".v_lin.weight"))
    tensors[name] = tensors[name][:, :-1].clone()
    if damage == "missing":
        del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="does not fit its config.json"):
        TranslationModel.from_pretrained(tmp_path)


def test_causal_models_are_refused(tmp_path: Path, vocabulary: Vocabulary) -> None:
    write_xlm(tmp_path, vocabulary)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "causal": True}))
    with pytest.raises(InputError, match="only masked XLM models"):
        TranslationModel.from_pretrained(tmp_path)


def test_the_same_subwords_as_xlm_tokenizer(tmp_path: Path, vocabulary: Vocabulary) -> None:
    """XLM's dictionaries lack merges that always lead on to longer pieces; both read such words alike."""
    pieces = ["<s>", "</s>", "<pad>", "<unk>", "<special0>", "<special1>"]
    pieces += [letter + end for letter in "abehlort" for end in ("", "</w>")]
    pieces += ["hello</w>", "wor", "the</w>"]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o</w>"), ("w", "o"), ("wo", "r"), ("t", "he</w>")]
    merges.insert(6, ("h", "e</w>"))
    write_xlm(tmp_path, vocabulary, vocab_size=len(pieces), mask_index=5)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("".join(f"{a} {b} 1\n" for a, b in merges))
    theirs = transformers.XLMTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    model = TranslationModel.from_pretrained(tmp_path)
    assert len(model.vocabulary) == len(pieces)
    for line in ("Hello wor the her hell Zoo", "Théa the other"):
        words = Text("en", model.config.text).words(line)
        assert model.vocabulary.encode([words])[0] == theirs.convert_tokens_to_ids(theirs.tokenize(line, lang="en"))
