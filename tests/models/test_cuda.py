"""The CUDA half-precision path against the CPU in single or double precision. Runs where there is a CUDA device."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from anyorder.data.store import Store
from anyorder.decoding.config import Beam, make_beam
from anyorder.decoding.engine import decode
from anyorder.decoding.revision import make_revision
from anyorder.decoding.sampling import make_sampler
from anyorder.decoding.schedules import make_schedule
from anyorder.decoding.search import beam_search
from anyorder.learning.config import RLConfig
from anyorder.models.base import Canvas
from anyorder.models.hf.pretrained import load_transformers
from anyorder.models.native.attention import MAX_SEGMENTS, QueryPositions, Segments, SourceIsolated, attend, runs_triton
from anyorder.models.native.transformer import add_norm
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import make_order
from anyorder.orders.learned import LearnedOrder
from anyorder.orders.policy import PolicyConfig, PolicyNetwork
from anyorder.training.run_folder import Cursor
from anyorder.training.translation_objective import MaskingConfig, TranslationObjective
from tests.conftest import tiny
from tests.learning.objectives import translation_order_objective
from tests.models.checkpoints import CLASSES, MASK, save

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
ORDERS = [
    "uniform",
    "left-to-right",
    "right-to-left",
    "outer-in",
    "least-to-most",
    "easy-first",
    "entropy",
    "max-prob",
    "margin",
]


def off(found: Tensor, reference: Tensor) -> float:
    """Relative distance in double precision."""
    found, reference = found.double().cpu(), reference.double().cpu()
    assert bool(found.isfinite().all())
    return float((found - reference).norm() / reference.norm())


def canvases_of(model: TranslationModel, count: int = 100) -> list[Canvas]:
    """Random sources of one to 29 subwords, and as many masks."""
    rng, words = np.random.default_rng(1), len(model.vocabulary)
    return [
        model.blank_canvas(rng.integers(6, words, int(rng.integers(1, 30))), int(rng.integers(1, 30)), "de-en", i * 977)
        for i in range(count)
    ]


def waits(work: Callable[[], object]) -> list[str]:
    """Where the host waited for the device, by CUDA's own check. The first call is not counted: it compiles."""
    work()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with pytest.warns(UserWarning, match="synchroniz") as caught:
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [f"{one.filename}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)]


def test_variable_length_attention() -> None:
    torch.manual_seed(0)
    queries, keys = np.array([3, 1, 70, 12, 0, 30]), np.array([9, 40, 70, 2, 5, 131])
    q, k, v = (torch.randn(int(n.sum()), 8, 64).bfloat16() for n in (queries, keys, keys))
    on_cpu = attend(q.double(), torch.stack([k, v], 1).double(), Segments.of(queries), Segments.of(keys))
    on_cuda = attend(q.cuda(), torch.stack([k, v], 1).cuda(), Segments.of(queries, "cuda"), Segments.of(keys, "cuda"))
    assert off(on_cuda, on_cpu) < 5e-3


def test_more_segments_than_the_kernel_takes() -> None:
    """A batch of rollouts has more decisions than a CUDA grid has blocks."""
    torch.manual_seed(0)
    lengths = np.random.default_rng(0).integers(1, 4, MAX_SEGMENTS + 2000)
    q, both = torch.randn(int(lengths.sum()), 1, 64).bfloat16(), torch.randn(int(lengths.sum()), 2, 1, 64).bfloat16()
    sought = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.bfloat16)):
        leaves = [one.to(device, dtype).requires_grad_() for one in (q, both)]
        segments = Segments.of(lengths, device)
        out = attend(*leaves, segments, segments)
        out.square().sum().backward()
        sought.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for on_cpu, on_cuda in zip(*sought, strict=True):
        assert off(on_cuda, on_cpu) < 1e-2


@pytest.mark.parametrize(("heads", "size"), [(8, 64), (4, 16), (8, 128)])
def test_attention_of_short_segments(heads: int, size: int) -> None:
    """Triton's kernel, which decoding uses, against the CPU, and as near to it as the library's kernel is."""
    torch.manual_seed(0)
    queries, keys = np.array([3, 1, 70, 12, 0, 30]), np.array([9, 40, 70, 2, 5, 131])
    q, both = (
        torch.randn(int(queries.sum()), heads, size).bfloat16(),
        torch.randn(int(keys.sum()), 2, heads, size).bfloat16(),
    )
    on_cpu = attend(q.double(), both.double(), Segments.of(queries), Segments.of(keys))
    on_device = [Segments.of(lengths, "cuda") for lengths in (queries, keys)]
    with torch.no_grad():
        assert runs_triton(q.cuda())
        short = attend(q.cuda(), both.cuda(), *on_device)
    assert not runs_triton(q.cuda())  # gradients are wanted here
    usual = attend(q.cuda(), both.cuda(), *on_device)
    assert off(short, on_cpu) < max(1.5 * off(usual, on_cpu), 3e-3)


