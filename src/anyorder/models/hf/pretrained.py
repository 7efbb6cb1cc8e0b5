"""`TransformersModel`: a masked Transformers model as the engine sees it, from disk, from the hub or from memory.

The code in a checkpoint is never run, and nothing is ever unpickled.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy, deepcopy
from functools import cached_property, partial
from inspect import unwrap
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anyorder.data.packing import PackedBatch, ranges
from anyorder.errors import InputError
from anyorder.files import verify
from anyorder.models.base import NEVER, Canvas, CanvasBatch, Context
from anyorder.models.hf.block_cache import BlockCache, BlockCacheContext
from anyorder.models.hf.contexts import ROUND_CPU, BlockCausalContext, PaddedContext
from anyorder.models.hf.families import END_TOKENS, FAMILIES, Family, family_of
from anyorder.models.hf.fixed_summation import RowwiseProducts, sum_in_fixed_order
from anyorder.models.hf.settings import check_attention, check_settings
from anyorder.models.native.storage import CONFIG, WEIGHTS, as_input_error, find, local_folder
from anyorder.records import Record, check_finite, no_weights, parse_json, read_json, read_record, read_tensors

MASK = "[MASK]"
"""Marks a mask in texts, whatever the model's own mask token is."""
PREFIX = "hf:"
_VOCABULARIES = ("merges.txt", "vocab.txt", "*.model")
_INDEX, _TOKENIZER = f"{WEIGHTS}.index.json", "tokenizer_config.json"
_OUTPUT_BIAS = "lm_head.bias"
T = TypeVar("T")
_ANY_LENGTH = int(1e30)
"""For tokenizers: this package does its own length checks."""


