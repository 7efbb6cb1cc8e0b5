"""How to decode: order, schedule, revision, length, beam, tokens and seed, by the names that users write.

`LengthRule` proposes target lengths; `Beam` says how many hypotheses to keep.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np

from anyorder import __version__
from anyorder.decoding.revision import NoRevision, Revision, make_revision
from anyorder.decoding.sampling import RankBy, TokenSampler, make_sampler
from anyorder.decoding.schedules import AdaptiveSchedule, Blocks, Constant, Schedule, TextBlocks, make_schedule
from anyorder.decoding.signature import Signature
from anyorder.device import inference_dtype
from anyorder.errors import MAX_SEED, InputError, check_number
from anyorder.models.base import Model, SavedModel
from anyorder.models.guidance import GuidedModel
from anyorder.models.hf.block_cache import BlockCache
from anyorder.models.hf.pretrained import TransformersModel
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import Order, make_order
from anyorder.orders.learned import default_order
from anyorder.registry import is_count

AUTO = "auto"
DEFAULT_LENGTH = "candidates:4"
"""The default in Python, on the command line and in the explorer; evaluation and validation use `gold`."""
GIVEN = "given"
"""The rule for canvases whose masks already fix the length."""
MAX_BEAM_SIZE = 4096
JOINT_ORDER = "max-prob"
"""The order that a beam of size 1 over positions and tokens amounts to."""


@dataclass(frozen=True)
class DecodingConfig:
    """Everything that determines a trajectory besides the model and the sentence. Names are checked on creation."""

    order: str | Order = AUTO
    """Which position to fill next; auto is the model's learned order, or margin if it has none."""
    schedule: str | int | Schedule = AUTO
    """How many positions to fill per step: one, a number, cosine:10, threshold:0.9; auto is the schedule published with
    the revision, or one without a revision."""
    revision: str | Revision = "none"
    """Which filled positions to mask again after a step: none, mask-predict:10, gibbs, refine, p2, remdm."""
    length: str = DEFAULT_LENGTH
    """How to choose the target length: gold, predicted, candidates:N, table:N or fixed:N."""
    seed: int = 1
    """Random seed for orders, revisions and sampled tokens."""
    batch_tokens: int | None = None
    """Target tokens to decode per batch. On CUDA, rounding may change a few results."""
    beam: int | str = 1
    """Beam size for each sentence and length: N over tokens, positions:N over positions, or joint:N over both."""
    length_penalty: float = 1.0
    """Hypotheses of different lengths are ranked by total log-probability / length ** length_penalty."""
    temperature: float = 0.0
    """Sampling temperature; 0 always picks the most likely token, 1 samples from the model's own distribution."""
    top_p: float = 1.0
    """Nucleus sampling: sample from the smallest set of tokens whose total probability reaches this."""
    top_k: int = 0
    """Sample from so many most likely tokens; 0 for all."""
    rank_by: RankBy = "best"
    """Whose probability is a position's confidence when tokens are sampled: the best token's, or the sampled one's."""
    guidance: float = 0.0
    """Classifier-free guidance of masked language models: how much further away from what they predict without the
    prompt; 0 is none. A step takes two forward passes."""
    cache: str = "none"
    """What to keep between the passes of a block, approximately: none, prefix or dual (Fast-dLLM). prefix:K and dual:K
    run everything again after K passes."""

    def __post_init__(self) -> None:
        check_number("seed", self.seed, at_least=0, at_most=MAX_SEED, whole=True)
        check_number("batch_tokens", self.batch_tokens, at_least=1, at_most=1 << 24, whole=True)
        check_number("length_penalty", self.length_penalty, at_least=0, at_most=10)
        order = None if self.order == AUTO else make_order(self.order).name
        revision, beam = make_revision(self.revision), make_beam(self.beam)
        beam.check(order, self._schedule(revision), revision)
        make_length(self.length)
        make_cache(self.cache, self._schedule(revision), revision, beam)
        check_number("guidance", self.guidance, at_least=0, at_most=100)
        if self._sampler() and beam.size > 1:
            raise InputError(f"{self.temperature:g}: beam search does not sample tokens", "temperature")

    def _schedule(self, revision: Revision) -> Schedule:
        return make_schedule(revision.usual_schedule if self.schedule == AUTO else self.schedule)

    def _sampler(self) -> TokenSampler | None:
        return make_sampler(self.temperature, self.top_p, self.top_k, self.rank_by)

    def bind(self, model: SavedModel, task: str) -> "BoundDecoding":
        """Resolve the names, and load the model's learned order if it is used."""
        beam, order = make_beam(self.beam), self.order
        if order == AUTO:
            order = JOINT_ORDER if beam.over == "joint" else default_order(model, task)
        revision = make_revision(self.revision)
        bound, schedule = self._schedule(revision).bind(make_order(order).bind(model, task))
        decoding = BoundDecoding(
            bound,
            schedule,
            revision,
            make_length(self.length),
            self.seed,
            self.batch_tokens,
            beam,
            self.length_penalty,
            self._sampler(),
            make_cache(self.cache, schedule, revision, beam),
            settings=_unusual_dtype(model),
            guidance=self.guidance,
        )
        decoding.prepare(model)  # raises an InputError for models that it does not fit
        return decoding