@torch.no_grad()
@pytest.mark.parametrize("width", [64, 512, 1024, 96])
def test_add_and_normalise(width: int) -> None:
    states, change = torch.randn(37, width).bfloat16(), torch.randn(37, width).bfloat16()
    weight, bias = torch.randn(width).bfloat16(), torch.randn(width).bfloat16()
    found = add_norm(states.cuda(), change.cuda(), weight.cuda(), bias.cuda(), 1e-12)
    summed = states.double() + change.double()
    expected = torch.nn.functional.layer_norm(summed, (width,), weight.double(), bias.double(), 1e-12)
    assert off(found, expected) < 4e-3


def test_logits_of_pairs(store: Store) -> None:
    model = tiny(store.vocabulary, hidden_size=512, num_heads=8, num_layers=6)
    halves = np.array([9, 12, 30, 25, 3, 60])
    pairs = halves.reshape(-1, 2).sum(1)
    count = int(halves.sum())
    tokens = torch.randint(6, len(store.vocabulary), (count,))
    half = torch.repeat_interleave(torch.arange(6), torch.from_numpy(halves))
    positions = torch.from_numpy(np.concatenate([np.arange(n) for n in halves]))
    rows = torch.tensor([10, 14, 50, 70, 90, 100, 110])
    logits = []
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        placed = model.to(device=device, dtype=dtype)
        at = QueryPositions(rows.to(device), Segments.of(np.array([2, 2, 3]), device))
        pattern = SourceIsolated(Segments.of(pairs, device), Segments.of(halves, device), (half % 2 == 1).to(device))
        inputs = [tensor.to(device) for tensor in (tokens, positions, half % 2)]
        with torch.no_grad():
            logits.append(placed.logits(placed.transformer(*inputs, pattern, at)))
    assert logits[1].dtype == torch.float32
    assert off(logits[1], logits[0]) < 3e-2


@pytest.mark.parametrize("together", [False, True])
def test_loss_and_gradient_of_a_compiled_batch(store: Store, together: bool) -> None:
    shape = {"hidden_size": 256, "num_heads": 4, "source_sees_target": together, "dropout": 0.0}
    exact = TranslationObjective(store, tiny(store.vocabulary, **shape), MaskingConfig(), 4000, 1, fixed=False)
    fixed = TranslationObjective(store, tiny(store.vocabulary, **shape), MaskingConfig(), 4000, 1, fixed=True)
    fixed.module.cuda()
    compiled = torch.compile(fixed.module, dynamic=False)
    for (a, _), (b, _), _ in zip(exact.batches(Cursor(), 0, 0, 1), fixed.batches(Cursor(), 0, 0, 1), range(3)):  # noqa: B905
        arrays = {name: torch.from_numpy(array) for name, array in a.arrays.items()}
        exact.module.zero_grad()
        loss, _ = exact.module(arrays, a.longest, a.lengths)
        loss.backward()
        fixed.module.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            half_loss, _ = compiled({name: torch.from_numpy(x).cuda() for name, x in b.arrays.items()}, b.longest, None)
        half_loss.backward()
        assert abs(half_loss.item() - loss.item()) < 2e-2 * abs(loss.item())
        for (name, parameter), other in zip(exact.module.named_parameters(), fixed.module.parameters(), strict=True):
            assert parameter.grad is not None
            assert other.grad is not None
            assert off(other.grad, parameter.grad) < 6e-2, name


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", ORDERS)
def test_decoding(store: Store, together: bool, name: str) -> None:
    """Single precision on CUDA gives the CPU's trajectories; half precision starts like them and fills everything once."""
    model = tiny(store.vocabulary, source_sees_target=together)
    canvases = canvases_of(model)
    order, schedule = make_order(name), make_schedule("one")
    cpu = decode(model, canvases, order, schedule)
    single = decode(model.cuda(), canvases, order, schedule)
    same = [
        a.ids.tolist() == b.ids.tolist() and a.steps.tolist() == b.steps.tolist()
        for a, b in zip(cpu, single, strict=True)
    ]
    assert sum(same) >= 97
    half = decode(model.bfloat16(), canvases, order, schedule)
    first = [a.ids[a.steps.argmin()] == b.ids[a.steps.argmin()] for a, b in zip(cpu, half, strict=True)]
    assert sum(first) >= 80
    assert all(sorted(one.steps.tolist()) == list(range(1, len(one.ids) + 1)) for one in half)
    assert all(np.isfinite(one.logprobs).all() and one.ids.min() >= store.vocabulary.first_word for one in half)


