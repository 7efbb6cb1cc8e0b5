"""A small model with a learned order of its own for one direction, as the explorer finds it on disk."""

from pathlib import Path

import pytest
import torch

from anyorder.data.vocabulary import Vocabulary
from anyorder.models.translation import TranslationModel
from anyorder.orders.learned import PolicyConfig, PolicyNetwork, save_order
from tests.conftest import tiny


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, vocabulary: Vocabulary) -> Path:
    folder = tmp_path_factory.mktemp("explorer") / "small"
    tiny(vocabulary).save_pretrained(folder)
    model = TranslationModel.from_pretrained(folder)
    torch.manual_seed(4)
    scorer = PolicyNetwork(PolicyConfig(size=64, attention=1), model.config.transformer.hidden_size)
    torch.nn.init.normal_(scorer.out)
    save_order(scorer, folder / "learned" / "default", model, ["de-en"])
    save_order(scorer, folder / "learned" / "other" / "en-de", model, ["en-de"])
    (folder / "learned" / "default.partial-1").mkdir()
    return folder
