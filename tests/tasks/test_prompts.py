"""Prompts are read as they are: texts, token ids, conversations, canvases; in Python and as lines of JSON."""

import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import anyorder
from anyorder import Decoder, InputError, Trajectory
from anyorder.cli import main
from anyorder.decoding.stepper import StepCache, step
from anyorder.models.base import Canvas
from anyorder.models.hf.pretrained import TransformersModel
from anyorder.tasks import Generate
from anyorder.tasks.prompts import Prompt
from tests.models.checkpoints import CLASSES, logits_of

SPECIAL = ["<pad>", "<mask>", "<bos>", "<eos>", "<unk>"]
MASK, BOS, EOS = 1, 2, 3
TEMPLATE = (
    "<bos>{% for m in messages %}{% if m['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('no such role: ' + m['role']) }}{% endif %}"
    "{{ m['role'] + ':' + m['content'] + '\n' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
CHAT = [{"role": "user", "content": "a\nb\n"}, {"role": "assistant", "content": " c"}, {"role": "user", "content": "d"}]


def byte_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """A token per byte, and <bos> before a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {token: number for number, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    names = ("pad_token", "mask_token", "bos_token", "eos_token", "unk_token")
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict(zip(names, SPECIAL, strict=True)))
    made.chat_template = template
    return made


def byte_network() -> Any:
    options = {**CLASSES["LlamaForCausalLM"], "vocab_size": 261, "pad_token_id": 0, "eos_token_id": EOS}
    config = transformers.LlamaConfig(**{**options, "max_position_embeddings": 256})
    transformers.set_seed(5)
    network = transformers.LlamaForCausalLM(config)
    for weight in network.parameters():
        weight.data.normal_(std=0.4)
    return network


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return anyorder.load(byte_network(), byte_tokenizer())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bytes")
    byte_network().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def read_by_the_network(decoder: Decoder, prompt: Any, **options: Any) -> list[int]:
    """All ids that the network gets."""
    task = Generate(4, **options)
    examples = task.examples(decoder.model, [prompt])
    bound = task.bind(anyorder.DecodingConfig(), decoder.model)
    [[[canvas]]] = task.canvases(decoder.model, examples, bound)
    return decoder.model.pack([canvas]).packed.tokens.tolist()


@settings(max_examples=15)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=3))
def test_any_text_is_kept(decoder: Decoder, prompts: list[str]) -> None:
    prompts = [prompt.replace("\ufffd", "") for prompt in prompts]
    for prompt, one in zip(prompts, decoder.generate(prompts, 2, "left-to-right", schedule=2), strict=True):
        assert (one.source, one.note) == (prompt, "")
        assert one.canvas is not None
        assert len(one.canvas) == len(prompt.encode()) + 2
        assert one.text == prompt + str(one.completion)


def test_only_what_no_tokenizer_accepts_is_changed(decoder: Decoder) -> None:
    for run in (decoder.generate("a\ud800\n", 2), decoder.fill("a\ud800\n[MASK]")):
        assert run[0].source.startswith("a\ufffd\n")
        assert run[0].note == "invalid UTF-8 in source became U+FFFD"
    [one] = decoder.generate([[{"role": "user", "content": "x\udfff"}]], 2)
    assert (json.loads(one.source)[0]["content"], one.note) == ("x\ufffd", "invalid UTF-8 in source became U+FFFD")


def test_masked_texts_keep_their_line_breaks(decoder: Decoder) -> None:
    [one] = decoder.fill("def f():\n\t\x07return [MASK]\n", "margin")
    assert (one.source, one.note) == ("def f():\n\t\x07return [MASK]\n", "")
    assert one.text.startswith("def f():\n\t\x07return")
    assert one.text.endswith("\n")


def slow_left_to_right(model: TransformersModel, ids: Sequence[int], places: Sequence[int]) -> list[int]:
    """Fill these places one after the other, each with a forward pass over a plain canvas."""
    ids, allowed = list(ids), model.generating().allowed_tokens
    for place in places:
        logits = logits_of(model, ids)[place].numpy()
        ids[place] = int(np.where(allowed, logits, -np.inf).argmax())
    return [ids[place] for place in places]


def test_a_mask_in_a_prompt_stays(decoder: Decoder) -> None:
    text = "a<mask>b"
    ids = decoder.model.encode([text], has_masks=False)[0].tolist()
    assert ids[1] == MASK
    expected = decoder.model.to_tokens(slow_left_to_right(decoder.model, [*ids, *[MASK] * 4], [3, 4, 5, 6]))
    together = decoder.generate(["abc", text, "a"], 4, "left-to-right")
    for run in (together[1], *decoder.generate(text, 4, "left-to-right", schedule="threshold:1")):
        assert run.canvas == ["a", "<mask>", "b", None, None, None, None]
        assert (run.tokens, run.positions) == (expected, [3, 4, 5, 6])
    [beam] = decoder.generate(text, 4, "left-to-right", beam=2)
    assert beam.canvas == together[1].canvas
    [revised] = decoder.generate(text, 4, "margin", revision="mask-predict:3")
    assert {write.position for write in revised.writes or []} == {3, 4, 5, 6}
    [literal] = decoder.generate("[MASK]", 1)
    assert (literal.canvas or [])[:6] == list("[MASK]")


def test_chat_ids_are_those_of_the_template(decoder: Decoder) -> None:
    tokenizer = decoder.model.tokenizer
    expected = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert expected[:2] != [BOS, BOS]
    masks = [MASK] * 4
    assert read_by_the_network(decoder, CHAT) == expected + masks
    wrapped = tokenizer.apply_chat_template(CHAT[:1], add_generation_prompt=True, return_dict=False)
    assert read_by_the_network(decoder, "a\nb\n", chat=True) == wrapped + masks
    system = [{"role": "system", "content": "s"}, *CHAT[:1]]
    with_system = tokenizer.apply_chat_template(system, add_generation_prompt=True, return_dict=False)
    assert read_by_the_network(decoder, "a\nb\n", chat=True, system="s") == with_system + masks
    assert read_by_the_network(decoder, "a\nb\n") == [BOS, *decoder.model.encode(["a\nb\n"])[0], *masks]


def test_a_chat_s_text_is_the_answer(decoder: Decoder) -> None:
    [wrapped] = decoder.generate("a\nb\n", 4, chat=True, system="be short")
    assert wrapped.source == "a\nb\n"
    assert wrapped.text == wrapped.completion
    assert "|chat:yes|system:be short|seed:" in wrapped.signature
    [messages] = decoder.generate(CHAT, 4)
    assert json.loads(messages.source) == CHAT
    assert messages.text == messages.completion
    assert Trajectory.from_json(messages.to_json()) == messages
    assert "chat" not in messages.signature


def test_what_a_template_refuses(decoder: Decoder) -> None:
    bad, good = decoder.generate([[{"role": "robot", "content": "x"}], CHAT], 2)
    assert bad.note == "unusable prompt (the chat template refuses it (no such role: robot))"
    assert good.length == 2
    plain = anyorder.load(byte_network(), byte_tokenizer(None))
    for arguments, options in ((["x"], {"chat": True}), ([CHAT], {})):
        with pytest.raises(InputError, match=r"its tokenizer has no chat template .*, so it cannot chat"):
            plain.generate(arguments, 2, **options)
    with pytest.raises(InputError, match="system is for chats"):
        plain.generate("x", system="s")


def test_token_ids(decoder: Decoder) -> None:
    ids = [BOS, 40, 41, 42]
    text = decoder.model.to_text(ids, "")
    [by_text] = decoder.generate(text, 3)
    for prompt in (ids, [ids], np.array(ids), [np.array(ids)], {"prompt": ids}, [{"prompt": ids}], [tuple(ids)]):
        [one] = decoder.generate(prompt, 3)
        assert read_by_the_network(decoder, ids) == [*ids, *[MASK] * 4]
        assert (one.tokens, one.steps, one.completion) == (by_text.tokens, by_text.steps, by_text.completion)
        assert one.source == json.dumps(ids)
    [bad] = decoder.generate([[261]], 3)
    assert bad.note == "unusable prompt (261 is not a token: expected numbers from 0 to 260)"
    [canvas] = decoder.generate([40, None, MASK, None], 64)
    assert canvas.canvas == [*decoder.model.to_tokens([40]), None, "<mask>", None]
    assert "|length:given|" in canvas.signature
    assert canvas.completion is None  # its masks are in several places
    assert decoder.generate([], 3) == []


def test_delimiters_are_part_of_what_filling_by_hand_remembers(decoder: Decoder) -> None:
    model, ids, cache = decoder.model.generating(), np.array([40, MASK, MASK]), StepCache()
    found = []
    for is_delimited in (True, False):
        canvas = Canvas(ids, is_delimited=is_delimited)
        found.append(step(model, canvas, [1], cache=cache).logprobs)
        assert found[-1] == step(model, canvas, [1]).logprobs
    assert found[0] != found[1]


def test_a_suffix_follows_the_completion(decoder: Decoder) -> None:
    [one] = decoder.generate({"prompt": "a = [", "suffix": "]\n"}, 3, "margin")
    assert one.canvas == [*"a", "Ġ", *"=", "Ġ", "[", None, None, None, "]", "Ċ"]
    assert one.text == f"a = [{one.completion}]\n"
    assert json.loads(one.source) == {"prompt": "a = [", "suffix": "]\n"}
    [canvas] = decoder.generate({"canvas": "a = [[MASK][MASK][MASK]]\n"}, order="margin")
    assert (canvas.text, canvas.completion, canvas.steps) == (one.text, one.completion, one.steps)


def filled_with(decoder: Decoder, monkeypatch: pytest.MonkeyPatch, ids: Sequence[int], **options: Any) -> Trajectory:
    """What is recorded if the model fills in these ids after `ab`."""
    expected = iter(ids)

    def choose(state: Any, logits: Any, positions: Any, *sampler: Any) -> Any:
        return positions.new_tensor([next(expected) for _ in positions]), logits.amax(-1)

    monkeypatch.setattr("anyorder.decoding.state.DecodeState.choose", choose)
    [one] = decoder.generate("ab", len(ids), "left-to-right", **options)
    return one


def test_a_completion_ends_at_an_end_token_or_a_stop_string(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    [c, d, line] = decoder.model.encode(["cd\n"])[0].tolist()
    whole = filled_with(decoder, monkeypatch, [c, d, line, c])
    assert (whole.text, whole.completion, whole.completion_length) == ("abcd\nc", "cd\nc", 4)
    ended = filled_with(decoder, monkeypatch, [c, EOS, d, EOS])
    assert (ended.text, ended.completion, ended.completion_length) == ("abc", "c", 1)
    assert (len(ended.tokens), ended.tokens[1]) == (4, "<eos>")
    for stop in ("\n", "d\n", ["x", "\n"], ["\nc", "d\n"]):
        stopped = filled_with(decoder, monkeypatch, [c, d, line, c], stop=stop)
        expected = "c" if "d\n" in stop else "cd"
        assert (stopped.completion, stopped.text) == (expected, f"ab{expected}")
        assert stopped.completion_length == len(expected)
        assert f"|stop:{json.dumps([stop] if isinstance(stop, str) else stop)}|" in stopped.signature
        assert Trajectory.from_json(stopped.to_json()) == stopped
    after = filled_with(decoder, monkeypatch, [c, EOS, d, line], stop="d")
    assert after.completion == "c"  # what follows an end token is no part of it
    with pytest.raises(InputError, match="stop is empty: expected a text"):
        decoder.generate("a", stop=["x", ""])


def test_records_without_a_completion_load() -> None:
    old = Trajectory.from_json('{"tokens": ["a"], "steps": [1]}')
    assert (old.completion, old.completion_length) == (None, None)
    assert "completion" not in old.to_json()
    with pytest.raises(InputError, match="1 tokens but a completion of 2"):
        Trajectory.from_json('{"tokens": ["a"], "steps": [1], "completion": "a", "completion_length": 2}')


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("", "not JSON (Input data was truncated)"),
        ("w1", "not JSON (JSON is malformed: invalid character (byte 0))"),
        ("[1]", "expected an object, got a list"),
        ("{}", "has no prompt, messages or canvas"),
        ('{"suffix": "x"}', "has no prompt, messages or canvas"),
        ('{"prompt": "a", "canvas": "b"}', "has prompt and canvas, expected one of them"),
        ('{"canvas": "a", "suffix": "b"}', "suffix: goes with a prompt, not with canvas"),
        ('{"prompt": 1}', "prompt: expected text or a list or null, got a whole number"),
        ('{"prompt": [1.5]}', "prompt[0]: expected a whole number, got a number"),
        ('{"messages": []}', "messages: is empty, expected at least one"),
        ('{"messages": [{"role": "user"}]}', "messages[0]: has no content"),
        ('{"messages": [{"role": "user", "content": 1}]}', "messages[0].content: expected text, got a whole number"),
    ],
)
def test_a_line_that_is_no_prompt(line: str, error: str) -> None:
    prompt = Prompt.parse(line)
    assert not prompt.is_readable
    assert [problem.error for problem in prompt.problems] == [error]
    assert prompt.problems[0].note == f"unreadable prompt ({error})"


def test_what_is_no_prompt_at_all(decoder: Decoder) -> None:
    """Bytes are not token ids."""
    for wrong in (None, 5, b"ab", np.array(5), [5.5], ["a", None]):
        one = decoder.generate(wrong, 1)[-1]
        assert one.completion == ""
        assert "expected a text, token ids, messages or an object, got" in one.note
    assert decoder.generate("a", 1, stop=None)[0].note == ""


@settings(max_examples=30)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None), max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["prompt", "messages", "canvas", "suffix", "role", "content", "x"]), inner)))  # fmt: skip
def test_any_json_gives_one_trajectory(decoder: Decoder, value: Any) -> None:
    [one] = decoder.generate([Prompt.parse(json.dumps(value))], 1, "left-to-right")
    assert one.note or one.tokens
    assert Trajectory.from_json(one.to_json()) == one


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["generate", "--device", "cpu", "--length", "2", "--order", "margin", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_command_line_keeps_prompts(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    options = ["--model", folder, "--json", out]

    def sources() -> list[str]:
        return [json.loads(line)["source"] for line in out.read_text().splitlines()]

    for arguments in (["--prompt", "a\nb\n"], ["a\nb\n"]):
        code, printed, errors = run(capsys, *options, *arguments)
        assert (code, errors, sources()) == (0, "", ["a\nb\n"])
        assert printed.startswith("a\nb\n")
    text = tmp_path / "text.txt"
    text.write_text("a\r\n\n b\n", newline="")
    run(capsys, *options, text)
    assert sources() == ["a", "", " b"]
    run(capsys, *options, "--input-format", "whole", text)
    assert sources() == ["a\r\n\n b\n"]
    lines = [{"prompt": "x\ny", "id": 7}, {"messages": CHAT}, {"promt": "z"}, {"canvas": [40, None]}]
    file = tmp_path / "prompts.jsonl.gz"
    with gzip.open(file, "wt") as stream:
        stream.writelines(f"{json.dumps(line)}\n" for line in lines)
    code, _, errors = run(capsys, *options, file)
    assert (code, len(sources()), sources()[0]) == (0, 4, "x\ny")
    assert "1 line was not filled as it is (1 unreadable prompt): line 3 (unreadable prompt (has no prompt" in errors
    out.unlink()
    code, printed, errors = run(capsys, *options, "--strict", file)
    assert (code, printed, out.exists()) == (2, "", False)
    assert errors == f"anyorder generate: {file}, line 3: has no prompt, messages or canvas\n"


def test_standard_input_may_hold_json(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = b'{"prompt": "a\\nb"}\n{"prompt": "c"}\n'

    def answer(*options: object) -> str:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        code, printed, errors = run(capsys, "--model", folder, *options)
        assert (code, errors) == (0, "")
        return printed

    assert answer("--input-format", "jsonl").startswith("a\nb")
    assert answer("--input-format", "jsonl", "--prompt", '{"prompt": "c\\nd"}').startswith("c\nd")
    assert answer("--input-format", "whole").startswith(given.decode())
    assert answer().startswith('{"prompt"')


def test_stop_strings_and_chats_on_the_command_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    options = ["--model", folder, "--json", out, "--chat", "--system", "s", "--stop", "\n", "--stop", "x y"]
    code, printed, errors = run(capsys, *options, "hello\n")
    [record] = map(json.loads, out.read_text().splitlines())
    assert (code, errors, printed) == (0, "", record["completion"] + "\n")
    assert (record["source"], record["text"]) == ("hello\n", record["completion"])
    assert '|chat:yes|system:s|stop:["\\n", "x y"]|' in record["signature"].replace("%0A", "\n")