def _unusual_dtype(model: SavedModel) -> dict[str, str]:
    """The model's precision for the signature, if it is not the usual one of its device."""
    dtype = getattr(model, "dtype", None)
    if dtype is None or dtype == inference_dtype(model.device):
        return {}
    return {"dtype": str(dtype).removeprefix("torch.")}


@dataclass(frozen=True)
class LengthRule:
    """Which target lengths to try for a source: the reference's, predicted ones, those of a table."""

    kind: str
    count: int = 1

    @property
    def name(self) -> str:
        return self.kind if self.kind in ("gold", "predicted", GIVEN) else f"{self.kind}:{self.count}"

    def candidates(
        self, model: TranslationModel, sources: Sequence[np.ndarray], direction: str, gold: Sequence[int] | None
    ) -> list[list[int]]:
        """Lengths to try for every source, best guess first. gold: the lengths of the references."""
        if self.kind == GIVEN:
            raise InputError("given is for canvases with masks: use predicted, candidates:N or gold", "length")
        if self.kind == "gold":
            if gold is None:
                raise InputError("gold needs references: or use predicted, candidates:N or table:N", "length")
            return [[length] for length in gold]
        if self.kind == "fixed":
            if self.count > model.max_length:
                raise InputError(f"{self.count}: the model has room for {model.max_length} subwords", "length")
            return [[self.count] for _ in sources]
        if self.kind == "table":
            return table_lengths(model, [len(ids) for ids in sources], direction, self.count)
        lengths: list[list[int]] = []
        for start in range(0, len(sources), 256):
            lengths += model.predict_lengths(list(sources[start : start + 256]), direction, self.count)
        return lengths


def make_length(name: str) -> LengthRule:
    """`gold`, `predicted`, `candidates:N`, `table:N` or `fixed:N`; `given` if the canvas fixes it."""
    kind, colon, count = name.partition(":")
    if kind in ("gold", "predicted", GIVEN) and not colon:
        return LengthRule(kind)
    if kind in ("candidates", "table", "fixed") and is_count(count):
        return LengthRule(kind, int(count))
    if kind in ("candidates", "table") and not colon:
        return LengthRule(kind, 4)
    raise InputError(f"unknown length '{name}': expected gold, predicted, candidates:N, table:N or fixed:N")


def table_lengths(model: TranslationModel, sources: Sequence[int], direction: str, count: int) -> list[list[int]]:
    """The most frequent target lengths for sources of these lengths, at most `count` each."""
    if model.length_table is None:
        raise InputError("table needs a model with a table of lengths: use predicted or gold", "length")
    table = [model.length_table.candidates(direction, length, count) for length in sources]
    return [list(dict.fromkeys(min(length, model.max_length) for length in lengths)) for lengths in table]


@dataclass(frozen=True)
class Beam:
    """How many hypotheses to keep per canvas, and how their children differ. With size 1, decoding is greedy."""

    size: int = 1
    over: Literal["tokens", "positions", "joint"] = "tokens"
    """tokens: those at the position that the order ranks first. positions: those that it ranks first, with the
    best token at each. joint: both at once, regardless of the order."""

    @property
    def name(self) -> str:
        return str(self.size) if self.over == "tokens" else f"{self.over}:{self.size}"

    def check(self, order: str | None, schedule: Schedule, revision: Revision) -> None:
        """An `InputError` unless beam search supports these. order: its name, None if none was chosen."""
        if self.over == "joint" and order not in (None, JOINT_ORDER):
            raise self.error(f"chooses positions by their probability, so the order must be {JOINT_ORDER}")
        if self.size > 1 and not isinstance(revision, NoRevision):
            raise self.error("does not go together with a revision")
        if self.size > 1 and not (isinstance(schedule, Constant) and schedule.size == 1):
            raise self.error("fills one position per step, so the schedule must be one")

    def error(self, problem: str) -> InputError:
        return InputError(f"{self.name}: {problem}", "beam")


