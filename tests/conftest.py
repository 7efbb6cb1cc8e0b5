"""Small real things that tests share: a toy parallel corpus, the store prepared from it, tiny models, a browser."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from anyorder.data.corpus import parse_corpora
from anyorder.data.prepare import FilterConfig, prepare
from anyorder.data.store import Store
from anyorder.data.vocabulary import Vocabulary
from anyorder.models.native.transformer import TransformerConfig
from anyorder.models.native.translation_model import REACH, ModelConfig, TranslationModel

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell without job control started the suite in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # the processes of the suite share the cores
# How long an example takes says nothing on a busy machine.
hypothesis.settings.register_profile("suite", deadline=None, max_examples=40)
hypothesis.settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every worker begins with its share of the slow tests, so that none of them is left for the end."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.get_closest_marker("slow")]
    fast = [item for item in items if not item.get_closest_marker("slow")]
    starts = [len(fast) * worker // workers for worker in range(workers + 1)]
    items[:] = [item for w in range(workers) for item in [*slow[w::workers], *fast[starts[w] : starts[w + 1]]]]


LEXICON = {
    "der Hund": "the dog", "die Katze": "the cat", "das Haus": "the house", "ein Baum": "a tree", "ein Kind": "a child",
    "sieht": "sees", "sucht": "seeks", "findet": "finds", "malt": "paints", "heute": "today", "gestern": "yesterday",
    "im Garten": "in the garden", "am Fluss": "by the river", "mit Freude": "with joy", "schnell": "quickly",
}  # fmt: skip
NOUNS, VERBS, REST = list(LEXICON)[:5], list(LEXICON)[5:9], list(LEXICON)[9:]


def toy_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Different German sentences and their translations, word order kept."""
    draw = random.Random(seed)
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        parts = [draw.choice(NOUNS), draw.choice(VERBS), draw.choice(NOUNS)]
        parts += draw.sample(REST, draw.randint(0, 4))
        german, english = " ".join(parts), " ".join(LEXICON[part] for part in parts)
        pairs[german[0].upper() + german[1:] + "."] = english[0].upper() + english[1:] + "."
    return list(pairs.items())


def write_pairs(folder: Path, name: str, pairs: list[tuple[str, str]]) -> str:
    """Files name.de and name.en; returns the pattern that names them."""
    for column, language in enumerate(("de", "en")):
        text = "".join(pair[column] + "\n" for pair in pairs)
        (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return f"{folder}/{name}.%"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    pairs = toy_pairs(700, seed=7)
    write_pairs(folder, "train", pairs[:600])
    write_pairs(folder, "dev", pairs[600:])
    return folder


@pytest.fixture(scope="session")
def store(corpus: Path) -> Store:
    languages = ("de", "en")
    splits = {name: parse_corpora(f"{corpus}/{name}.%", languages) for name in ("train", "dev")}
    out = corpus / "store"
    prepare(languages, splits, out, vocabulary=200, filters=FilterConfig(), workers=1)
    return Store(out)


@pytest.fixture(scope="session")
def vocabulary(store: Store) -> Vocabulary:
    return store.vocabulary


def tiny(vocabulary: Vocabulary, seed: int = 0, **shape: object) -> TranslationModel:
    """A model of random weights, sharp enough that its choices are not near-ties. Targets are about as long as sources."""
    torch.manual_seed(seed)
    size = {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "max_positions": 64, **shape}
    model = TranslationModel(ModelConfig(TransformerConfig(**size), len(vocabulary), ("de", "en")), vocabulary)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.transformer.parameters():
            if parameter.dim() == 2:
                parameter.mul_(1.5)
        model.output_bias.normal_(std=0.5)
        model.length.outer.bias -= torch.arange(-REACH, REACH + 1).abs()
    return model.eval()


@pytest.fixture(scope="session", params=[False, True], ids=["source-once", "whole-pair"])
def model(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> TranslationModel:
    return tiny(vocabulary, num_layers=3, source_sees_target=request.param)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """The test runs with two threads of the matrix library, as on most machines; the others run with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def run_cli(
    *arguments: object, processes: int = 1, cwd: Path | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own, or in several that torchrun starts."""
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--master-addr=127.0.0.1"]
        command += [f"--master-port={29500 + os.getpid() % 2000}"]
    command += ["-m", "anyorder", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, input=stdin, env=environment, timeout=240, check=False
    )


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A real browser; tests that ask for it are skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with playwright.sync_playwright() as tool:
        if found is None and not Path(tool.chromium.executable_path).exists():
            pytest.skip("no Chromium is installed")
        browser = tool.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Any) -> Iterator[Any]:
    """A page that fails its test if anything is written to the console or asked of a network."""
    with open_tab(chromium) as page:
        yield page


VIEWPORT = {"width": 1280, "height": 900}
IDLE: list[Any] = []
"""Pages that a test has used before; a new one costs half a second."""


@contextmanager
def open_tab(browser: Any, *origins: str) -> Iterator[Any]:
    """A page that may request only these origins and must not write to the console; anything else is in `page.messages`."""
    page = IDLE.pop() if IDLE else browser.new_context(viewport=VIEWPORT, color_scheme="light").new_page()
    page.messages = messages = []
    allowed = ("file:", "data:", "about:", *(f"{origin}/" for origin in origins))
    listeners = {
        "console": lambda message: messages.append(f"console {message.type}: {message.text}"),
        "pageerror": lambda error: messages.append(f"error: {error}"),
        "request": lambda request: request.url.startswith(allowed) or messages.append(request.url),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    try:
        yield page
        _forget(page)
        assert messages == []
    except BaseException:
        page.context.close()
        raise
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    IDLE.append(page)


def _forget(page: Any) -> None:
    """Nothing of a test is left for the next one: neither its document nor what was stored or set."""
    if not page.url.startswith("about:"):
        page.evaluate("localStorage.clear()")
    page.goto("about:blank")
    page.context.clear_cookies()
    page.context.clear_permissions()
    page.emulate_media(color_scheme="light", reduced_motion="no-preference")
    page.set_viewport_size(VIEWPORT)
    page.set_default_timeout(30_000)
