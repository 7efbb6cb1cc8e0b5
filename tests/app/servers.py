"""A real server in a thread, and small models for it to serve."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from fastapi import FastAPI

from anyorder.app.server import make_server
from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.trajectory import INFILL
from anyorder.models.hf.pretrained import load_transformers
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders.learned import save_order
from anyorder.orders.policy import PolicyConfig, PolicyNetwork
from tests.conftest import tiny
from tests.models import checkpoints

MASKED, PUZZLES = "masked", "sudoku-4x4"
"""What a model that fills masks is called, and the one that solves puzzles."""


def save_small_model(folder: Path, vocabulary: Vocabulary) -> None:
    """A model with one learned order for each direction."""
    tiny(vocabulary).save_pretrained(folder)
    model = TranslationModel.from_pretrained(folder)
    torch.manual_seed(4)
    network = PolicyNetwork(PolicyConfig(size=64, attention=1), model.config.transformer.hidden_size)
    torch.nn.init.normal_(network.out)
    save_order(network, folder / "learned" / "default", model, ["de-en"])
    save_order(network, folder / "learned" / "other" / "en-de", model, ["en-de"])


def save_masked_model(folder: Path) -> None:
    """A model that fills masks, with a learned order."""
    checkpoints.save("BertForMaskedLM", folder)
    model = load_transformers(folder)
    torch.manual_seed(5)
    network = PolicyNetwork(PolicyConfig(kind="hidden", size=64), model.hidden_size)
    save_order(network, folder / "learned" / "default" / INFILL, model, [INFILL])


@contextmanager
def serving(app: FastAPI) -> Iterator[int]:
    """The port of the app's server, which ends with the block."""
    server = make_server(app)
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
