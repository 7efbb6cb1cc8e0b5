"""The harness's model: requests in, scores and completions out, whatever the batch size."""

import importlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import anyorder
from anyorder import InputError
from tests.models.checkpoints import logits_of
from tests.tasks.test_prompts import BOS, MASK, byte_network, byte_tokenizer

BATCHES = [1, 2, 7, 16, "auto"]
PAIRS = [
    ("Is it? ", "yes"),
    ("Is it? ", "no"),
    ("a", " b"),
    ("a\n", "b\nc"),
    ("", "abc"),
    ("<mask>x", "yz!"),
    ("w " * 30, "v"),
] * 2
PROMPTS = ["", "a", "What is 1 + 1?\n", "a", "<mask>\n", "b" * 20, "c", "dd", "e"] * 2


class Harness:
    """What the model needs of the harness: a base class, a registry, and requests."""

    class LM:
        def __init__(self) -> None:
            self.cached: list[Any] = []
            self.cache_hook = SimpleNamespace(add_partial=lambda *one: self.cached.append(one))

    known: dict[str, type] = {}

    @classmethod
    def register_model(cls, name: str) -> Callable[[type], type]:
        return lambda model: cls.known.setdefault(name, model)


def requests(arguments: list[Any]) -> list[Any]:
    return [SimpleNamespace(args=one if isinstance(one, tuple) else (one,)) for one in arguments]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bytes")
    byte_network().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def make(folder: Path) -> Iterator[Callable[..., Any]]:
    """The model class, with a stand-in for the harness."""
    names = ("lm_eval", "lm_eval.models", "lm_eval.api", "lm_eval.api.model", "lm_eval.api.registry")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setitem(sys.modules, name, ModuleType(name))
        patch.setattr(sys.modules["lm_eval.api.model"], "LM", Harness.LM, raising=False)
        patch.setattr(sys.modules["lm_eval.api.registry"], "register_model", Harness.register_model, raising=False)
        patch.delitem(sys.modules, "anyorder.lm_eval", raising=False)
        module = importlib.import_module("anyorder.lm_eval")
        assert Harness.known == {"anyorder": module.AnyorderLM}
        yield lambda **options: module.AnyorderLM(**{"pretrained": str(folder), "device": "cpu", **options})
    del sys.modules["anyorder.lm_eval"], anyorder.lm_eval  # type: ignore[attr-defined]


def test_the_entry_point_names_the_class() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["lm_eval.models"] == {"anyorder": "anyorder.lm_eval:AnyorderLM"}


@pytest.mark.parametrize("likelihood", ["chain", "bound"])
def test_no_score_depends_on_the_batch_size(make: Callable[..., Any], likelihood: str) -> None:
    runs = []
    for batch_size in BATCHES:
        model = make(order="margin", likelihood=likelihood, samples=4, batch_size=batch_size)
        scores = model.loglikelihood(requests(PAIRS), disable_tqdm=True)
        runs.append((scores, model.loglikelihood_rolling(requests(PROMPTS[1:5]), disable_tqdm=True)))
        assert len(model.cached) == len(PAIRS) + 4
    assert all(run == runs[0] for run in runs)
    assert len({score for score, _ in runs[0][0]}) == len(PAIRS) // 2


@pytest.mark.parametrize(
    "options", [{"schedule": "blocks:4+2"}, {"schedule": "threshold:0.01", "revision": "refine:2"}]
)
def test_no_completion_depends_on_the_batch_size(make: Callable[..., Any], options: dict[str, str]) -> None:
    runs = []
    asked = [(prompt, {"until": ["\n", "q"], "max_gen_toks": 6}) for prompt in PROMPTS]
    asked[3] = (asked[3][0], {"until": "a", "max_gen_toks": 9, "temperature": 0.7, "do_sample": True})
    for batch_size in BATCHES:
        runs.append(make(order="margin", batch_size=batch_size, **options).generate_until(requests(asked)))
    assert all(run == runs[0] for run in runs)