def make_beam(beam: int | str | Beam) -> Beam:
    """The beam of that name: a number of hypotheses, `positions:N` or `joint:N`."""
    if isinstance(beam, Beam):
        return beam
    over, _, size = str(beam).strip().rpartition(":")
    if not is_count(size) or int(size) > MAX_BEAM_SIZE or over not in ("", "positions", "joint"):
        raise InputError(f"{beam}: expected a whole number from 1 to {MAX_BEAM_SIZE}, positions:N or joint:N", "beam")
    return Beam(int(size), over or "tokens")  # type: ignore[arg-type]


def make_cache(name: str, schedule: Schedule, revision: Revision, beam: Beam) -> BlockCache | None:
    """The cache of that name for this way of decoding: None for `none`, or `prefix`, `dual`, `prefix:K`, `dual:K`."""
    kind, colon, passes = str(name).strip().partition(":")
    if kind == "none" and not colon:
        return None
    if kind not in ("prefix", "dual") or (colon and not is_count(passes)):
        raise InputError(f"{name}: expected none, prefix, dual, prefix:K or dual:K", "cache")
    if beam.size > 1:
        raise InputError(f"{name}: does not go together with a beam", "cache")
    if not isinstance(schedule, Blocks):
        raise InputError(f"{name}: needs a schedule in blocks, such as blocks:32+{schedule.name}", "cache")
    if isinstance(schedule.inner, AdaptiveSchedule) and not schedule.inner.is_local:
        raise InputError(
            f"{name}: {schedule.inner.name} also looks at predictions that the cache does not renew", "cache"
        )
    if revision.needs_current_logprobs:
        raise InputError(f"{name}: {revision.name} looks at all blocks in every pass, which the cache avoids", "cache")
    return BlockCache(kind, schedule.size, int(passes) if colon else None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class BoundDecoding:
    """A `DecodingConfig` bound to one model and direction, with names replaced by objects."""

    order: Order
    schedule: Schedule
    revision: Revision
    length: LengthRule
    seed: int
    batch_tokens: int | None
    beam: Beam
    length_penalty: float
    sampler: TokenSampler | None
    """None: always pick the most likely token."""
    cache: BlockCache | None = None
    """None: every pass is exact."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What else matters, for the signature."""
    guidance: float = 0.0
    """0: the prompt is always seen."""

    def prepare(self, model: Model) -> Model:
        """The model as it decodes: with the cache and the guidance, if there are any."""
        if self.cache is None and not self.guidance:
            return model
        if not isinstance(model, TransformersModel):
            kind, name = type(model).__name__, "cache" if self.cache else "guidance"
            value = self.cache.name if self.cache else f"{self.guidance:g}"
            raise InputError(f"{value}: is for language models of Transformers, not a {kind}", name)
        if self.cache:
            model = model.caching(self.cache)
            if isinstance(self.schedule, TextBlocks):
                name = self.schedule.name
                raise InputError(
                    f"{self.cache.name}: counts blocks from the first mask, which {name} does not", "cache"
                )
        if not self.guidance:
            return model
        if self.order.needs not in ("nothing", "logits"):
            raise InputError(
                f"{self.guidance:g}: the order {self.order.name} reads hidden states of one pass", "guidance"
            )
        return cast(Model, GuidedModel(model, self.guidance))

    @property
    def signature(self) -> Signature:
        """The signature recorded with every trajectory, score and figure."""
        optional: dict[str, Any] = {}
        if self.length_penalty != 1:
            optional["length_penalty"] = f"{self.length_penalty:g}"
        if self.sampler:
            optional["temperature"] = f"{self.sampler.temperature:g}"
            if self.sampler.top_p < 1:
                optional["top_p"] = f"{self.sampler.top_p:g}"
            if self.sampler.top_k:
                optional["top_k"] = self.sampler.top_k
            if self.sampler.rank_by != "best":
                optional["rank_by"] = self.sampler.rank_by
        if self.guidance:
            optional["guidance"] = f"{self.guidance:g}"
        if self.cache:
            optional["cache"] = self.cache.name
        return Signature(
            order=self.order.identity,
            schedule=self.schedule,
            revision=self.revision,
            beam=self.beam.name,
            length=self.length.name,
            **optional,
            **self.settings,
            seed=self.seed,
            version=f"anyorder.{__version__}",
        )
