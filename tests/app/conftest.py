"""A small model on disk with one learned order for each direction."""

from pathlib import Path

import pytest
import torch

from anyorder.data.vocabulary import Vocabulary
from anyorder.models.translation import TranslationModel
from anyorder.orders.policy import PolicyConfig, PolicyNetwork
from anyorder.orders.storage import save_order
from tests.conftest import tiny


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, vocabulary: Vocabulary) -> Path:
    folder = tmp_path_factory.mktemp("explorer") / "small"
    tiny(vocabulary).save_pretrained(folder)
    model = TranslationModel.from_pretrained(folder)
    torch.manual_seed(4)
    network = PolicyNetwork(PolicyConfig(size=64, attention=1), model.config.transformer.hidden_size)
    torch.nn.init.normal_(network.out)
    save_order(network, folder / "learned" / "default", model, ["de-en"])
    save_order(network, folder / "learned" / "other" / "en-de", model, ["en-de"])
    (folder / "learned" / "default.partial-1").mkdir()
    return folder
