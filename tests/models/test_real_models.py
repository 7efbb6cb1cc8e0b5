"""A real model, rxnmapper (0.7M weights, MIT license), as its package on PyPI holds it: chemical reactions in any order.

Only the files in its wheel are used: the package itself needs an old version of Transformers. `make test` fetches it.
"""

import hashlib
import re
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import AlbertConfig, AlbertForMaskedLM

from anyorder.decoder import Decoder, load
from anyorder.evaluation.evaluate_orders import evaluate_orders
from anyorder.models.hf.convert import Conversion, convert
from anyorder.models.hf.vocabularies import SMILES
from tests.models.checkpoints import logits_of

WHEEL = Path(sys.prefix, "wheels", "rxnmapper-0.4.3-py3-none-any.whl")
SHA256 = "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5"
CHECKPOINT = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
FETCH = f"pip download --no-deps --dest {WHEEL.parent} rxnmapper==0.4.3"
pytestmark = pytest.mark.skipif(not WHEEL.exists(), reason=f"rxnmapper is not there ({FETCH})")
REACTIONS = [  # from the package's own tests
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12",
    "CC[O-]~[Na+].BrCC>>CCOCC",
    "CCC[O-]~[Na+].BrCC>>CCOCCC",
    "NCC[O-]~[Na+].BrCC>>NCCOCC",
    "CCO.BrCFC>>CCOCFC",
]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Conversion]:
    assert hashlib.sha256(WHEEL.read_bytes()).hexdigest() == SHA256
    folder = tmp_path_factory.mktemp("rxnmapper")
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith(CHECKPOINT)])
    return folder / CHECKPOINT, convert(folder / CHECKPOINT, folder / "new")


@pytest.fixture(scope="module")
def decoder(converted: tuple[Path, Conversion]) -> Decoder:
    return load(converted[1].folder, device="cpu")


def test_it_loads_at_the_first_try(converted: tuple[Path, Conversion]) -> None:
    made = converted[1]
    assert (made.model_type, made.parameters, made.vocab_size) == ("albert", 735_567, 591)
    assert (made.mask_token, made.reads) == ("[MASK]", "split into smiles, with its case")
    assert made.left_out == ("albert.pooler.weight", "albert.pooler.bias")


def test_the_numbers_are_those_of_transformers(converted: tuple[Path, Conversion], decoder: Decoder) -> None:
    folder = converted[0]
    plain = AlbertForMaskedLM(AlbertConfig.from_json_file(str(folder / "config.json"))).eval()
    weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    assert plain.load_state_dict(weights, strict=False).missing_keys == []
    [ids] = decoder.model.encode(["CC[MASK].[MASK]rCC>>CCOCC"])
    with torch.no_grad():
        expected = plain(torch.tensor([[12, *ids, 13]])).logits[0, 1:-1]
    torch.testing.assert_close(logits_of(decoder.model, ids.tolist()), expected, atol=1e-4, rtol=1e-4)


def test_reactions_are_read_and_written_without_spaces(decoder: Decoder) -> None:
    for reaction, ids in zip(REACTIONS, decoder.model.encode(REACTIONS), strict=True):
        assert decoder.model.to_tokens(ids) == re.findall(SMILES, reaction)
        assert decoder.model.to_text(ids, "infill") == reaction
        assert decoder.model.unknown_token not in ids
    masked = REACTIONS[0].replace(">>CC(C)Sc1ncc", ">>CC(C)[MASK]c1[MASK]cc")
    [filled] = decoder.fill(masked, order="margin")
    assert filled.text == REACTIONS[0]


def test_most_of_a_reaction_comes_back(decoder: Decoder) -> None:
    """A third of it is masked; a guess among the ten usual symbols would be right in a tenth."""
    result = evaluate_orders(decoder, REACTIONS[:2], orders=["margin"], samples=100, mask_share=0.3)
    recovered = result.rows[0].recovered
    assert recovered is not None
    assert recovered > 60