def test_completions_are_those_of_generate(make: Callable[..., Any], folder: Path) -> None:
    decoder = anyorder.load(f"hf:{folder}", device="cpu")
    free = decoder.generate(PROMPTS, 12, "margin", schedule=3)
    stop = sorted(set(" ".join(str(one.completion) for one in free)) - {" "})[:2]
    expected = decoder.generate(PROMPTS, 12, "margin", schedule=3, stop=stop)
    asked = [
        (prompt, {"until": [*stop, ""], "max_gen_toks": 12, "do_sample": False, "top_p": 0.5}) for prompt in PROMPTS
    ]
    found = make(order="margin", schedule=3, batch_size=4).generate_until(requests(asked))
    assert found == [one.completion for one in expected]
    assert found != [one.completion for one in free]


def test_end_tokens_as_asked(make: Callable[..., Any], folder: Path) -> None:
    decoder = anyorder.load(f"hf:{folder}", device="cpu")
    for end in ("never", "last"):
        expected = [one.completion for one in decoder.generate(PROMPTS[:4], 6, "margin", end=end)]
        asked = [(prompt, {"max_gen_toks": 6}) for prompt in PROMPTS[:4]]
        assert make(order="margin", end=end).generate_until(requests(asked)) == expected


def test_requests_that_come_again_sample_anew(make: Callable[..., Any]) -> None:
    asked = [("a", {"max_new_tokens": 8, "temperature": 1.0})] * 3 + [("a", {"max_new_tokens": 8})] * 2
    found = make(order="uniform", batch_size=2).generate_until(requests(asked))
    assert len(set(found[:3])) == 3
    assert found[3] == found[4]
    assert make(order="uniform", batch_size=5).generate_until(requests(asked)) == found
    assert make(order="uniform", seed=2).generate_until(requests(asked))[:3] != found[:3]


def test_a_chain_is_a_sum_over_the_continuation(make: Callable[..., Any]) -> None:
    """White space at the end of the context counts as continuation, as elsewhere in the harness."""
    model = make(order="left-to-right")
    ids = model.model.encode(["Is it? yes"])[0].tolist()
    expected = 0.0
    for place in range(len("Is it?"), len(ids)):
        seen = [token if i < place else MASK for i, token in enumerate(ids)]
        expected += float(logits_of(model.model, seen)[place].double().log_softmax(-1)[ids[place]])
    [(found, is_greedy)] = model.loglikelihood(requests([("Is it? ", "yes")]))
    assert found == pytest.approx(expected, abs=1e-3)
    assert not is_greedy


@pytest.mark.parametrize("likelihood", ["chain", "bound"])
def test_what_would_be_generated_is_greedy(make: Callable[..., Any], likelihood: str) -> None:
    model = make(order="margin", likelihood=likelihood, samples=2)
    prompts = [prompt for prompt in PROMPTS if prompt.rstrip() == prompt]
    completions = model.generate_until(requests([(prompt, {"max_gen_toks": 1}) for prompt in prompts]))
    pairs = [(prompt, one) for prompt, one in zip(prompts, completions, strict=True) if one.isascii() and one.strip()]
    assert pairs
    assert all(is_greedy for _, is_greedy in model.loglikelihood(requests(pairs)))
    model.check_greedy = False
    assert [is_greedy for _, is_greedy in model.loglikelihood(requests(pairs))] == [likelihood == "chain"] * len(pairs)