class TransformersModel:
    """A Transformers model and its tokenizer, as the decoding engine sees them. `load_transformers` loads one, and
    `wrap_transformers` takes objects."""

    def __init__(
        self, network: Any, tokenizer: Any, family: Family, mask_token: int, path: Path | None = None, name: str = ""
    ):
        """network: an instance of the family's class. name: that of the folder if empty."""
        self.family = family
        self.tokenizer = tokenizer
        self.mask_token = mask_token
        self.is_shifted = family.is_shifted
        self.block_size = family.block_size
        self.cache: BlockCache | None = None
        self.path = path
        self.name = name or (path.name if path else "")
        self._suppressed: torch.Tensor | None = None
        """Ids that the distribution leaves out."""
        self.network = network.eval().requires_grad_(False)
        sum_in_fixed_order(network)
        config = network.config
        config.return_dict = True
        for module in network.modules():
            if hasattr(module, "chunk_size_feed_forward"):  # saves memory in training, and needs lengths that divide
                module.chunk_size_feed_forward = 0
        if family.is_language_model:
            config.is_causal = False
        self._head = _after_last_layer(network)
        self.hidden_size: int = config.hidden_size
        self.vocab_size: int = config.vocab_size
        padding = (config.pad_token_id, tokenizer.pad_token_id)
        self.padding_token: int = next((token for token in padding if token is not None), 0)
        self._mask_text = str(tokenizer.convert_ids_to_tokens(mask_token))
        self._mask_pattern = re.compile(f" *(?:{re.escape(MASK)}|{re.escape(self._mask_text)})")
        self._before, self._after = self._delimiters()
        reserved = config.pad_token_id + 1 if family.positions_after_padding else 0
        self.max_positions: int = config.max_position_embeddings - reserved
        """Maximum sequence length, delimiters included."""
        self.max_length = self.max_positions - len(self._before) - len(self._after)
        if not self.allowed_tokens.any():
            raise InputError(f"{self.name}: its tokenizer has no tokens but special ones")

    def generating(self, may_end: bool = True) -> "TransformersModel":
        """The same model, allowed to end a text, or without end tokens in its distribution (LLaDA's logits_eos_inf)."""
        model = copy(self)
        model.allowed_tokens = self.allowed_tokens.copy()
        model.allowed_tokens[list(self.end_tokens)] = may_end
        if not may_end and self.end_tokens:
            model._suppressed = torch.tensor(sorted(self.end_tokens), device=self.device)
            if not model.allowed_tokens.any():
                raise InputError("never: this model has no tokens but end tokens", "end")
        model.allowed_tokens[self.mask_token] = False
        return model

    def caching(self, cache: BlockCache) -> "TransformersModel":
        """The same model, faster and approximate; an `InputError` unless it generates texts with full attention."""
        if self.block_size is not None:
            raise InputError(f"{cache.name}: {self.name} is block-causal and has an exact cache already", "cache")
        if not self.family.is_language_model:
            raise InputError(
                f"{cache.name}: is for language models with full attention; {self.name} is an encoder", "cache"
            )
        model = copy(self)
        model.cache = cache
        return model

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def dtype(self) -> torch.dtype:
        return self.network.dtype

    @property
    def runs_alone(self) -> bool:
        """Whether texts run one by one: on the CPU, sums in attention that is not PyTorch's own depend on the batch."""
        has_own_attention = self.network.config._attn_implementation != "sdpa"
        return self.device.type == "cpu" and (has_own_attention or not self.family.is_padded)

    @cached_property
    def vocabulary_fingerprint(self) -> str:
        listed = json.dumps(self.tokenizer.get_vocab(), sort_keys=True)
        return hashlib.sha256(listed.encode("utf-8", "surrogatepass")).hexdigest()[:12]

    @cached_property
    def allowed_tokens(self) -> np.ndarray:
        """(vocab_size,) bool: the tokenizer's tokens, without special ones; `generating` adds end tokens."""
        allowed = np.zeros(self.vocab_size, bool)
        known = np.array(list(self.tokenizer.get_vocab().values()), np.int64)
        allowed[known[known < self.vocab_size]] = True
        added = self.tokenizer.added_tokens_decoder.items()
        special = {*self.tokenizer.all_special_ids, *(number for number, token in added if token.special)}
        allowed[[number for number in special if number < self.vocab_size]] = False
        allowed[self.mask_token] = False
        return allowed

    @cached_property
    def has_spaces(self) -> bool:
        """Whether there are spaces in text. Not if most tokens are read alike with and without a space between them, as
        amino acids are."""
        ids = np.flatnonzero(self.allowed_tokens)
        ids = ids[np.linspace(0, len(ids) - 1, num=min(len(ids), 64)).astype(np.int64)].tolist()
        tokens = self.tokenizer.convert_ids_to_tokens(ids)
        texts = [text for token in tokens for text in (f"{token}{token}", f"{token} {token}")]
        encoded = iter(self.tokenizer(texts, add_special_tokens=False)["input_ids"])
        alike = sum(next(encoded) == next(encoded) == [number, number] for number in ids)
        return 2 * alike <= len(ids)

    @property
    def unknown_token(self) -> int | None:
        """What the tokenizer reads where it knows no token; None if it can read everything."""
        token: int | None = self.tokenizer.unk_token_id
        return None if token in self.end_tokens else token  # GPT-2's tokenizer names its end token

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """The tokens that end a text. Encoders have none, unless their tokenizer names one that is not a delimiter, as
        in chat models."""
        numbers = [self.tokenizer.eos_token_id]
        if self.family.is_language_model:
            vocabulary, named = self.tokenizer.get_vocab(), self.network.config.eos_token_id
            numbers += named if isinstance(named, list) else [named]
            numbers += [vocabulary.get(token) for token in END_TOKENS]
        elif numbers[0] in [*self._before, *self._after]:
            return frozenset()
        return frozenset(number for number in numbers if number is not None and 0 <= number < self.vocab_size)

    def encode(self, texts: Sequence[str], has_masks: bool = True) -> list[np.ndarray]:
        """Ids of texts, without delimiters.

        has_masks: whether `[MASK]` stands for a mask, as the model's own mask token does. A space before a mask is part
            of the masked token. Otherwise the texts are read as the tokenizer reads any text.
        """
        if not texts:
            return []
        if has_masks:
            texts = [self._mask_pattern.sub(lambda _: self._mask_text, text) for text in texts]
        encoded = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return [np.array(ids, np.int64) for ids in encoded]

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Ids of a conversation up to where the answer begins, by the tokenizer's own chat template.

        A template is a program in the checkpoint; Transformers runs it in its sandbox, which gives it nothing but the
        messages. What a template refuses is an `InputError`.
        """
        self.check_chat()
        with as_input_error("the chat template refuses it"):
            ids = self.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=True, return_dict=False
            )
        return np.array(ids, np.int64)

    def starts_with_delimiter(self, ids: np.ndarray) -> bool:
        """Whether a text brings what the tokenizer puts before one, as those of a chat template may."""
        return 0 < len(self._before) <= len(ids) and bool((ids[: len(self._before)] == self._before).all())

    def check_chat(self) -> None:
        """Raise an `InputError` if the tokenizer has no chat template."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise InputError(
                f"{self.name}: its tokenizer has no chat template (chat_template.jinja), so it cannot chat"
            )

    def pack(self, canvases: Sequence[Canvas]) -> CanvasBatch:
        nothing = np.zeros(0, np.int64)
        around = [(self._before, self._after) if canvas.is_delimited else (nothing, nothing) for canvas in canvases]
        lengths = np.array([len(canvas.tokens) for canvas in canvases])
        begins = np.array([len(before) for before, _ in around])
        sizes = begins + lengths + np.array([len(after) for _, after in around])
        parts = zip(canvases, around, strict=True)
        tokens = np.concatenate([part for canvas, (before, after) in parts for part in (before, canvas.tokens, after)])
        packed = PackedBatch(tokens, ranges(np.zeros_like(sizes), sizes), np.zeros(len(tokens), np.int64), sizes)
        return CanvasBatch(packed, packed.starts + begins, lengths)

    def context(self, batch: CanvasBatch) -> Context:
        if self.cache is not None:
            return BlockCacheContext(self, batch, self.cache)
        kind = PaddedContext if self.block_size is None else BlockCausalContext
        return kind(self, batch.packed.sizes)

    def logits(self, hidden: Tensor) -> Tensor:
        rows = len(hidden)
        states = F.pad(hidden, (0, 0, 0, -rows % ROUND_CPU))
        with RowwiseProducts() if self.runs_alone else nullcontext():
            found = self._head(inputs_embeds=states[None]).logits[0, :rows].float()
        return found if self._suppressed is None else found.index_fill(1, self._suppressed, NEVER)

    def to_tokens(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        return self.tokenizer.convert_ids_to_tokens([int(number) for number in ids])

    def to_text(self, ids: Sequence[int] | np.ndarray, task: str) -> str:
        hidden = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        text = self.tokenizer.decode([int(number) for number in ids if int(number) not in hidden])
        return text if self.has_spaces else "".join(text.split())

    def _delimiters(self) -> tuple[np.ndarray, np.ndarray]:
        """What the tokenizer puts before and after a text."""
        ids = self.tokenizer(self._mask_text)["input_ids"]
        if self.mask_token not in ids:
            raise InputError(f"{self.name}: its tokenizer does not read the mask token, '{self._mask_text}'")
        if max(ids) >= self.vocab_size:
            found = (
                f"its tokenizer puts the token {max(ids):,} around texts, and the model has {self.vocab_size:,} tokens"
            )
            raise InputError(f"{self.name}: {found}")
        at = ids.index(self.mask_token)
        return np.array(ids[:at], np.int64), np.array(ids[at + 1 :], np.int64)


def _after_last_layer(network: Any) -> Any:
    """The network as a function from its last hidden states, given as `inputs_embeds`, to logits."""
    head = copy(network)
    head._modules = {**network._modules, network.base_model_prefix: _PassedOn(network.base_model)}
    return partial(unwrap(type(network).forward), head)  # decorators take more time than some output layers


class _PassedOn:
    """Stands in for all layers but the output layers: returns the last hidden states that it is given."""

    def __init__(self, layers: Any):
        self._layers = layers

    def __call__(self, *_: object, inputs_embeds: Tensor, **__: object) -> "_LastStates":
        return _LastStates(inputs_embeds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layers, name)


class _LastStates:
    """What layers return. Other outputs are None."""

    def __init__(self, states: Tensor):
        self.last_hidden_state = states

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


def is_transformers(name: str | Path) -> bool:
    """Whether a name or a folder's contents denote a Transformers model."""
    if str(name).startswith(PREFIX):
        return True
    file = local_folder(name) / CONFIG
    try:
        return file.exists() and str(read_json(file).get("model_type")) in FAMILIES
    except (InputError, OSError):
        return False


def load_transformers(
    name: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> TransformersModel:
    """A masked model from a folder or by its hub id, with or without the `hf:` prefix."""
    folder = find(str(name).removeprefix(PREFIX), _VOCABULARIES, only_here=False)
    verify(folder, CONFIG, WEIGHTS, "tokenizer.json")
    record = read_record(folder / CONFIG)
    family = family_of(record)
    problems: list[str] = []
    with quiet():
        config: Any = attempt(problems, _read_config, folder / CONFIG, record, family)
        tokenizer: Any = attempt(problems, load_tokenizer, folder, family)
        mask_token: Any = None
        if config is not None and tokenizer is not None:
            mask_token = attempt(problems, _mask_token, folder, tokenizer, config, family)
        if not (folder / WEIGHTS).exists() and not (folder / _INDEX).exists():
            problems.append(str(no_weights(folder / WEIGHTS)))
        if problems:
            parts = [re.sub(rf"^{re.escape(str(folder))}(: |/)", "", problem) for problem in problems]
            raise InputError(f"{folder}: {'; '.join(parts)}" if len(parts) > 1 else problems[0])
        network = _load_network(folder, config, record, family, dtype).to(device)
    return TransformersModel(network, tokenizer, family, mask_token, folder)


def attempt(problems: list[str], action: Callable[..., T], *arguments: Any) -> T | None:
    """What the action returns; None if it raises an `InputError`, which becomes one of the problems."""
    try:
        return action(*arguments)
    except InputError as error:
        problems.append(str(error))
        return None


def _read_config(file: Path, record: Record, family: Family) -> Any:
    """The settings of the native class."""
    check_settings(record, family)
    settings = family.native_config(record)
    with as_input_error(f"{file}: does not describe a {family.class_name}"):
        config = class_of(family).config_class.from_dict(settings)
    check_attention(str(file), config, family)
    return config


def wrap_transformers(network: Any, tokenizer: Any, name: str = "model") -> TransformersModel:
    """A masked model from a network of Transformers and a tokenizer that are in memory.

    The network is an instance of a native class with its output layer, such as `BertForMaskedLM`. It is used itself,
    not a copy: it is put into evaluation mode, frozen and undirected, and its layers sum in a fixed order. Its device
    and precision stay. The tokenizer is copied. name: what records and messages call the model.
    """
    settings: Any = getattr(network, "config", None)
    if not hasattr(settings, "to_json_string"):
        raise InputError(f"a {type(network).__name__} is not a network of Transformers", "network")
    if not hasattr(tokenizer, "convert_ids_to_tokens"):
        raise InputError(f"a {type(tokenizer).__name__} is not a tokenizer of Transformers", "tokenizer")
    record = Record(name, parse_json(settings.to_json_string(use_diff=False), name))
    family = family_of(record)
    if not isinstance(network, class_of(family)):
        kind = type(network).__name__
        raise InputError(f"{name}: is a {kind}, expected a {family.class_name}, which predicts tokens")
    check_settings(record, family)
    check_attention(name, settings, family)
    with quiet():
        tokenizer = deepcopy(tokenizer)
        tokenizer.model_max_length = _ANY_LENGTH
        mask_token = _mask_token(name, tokenizer, settings, family)
        network.set_attn_implementation(_attention(type(network)))
    check_finite(name, network.named_parameters())
    return TransformersModel(network, tokenizer, family, mask_token, name=name)


def load_tokenizer(folder: Path, family: Family) -> Any:
    if not any(file for name in ("tokenizer.json", "vocab.json", *_VOCABULARIES) for file in folder.glob(name)):
        folder = _fetch_tokenizer(folder, family.tokenizer_name)
    named = read_record(folder / _TOKENIZER) if (folder / _TOKENIZER).exists() else Record("", {})
    # For some model types, Transformers replaces a generic tokenizer with the usual one of that type.
    is_generic = named.text("tokenizer_class", default="") in ("PreTrainedTokenizerFast", "TokenizersBackend")
    class_name = "PreTrainedTokenizerFast" if is_generic else family.tokenizer_class
    options = {"trust_remote_code": False} if class_name == "AutoTokenizer" else {}
    with as_input_error(f"{folder}: its tokenizer cannot be read"):
        tokenizer_class = getattr(import_transformers(), class_name)
        tokenizer = tokenizer_class.from_pretrained(folder, local_files_only=True, **options)
    tokenizer.model_max_length = _ANY_LENGTH
    return tokenizer


def _fetch_tokenizer(folder: Path, name: str | None) -> Path:
    """The tokenizer folder for a model that comes without one. name: a model on the hub that has it"""
    from huggingface_hub import snapshot_download

    if name is None:
        raise InputError(f"{folder}: has no tokenizer (tokenizer.json or vocab.txt); 'anyorder convert' can make one")
    with as_input_error(f"{folder}: has no tokenizer; put the tokenizer.json of {name} there"):
        return Path(snapshot_download(name, allow_patterns=["tokenizer*.json", "vocab.json", "merges.txt"]))


def _mask_token(place: Path | str, tokenizer: Any, config: Any, family: Family) -> int:
    """The mask's id. If the tokenizer does not name it, it is added to it."""
    known, room = len(tokenizer), config.vocab_size
    own, named = tokenizer.mask_token_id, getattr(config, "mask_token_id", None)

    def quoted(token: int) -> str:
        return f"{token} ('{tokenizer.convert_ids_to_tokens(token)}')" if 0 <= token < known else str(token)

    is_default = named == getattr(type(config)(), "mask_token_id", None)  # says nothing about this model
    if own is not None and named is not None and own != named and not is_default:
        raise InputError(
            f"{place}: its tokenizer's mask token is {quoted(own)}, but mask_token_id in its {CONFIG} is "
            f"{quoted(named)}; correct one of them"
        )
    if own is not None and own >= room:
        raise InputError(f"{place}: its tokenizer's mask token is {quoted(own)}, but the model has {room} tokens")
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    for token in [own, named, family.mask_token, known if family.appends_mask else None]:
        if isinstance(token, int) and 0 <= token < min(known, room):
            if token == own or token in special:
                return token
            if not is_default:
                raise InputError(
                    f"{place}: mask_token_id in its {CONFIG} is {quoted(token)}, an ordinary token; if that is the "
                    f"mask, name it as mask_token in {_TOKENIZER}"
                )
        elif token == known < room:  # the model has one more token than its tokenizer
            tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
            return token
    raise InputError(f"{place}: is not a masked model: neither its tokenizer nor its {CONFIG} has a mask token")


def _load_network(folder: Path, config: Any, record: Record, family: Family, dtype: torch.dtype) -> Any:
    weights = _converted_weights(folder, record, family) if family.converts else None
    output_bias = weights.pop(_OUTPUT_BIAS, None) if weights else None
    network_class = class_of(family)
    with as_input_error(f"{folder}: its weights cannot be read"):
        network, loaded = network_class.from_pretrained(
            folder if weights is None else None,
            config=config,
            dtype=dtype,
            state_dict=weights,
            key_mapping=dict(family.renames) or None,
            attn_implementation=_attention(network_class),
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # to name them below
        )
    if missing := sorted(loaded["missing_keys"]):
        raise InputError(f"{folder}: is not a {family.class_name}: its weights lack {missing[0]}")
    if mismatched := sorted(loaded["mismatched_keys"]):
        name, saved, expected = mismatched[0]
        sizes = f"{_shape_text(saved)}, expected {_shape_text(expected)} by its {CONFIG}"
        raise InputError(f"{folder}: {name} has the shape {sizes}")
    # Weights of other parts, such as a pooling layer, are not needed. More layers of the same kind are a mistake.
    known = network.state_dict().keys()
    kinds = {_numberless(name) for name in known}
    if surplus := sorted(
        name for name in loaded["unexpected_keys"] if name not in known and _numberless(name) in kinds
    ):
        raise InputError(f"{folder}: has {surplus[0]}, more layers than its {CONFIG} says")
    layers = {name for name, module in network.named_modules() if any(True for _ in module.parameters(recurse=False))}
    if stray := sorted(name for name in loaded["unexpected_keys"] if name.rpartition(".")[0] in layers):
        raise InputError(f"{folder}: has {stray[0]}, which a {family.class_name} with its {CONFIG} does not use")
    if output_bias is not None:  # the native class has no bias here, but the layer is a plain linear one
        network.get_output_embeddings().bias = torch.nn.Parameter(output_bias.to(dtype))
    check_finite(folder, network.named_parameters())
    return network


def _shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "of a single number"


def _numberless(name: str) -> str:
    """The name of a weight without the number of its layer."""
    return re.sub(r"\d+", "#", name)


def _converted_weights(folder: Path, record: Record, family: Family) -> dict[str, torch.Tensor]:
    assert family.converts is not None
    theirs: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        theirs |= read_tensors(file)
    with as_input_error(f"{folder}: its weights cannot be read"):
        try:
            return family.converts(theirs, record)
        except KeyError as error:
            kind = record.text("model_type")
            raise InputError(f"{folder}: is not of model_type {kind}: its weights lack {error.args[0]}") from None


def class_of(family: Family) -> Any:
    """A family's class in Transformers."""
    transformers = import_transformers()
    if not hasattr(transformers, family.class_name):
        raise InputError(f"Transformers {transformers.__version__} has no {family.class_name}: install a later version")
    return getattr(transformers, family.class_name)


def _attention(network_class: Any) -> str:
    return "sdpa" if network_class._supports_sdpa else "eager"


def import_transformers() -> Any:
    """The package; importing it takes seconds, so it waits until it is needed."""
    import transformers

    return transformers


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Transformers' warnings and progress bars."""
    logging = import_transformers().utils.logging
    verbosity, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bar:
            logging.enable_progress_bar()