def test_no_waiting_for_the_device_inside_the_loop(store: Store) -> None:
    """CUDA's own check: an operation that makes the host wait raises."""
    model = tiny(store.vocabulary).cuda().bfloat16()
    canvases = [model.blank_canvas(np.arange(10, 20), length, "de-en", length) for length in (5, 12, 9)]
    shapes = [
        PolicyConfig("linear"),
        *(PolicyConfig(kind, attention=1) for kind in ("hidden", "features", "confidence")),
    ]  # type: ignore[arg-type]
    networks = [PolicyNetwork(shape, 64).cuda() for shape in shapes]
    learned = [LearnedOrder(network, network.config.kind) for network in networks]
    for order in [*map(make_order, ORDERS), *learned]:
        found = waits(lambda order=order: decode(model, canvases, order, make_schedule("one")))  # type: ignore[misc]
        assert len(found) <= 6, (order.name, found)  # copying results out, not once a step


@pytest.mark.parametrize("name", ["4", "positions:3", "joint:3"])
def test_no_waiting_inside_a_beam_search(store: Store, name: str) -> None:
    """Canvases that are three times as long make the host wait no more often."""
    model, beam = tiny(store.vocabulary).cuda().bfloat16(), make_beam(name)
    counts = []
    for lengths in ((4, 5), (12, 15)):
        canvases = [model.blank_canvas(np.arange(10, 20), length, "de-en", length) for length in lengths]
        for order in map(make_order, ["max-prob"] if beam.over == "joint" else ["left-to-right", "margin"]):
            counts.append(len(waits(lambda order=order: beam_search(model, canvases, order, beam))))  # type: ignore[misc]  # noqa: B023
    assert max(counts) <= 8, counts


@pytest.mark.parametrize("name", ["4", "positions:3", "joint:3"])
def test_beam_search(store: Store, name: str) -> None:
    """Single precision on CUDA finds the CPU's hypotheses; in half precision a beam of one is greedy decoding."""
    model, order, beam = tiny(store.vocabulary), make_order("max-prob"), make_beam(name)
    canvases = canvases_of(model, 40)
    cpu = beam_search(model, canvases, order, beam)
    single = beam_search(model.cuda(), canvases, order, beam)
    same = [
        [one.ids.tolist() for one in a] == [one.ids.tolist() for one in b] for a, b in zip(cpu, single, strict=True)
    ]
    assert sum(same) >= 36
    model.bfloat16()
    greedy = decode(model, canvases, order, make_schedule("one"))
    [half] = zip(*beam_search(model, canvases, order, Beam(1, beam.over)), strict=True)
    assert [one.ids.tolist() for one in half] == [one.ids.tolist() for one in greedy]


@pytest.mark.parametrize(
    ("schedule", "revision"),
    [
        ("cosine:6", "none"),
        ("threshold:0.5", "none"),
        ("factor:0.5", "none"),
        ("entropy-bound:0.5", "none"),
        ("klass", "none"),
        ("blocks:4+threshold:0.5", "none"),
        ("steps:1", "mask-predict:4"),
        ("steps:4", "p2:4"),
        ("steps:4", "remdm:4"),
        ("one", "gibbs:2"),
        ("one", "refine:2"),
    ],
)
def test_schedules_and_revisions(store: Store, schedule: str, revision: str) -> None:
    """Single precision on CUDA gives the CPU's trajectories, every write of them; half precision fills everything."""
    model, order = tiny(store.vocabulary), make_order("max-prob")
    canvases = canvases_of(model, 60)
    found = []
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.float32), ("cuda", torch.bfloat16)):
        model.to(device=device, dtype=dtype)
        found.append(decode(model, canvases, order, make_schedule(schedule), make_revision(revision)))
    cpu, single, half = found
    same = [
        a.ids.tolist() == b.ids.tolist() and a.steps.tolist() == b.steps.tolist()
        for a, b in zip(cpu, single, strict=True)
    ]
    assert sum(same) >= 54
    for one in half:
        assert one.ids.min() >= store.vocabulary.first_word
        assert np.isfinite(one.logprobs).all()