def test_long_texts_are_scored_in_windows(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(order="left-to-right", max_length=8)
    seen: list[tuple[int, int]] = []
    score = model._score
    monkeypatch.setattr(
        model, "_score", lambda texts: seen.extend((len(ids), given) for ids, given in texts) or score(texts)
    )
    [total] = model.loglikelihood_rolling(requests(["abcdefghijklmnopqrs"]))
    assert seen == [(8, 0), (8, 4), (8, 4), (8, 5)]
    assert total < 0
    [(_, _)] = model.loglikelihood(requests([("x" * 50, "abc")]))
    assert seen[-1] == (8, 5)
    with pytest.raises(InputError, match="9 tokens to score, the model has room for 8"):
        model.loglikelihood(requests([("", "123456789")]))


def test_chat_templates_bring_their_own_delimiter(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(order="left-to-right")
    assert model.tokenizer_name
    assert "raise_exception" in model.chat_template(True)
    assert model.chat_template(False) == ""
    text = model.apply_chat_template([{"role": "user", "content": "hi"}])
    assert text.endswith("assistant:")
    read: list[list[int]] = []
    pack = type(model.model).pack
    monkeypatch.setattr(
        type(model.model),
        "pack",
        lambda own, canvases: read.append(pack(own, canvases).packed.tokens.tolist()) or pack(own, canvases),
    )
    model.generate_until(requests([(text, {"max_gen_toks": 2})]))
    model.loglikelihood(requests([(text, "yes")]))
    for ids in read:
        assert ids[: len(read[0]) - 2] == read[0][:-2]
        assert ids.count(BOS) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"likelihood": "best"}, "'best': expected chain or bound"),
        ({"dtype": "int8"}, "'int8': expected auto, float32"),
        ({"batch_size": "many"}, "many: expected a number of requests, or auto"),
        ({"samples": 0}, "samples"),
        ({"length": "long"}, "length long: expected a number"),
        ({"order": "nowhere"}, "unknown order 'nowhere'"),
        ({"schedule": "nowhere"}, "unknown schedule 'nowhere'"),
    ],
)
def test_wrong_arguments_are_named(make: Callable[..., Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(**options)


def test_settings_that_are_not_supported_are_named(make: Callable[..., Any]) -> None:
    model = make()
    with pytest.raises(InputError, match=r"1\.3: this setting for generating is not supported") as error:
        model.generate_until(requests([("a", {"repetition_penalty": 1.3})]))
    assert error.value.field == "repetition_penalty"
    neutral = {"repetition_penalty": 1.0, "temperature": 1.0, "top_p": None, "max_gen_toks": 1}
    assert model.generate_until(requests([("a", neutral)]))
    with pytest.raises(InputError, match="the model has room for"):
        model.generate_until(requests([("a", {"max_gen_toks": 10_000})]))


TASKS = {
    "local_generate": {
        "output_type": "generate_until", "doc_to_text": "{{question}}\n", "doc_to_target": "{{target}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
    "local_choice": {
        "output_type": "multiple_choice", "doc_to_text": "{{question}} ", "doc_to_target": "{{answer}}",
        "doc_to_choice": "{{choices}}", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "local_text": {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{question}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
}  # fmt: skip
RUN = """
import json, sys
import anyorder.lm_eval
import lm_eval
from lm_eval.tasks import TaskManager

folder, pretrained, batches = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
manager, runs = TaskManager(include_path=folder, include_defaults=False), []
for batch_size in batches:
    found = lm_eval.simple_evaluate(
        model="anyorder", model_args=f"pretrained={pretrained},order=margin,likelihood={sys.argv[4]},samples=3,check_greedy=false",
        tasks=["local_generate", "local_choice", "local_text"], batch_size=batch_size, device="cpu",
        task_manager=manager, log_samples=True, bootstrap_iters=0,
    )
    samples = {name: [one["resps"] for one in rows] for name, rows in found["samples"].items()}
    runs.append([found["results"], samples])
print(json.dumps(runs))
"""


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["chain", "bound"])
def test_the_real_harness(folder: Path, tmp_path: Path, likelihood: str) -> None:
    """Scores on a local task are the same to the last digit at every batch size."""
    reason = "lm_eval is not installed (600 MB with what it needs): pip install 'anyorder[lm-eval]'"
    pytest.importorskip("lm_eval", reason=reason)
    docs = [
        {
            "question": f"What is {i} plus {i}?"[: 5 + i % 9],
            "choices": ["yes", "no " * (i % 3 + 1)],
            "answer": i % 2,
            "target": "4",
        }
        for i in range(9)
    ]
    (tmp_path / "docs.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in docs))
    data = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "docs.jsonl")}},
        "test_split": "test",
    }
    for name, task in TASKS.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps({"task": name, **data, **task}))
    arguments = [str(tmp_path), str(folder), json.dumps([1, 2, 7, 16]), likelihood]
    ended = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, timeout=900, check=False
    )
    assert ended.returncode == 0, ended.stderr
    runs = json.loads(ended.stdout.splitlines()[-1])
    assert len(runs) == 4
    assert all(run == runs[0] for run in runs)
    assert len(runs[0][1]["local_choice"]) == len(docs)
