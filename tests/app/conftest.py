"""Small models on disk: one with a learned order for each direction, and one that fills masks."""

from pathlib import Path

import pytest

from anyorder.data.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, vocabulary: Vocabulary) -> Path:
    pytest.importorskip("fastapi", reason="the explorer needs the extra 'app'")
    from tests.app.servers import save_small_model

    folder = tmp_path_factory.mktemp("explorer") / "small"
    save_small_model(folder, vocabulary)
    (folder / "learned" / "default.partial-1").mkdir()
    return folder


@pytest.fixture(scope="session")
def masked_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("fastapi", reason="the explorer needs the extra 'app'")
    from tests.app.servers import MASKED, save_masked_model

    folder = tmp_path_factory.mktemp("explorer-masked") / MASKED
    save_masked_model(folder)
    return folder