def test_sampled_tokens(store: Store) -> None:
    """A sentence and a seed draw the same tokens on CUDA as on the CPU."""
    model, order, sampler = tiny(store.vocabulary), make_order("uniform"), make_sampler(1.0, 0.9)
    canvases = canvases_of(model, 60)
    cpu = decode(model, canvases, order, make_schedule("one"), sampler=sampler)
    cuda = decode(model.cuda(), canvases, order, make_schedule("one"), sampler=sampler)
    assert sum(a.ids.tolist() == b.ids.tolist() for a, b in zip(cpu, cuda, strict=True)) >= 54


@pytest.mark.parametrize("name", CLASSES)
def test_models_of_transformers(name: str, tmp_path: Path) -> None:
    """Single precision on CUDA fills masks as the CPU does; half precision gives logits near it, in float32."""
    save(name, tmp_path)
    model, rng = load_transformers(tmp_path, device="cpu"), np.random.default_rng(2)
    words = np.flatnonzero(model.allowed_tokens)
    canvases = []
    for i in range(40):
        tokens = rng.choice(words, int(rng.integers(2, 40)))
        tokens[rng.random(len(tokens)) < 0.5] = MASK
        canvases.append(Canvas(tokens, key=i))
    batch = model.pack(canvases)
    rows = np.flatnonzero(batch.packed.tokens == MASK)
    lengths = np.array([int((canvas.tokens == MASK).sum()) for canvas in canvases])
    order, schedule = make_order("margin"), make_schedule("one")
    filled, logits = [], []
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.float32), ("cuda", torch.bfloat16)):
        model.network.to(device=device, dtype=dtype)
        filled.append(decode(model, canvases, order, schedule))
        at = QueryPositions(torch.from_numpy(rows).to(device), Segments.of(lengths, device))
        with torch.inference_mode():
            hidden = model.context(batch).hidden(torch.from_numpy(batch.packed.tokens).to(device), at)
            logits.append(model.logits(hidden))
    assert sum(a.ids.tolist() == b.ids.tolist() for a, b in zip(filled[0], filled[1], strict=True)) >= 36
    assert all(bool(model.allowed_tokens[one.ids[one.steps > 0]].all()) for one in filled[2])
    assert off(logits[1], logits[0]) < 1e-3
    assert logits[2].dtype == torch.float32
    assert off(logits[2], logits[0]) < 6e-2
    assert any(not torch.equal(one, one.bfloat16().float()) for one in logits[2])  # not rounded to half precision


@pytest.mark.parametrize("algorithm", ["a2c", "ppo", "rloo"])
@pytest.mark.parametrize("kind", ["hidden", "features", "confidence"])
def test_an_order_learns_on_the_device(store: Store, algorithm: str, kind: str) -> None:
    """Rollouts in half precision fill everything once, and the loss of what was seen has a gradient everywhere."""
    rl = RLConfig(algorithm=algorithm, sentences=16, rollouts=4)  # type: ignore[arg-type]
    model = tiny(store.vocabulary, hidden_size=128, num_heads=2)
    objective = translation_order_objective(
        store, model, ["de-en", "en-de"], PolicyConfig(kind, size=64, attention=1), rl, 1, compile=True
    )  # type: ignore[arg-type]
    objective.learner.cuda()
    torch.nn.init.normal_(objective.learner.policy.out, std=0.1)
    batch, _ = next(objective.batches(Cursor(), 0, 0, 1))
    rollouts = objective.minibatches(batch, torch.device("cuda"))[0]["rollouts"]
    with torch.autocast("cuda", torch.bfloat16):
        loss, report = objective.module(rollouts)
    loss.backward()
    assert bool(report.isfinite().all())
    assert all(bool(p.grad is not None and p.grad.isfinite().all()) for p in objective.learner.parameters())
    assert objective.learner.policy.out.grad.norm() > 0  # type: ignore[union-attr]
    chances = objective.learner.log_probs(rollouts.decisions).gather(1, rollouts.decisions.chosen[:, None])
    assert bool((chances > -20).all())  # what was drawn could be drawn
    decisions = 4 * int((batch.sentences.canvases.lengths - 1).sum())
    assert len(rollouts.decisions.chosen) == decisions
