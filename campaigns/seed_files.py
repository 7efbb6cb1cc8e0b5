"""Tiny whole examples of every kind of file that anyorder reads, and the commands that read them.

A campaign makes them once, by the commands themselves, and damages copies.

    text/      sentences     store/      run/ order-run/ pretrain-run/    runs that can be resumed
    model/     xlm/          order/      *.jsonl*  trajectories          *.yaml  recipes        plugin.py
    masked/    a model of Transformers, for puzzles.txt     chat/  the same with a chat template, for prompts.jsonl
    old/       the same, pickled
"""

import gzip
import json
import lzma
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from tests.conftest import toy_pairs, write_pairs

from anyorder.cli import main
from anyorder.models.native.storage import find
from campaigns.sandbox import start_workers_quickly

SIZE = [
    "--transformer.hidden-size", "16", "--transformer.num-layers", "1", "--transformer.num-heads", "2",
    "--transformer.max-positions", "48",
]  # fmt: skip
RUN = ["--run.device", "cpu", "--run.warmup", "1", "--run.log-every", "1", "--run.save-every", "1"]
TEXT_RUN = [*SIZE, *RUN, "--run.batch-tokens", "256"]

PREPARE = [
    "prepare", "--languages", "de,en", "--train", "toy=text/train.%", "--dev", "text/dev.%", "--mono", "text/mono.%",
    "--vocabulary", "150", "--workers", "1",
]  # fmt: skip
TRAIN = ["train", "--data", "store", *TEXT_RUN, "--run.validate-every", "0", "--masking.validation-sentences", "2"]
PRETRAIN = ["pretrain", "--data", "store", *TEXT_RUN, "--run.validate-every", "0"]
LEARN_ORDER = [
    "learn-order", "--model", "model", "--data", "store", "--direction", "de-en", *RUN, "--run.validate-every", "0",
    "--rl.sentences", "2", "--rl.rollouts", "2", "--rl.max-length", "12", "--rl.validation-sentences", "2",
    "--policy.size", "64",
]  # fmt: skip
TRANSLATE = ["translate", "--direction", "de-en", "--length", "fixed:3", "--device", "cpu", "--json", "out.jsonl"]
EVALUATE = [
    "evaluate", "--direction", "de-en", "--source", "text/few.de", "--reference", "text/few.en", "--samples", "20",
    "--device", "cpu", "--json", "out.json",
]  # fmt: skip
ANALYZE = ["analyze", "--tagger", "none", "--samples", "20", "--null-samples", "2", "--json", "out.json"]
GENERATE = ["generate", "--length", "2", "--device", "cpu", "--json", "out.jsonl"]
INFILL = ["infill", "--device", "cpu", "--json", "out.jsonl"]
TRAIN_TASK = [
    "train-task", "--task", "sudoku-4x4", *RUN, "--encoder.hidden-size", "16", "--encoder.num-heads", "2",
    "--fill.puzzles", "20", "--fill.validation-puzzles", "5",
]  # fmt: skip
REPRODUCE = [
    "reproduce", "table2", "--data", "store", "--direction", "de-en", "--rows", "margin", "--lengths", "gold",
    "--learned", "model", "--samples", "20", "--device", "cpu",
]  # fmt: skip

DISTILL = ["distill", "--data", "store", "--baseline", "baseline", "--pairs", "3", "--device", "cpu"]

STEPS = ["--run.steps", "2", "--run.validate-every", "1"]
MORE_STEPS = ["--run.steps", "3", "--resume"]

COMMANDS: dict[str, list[list[str]]] = {
    "store": [
        [*TRAIN, "--out", "out", "--run.steps", "1"],
        [*TRAIN, "--out", "out", "--run.steps", "1", "--run.validate-every", "1", "--directions", "de-en"],
        [*TRAIN, "--out", "run", *MORE_STEPS],
        [*PRETRAIN, "--out", "out", "--run.steps", "1"],
        [*LEARN_ORDER, "--out", "out", "--run.steps", "1"],
        [*PREPARE, "--out", "out", "--tokenizer", "store"],
        [*DISTILL, "--out", "out"],
    ],
    "baseline": [[*DISTILL, "--out", "out"], [*DISTILL, "--out", "out", "--beam", "2"]],
    "run": [[*TRAIN, "--out", "run", *MORE_STEPS], ["translate", "--model", "run/model", *TRANSLATE[1:], "Ein Hund."]],
    "order-run": [[*LEARN_ORDER, "--out", "order-run", *MORE_STEPS]],
    "pretrain-run": [
        [*PRETRAIN, "--out", "pretrain-run", *MORE_STEPS],
        [*TRAIN, "--out", "out", "--run.steps", "1", "--init", "pretrain-run/model"],
    ],
    "model": [
        [*TRANSLATE, "--model", "model", "Der Hund sieht die Katze."],
        [*TRANSLATE, "--model", "model", "--length", "table:2", "--order", "margin", "Der Hund sieht die Katze."],
        [*TRANSLATE, "--model", "model", "--length", "candidates:2", "text/few.de"],
        [*EVALUATE, "--model", "model", "--orders", "margin,learned"],
        [*TRAIN, "--out", "out", "--run.steps", "1", "--init", "model"],
        [*LEARN_ORDER, "--out", "out", "--run.steps", "1"],
        [*PREPARE, "--out", "out", "--tokenizer", "model"],
        ["explore", "--model", "model", "--port", "0", "--device", "cpu"],
    ],
    "masked": [
        [*INFILL, "--model", "masked", "puzzles.txt"],
        [
            "evaluate",
            "--model",
            "masked",
            "--source",
            "puzzles.txt",
            "--orders",
            "margin,learned:hidden",
            "--samples",
            "20",
        ],
        ["learn-order", "--model", "masked", "--task", "sudoku-4x4", *RUN, "--out", "out", "--run.steps", "1"],
    ],
    "puzzles.txt": [
        [*INFILL, "--model", "sudoku-4x4", "puzzles.txt"],
        ["evaluate", "--model", "sudoku-4x4", "--source", "puzzles.txt", "--orders", "margin", "--json", "out.json"],
    ],
    "prompts.jsonl": [
        [*GENERATE, "--model", "masked", "prompts.jsonl"],
        [*GENERATE, "--model", "chat", "prompts.jsonl", "--stop", "3", "--end", "last"],
    ],
    "chat": [
        [*GENERATE, "--model", "chat", "prompts.jsonl"],
        [*GENERATE, "--model", "chat", "--chat", "--system", "1", "--prompt", "12"],
        ["evaluate", "--model", "chat", "--text", "solutions.txt", "--limit", "3", "--orders", "margin"],
        ["learn-order", "--model", "chat", "--text", "solutions.txt", *RUN, "--out", "out", "--run.steps", "1"],
    ],
    "old": [["convert", "old", "out"], ["convert", "old/pytorch_model.bin", "out"]],
    "xlm": [[*TRANSLATE, "--model", "xlm", "Der Hund sieht die Katze."]],
    "order": [
        [*TRANSLATE, "--model", "model", "--order", "learned:order", "Der Hund sieht die Katze."],
        [*EVALUATE, "--model", "model", "--orders", "left-to-right,learned:order"],
    ],
    "a.jsonl": [[*ANALYZE, "a.jsonl"], ["evaluate", "--trajectories", "a.jsonl", "--reference", "text/few.en"]],
    "b.jsonl.gz": [[*ANALYZE, "a.jsonl", "b.jsonl.gz"], [*ANALYZE, "b.jsonl.gz", "--html", "out.html"]],
    "c.jsonl.xz": [[*ANALYZE, "c.jsonl.xz", "--table", "out.md", "--reference", "text/few.en"]],
    "text": [
        [*PREPARE, "--out", "out"],
        [*PREPARE, "--out", "out", "--tokenizer", "store", "--test", "text/few.%.gz"],
        [*TRANSLATE, "--model", "model", "text/few.de"],
        [*TRANSLATE, "--model", "model", "text/few.de.gz", "--strict"],
        [*TRANSLATE, "--model", "model", "--length", "gold", "--reference", "text/few.en", "text/few.de"],
        [*EVALUATE, "--model", "model", "--orders", "margin"],
        [*ANALYZE, "a.jsonl", "--reference", "text/few.en"],
        [*ANALYZE, "a.jsonl", "--trees", "text/trees"],
    ],
    "translate.yaml": [["translate", "--config", "translate.yaml", "Der Hund."]],
    "train.yaml": [["train", "--config", "train.yaml"]],
    "learn-order.yaml": [["learn-order", "--config", "learn-order.yaml"]],
    "evaluate.yaml": [["evaluate", "--config", "evaluate.yaml"]],
    "prepare.yaml": [["prepare", "--config", "prepare.yaml"]],
    "plugin.py": [
        [*TRANSLATE, "--model", "model", "--plugin", "plugin.py", "--order", "middle-out", "Der Hund."],
        ["orders", "--plugin", "plugin.py"],
    ],
}
"""What is damaged, and the commands that read it."""

VERB_COMMANDS: dict[str, list[str]] = {
    "prepare": [*PREPARE, "--tokenizer", "store", "--out", "out"],
    "pretrain": [*PRETRAIN, "--out", "out", "--run.steps", "1"],
    "train": [*TRAIN, "--out", "out", "--run.steps", "1"],
    "distill": [*DISTILL, "--out", "out"],
    "learn-order": [*LEARN_ORDER, "--out", "out", "--run.steps", "1"],
    "translate": [*TRANSLATE, "--model", "model", "Der Hund."],
    "infill": [*INFILL, "--model", "masked", "puzzles.txt"],
    "generate": ["generate", "--model", "masked", "--prompt", "1", "--length", "3", "--device", "cpu"],
    "train-task": [*TRAIN_TASK, "--out", "out", "--run.steps", "1"],
    "puzzles": ["puzzles", "--task", "sudoku-4x4", "--count", "3", "--out", "out.txt", "--solutions", "solutions.txt"],
    "reproduce": [*REPRODUCE, "--model", "model", "--out", "out"],
    "evaluate": [*EVALUATE, "--model", "model", "--orders", "margin"],
    "analyze": [*ANALYZE, "a.jsonl"],
    "explore": ["explore", "--model", "model", "--port", "0", "--device", "cpu"],
    "convert": ["convert", "masked", "out"],
    "export-order": ["export-order", "learned:de-en/confidence", "--out", "out.py"],
    "orders": ["orders"],
}
"""A whole command for each verb; options are added to it or changed in it."""

PLUGIN = '''"""An order of one's own."""

import anyorder


@anyorder.register_order("middle-out")
def middle_out(state):
    """The middle first."""
    middle = (state.lengths.unsqueeze(1) - 1) / 2
    return -(state.positions - middle).abs()
'''


def write_seed_files(folder: Path, with_xlm: bool = True) -> None:
    """Fill a folder with one example of each kind. Uses torch, so call it in a process of its own.

    Without XLM and the baseline, which take seconds to import, another model is in their place.
    """
    before = Path.cwd()
    os.chdir(folder)
    try:
        start_workers_quickly(PREPARE)
        _write_text(Path("text"))
        _run([*PREPARE, "--out", "store"])
        _run([*TRAIN, "--out", "run", *STEPS])
        Path("model").mkdir()
        _copy(Path("run/model"), Path("model"))
        _run([*PRETRAIN, "--out", "pretrain-run", *STEPS])
        _run([*LEARN_ORDER, "--out", "order-run", "--name", "default", *STEPS])
        _copy(Path("order-run/order"), Path("order"))
        if with_xlm and find_spec("transformers"):
            _write_xlm(Path("xlm"))
            _write_baseline(Path("baseline"))
        else:
            _copy(Path("run/model"), Path("xlm"))
            _copy(Path("run/model"), Path("baseline"))
        _write_puzzles()
        _write_trajectories()
        _write_recipes()
        Path("plugin.py").write_text(PLUGIN)
    finally:
        os.chdir(before)


def _run(command: list[str]) -> None:
    if code := main(command):
        raise SystemExit(f"anyorder {' '.join(command)}: exit code {code} while the seed files were made")


def _copy(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())


def _write_text(folder: Path) -> None:
    folder.mkdir()
    pairs = toy_pairs(160, seed=7)
    for name, chosen in {"train": pairs[:120], "dev": pairs[120:128], "few": pairs[128:131]}.items():
        write_pairs(folder, name, chosen)
    write_pairs(folder, "mono", pairs[131:])
    for language in ("de", "en"):
        (folder / f"few.{language}.gz").write_bytes(gzip.compress((folder / f"few.{language}").read_bytes(), mtime=0))
    (folder / "trees").write_text("(S (NP (DT The) (NN dog)) (VP (VBZ sees)) (. .))\n")


def _write_xlm(folder: Path) -> None:
    from tests.models.test_xlm import write_xlm

    from anyorder.data.vocabulary import Vocabulary

    write_xlm(folder, Vocabulary.load(Path("store")), emb_dim=16, n_layers=1, n_heads=2)


def _write_baseline(folder: Path) -> None:
    from anyorder import TranslationModel
    from anyorder.data.store import Store
    from anyorder.reproduce.autoregressive import AutoregressiveObjective

    objective = AutoregressiveObjective([Store("store")], TranslationModel.from_pretrained("model"), 512, seed=1)
    objective.save(objective.learner, Path("baseline-run"))
    _copy(Path("baseline-run/model"), folder)
    shutil.rmtree("baseline-run")


def _write_puzzles() -> None:
    bundled = find("sudoku-4x4")
    shutil.copytree(bundled, "masked")
    lines = (bundled / "sample.puzzles.txt").read_text().splitlines(keepends=True)
    Path("puzzles.txt").write_text("".join(lines[:4]))
    solutions = (bundled / "sample.solutions.txt").read_text().splitlines(keepends=True)
    Path("solutions.txt").write_text("".join(solutions[:24]))
    _write_chat(Path("chat"))
    _write_old(Path("old"))
    lines = [{"prompt": "12\n3"}, {"prompt": "1", "suffix": "2"}, {"canvas": [1, None, 2]}, {"prompt": [1, 2]}]
    lines.append({"messages": [{"role": "system", "content": "1"}, {"role": "user", "content": "2\n3"}]})
    Path("prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _write_chat(folder: Path) -> None:
    """The model of puzzles with a template for conversations."""
    shutil.copytree("masked", folder)
    (folder / "checksums.json").unlink(missing_ok=True)
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}4{% endif %}"
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))


def _write_old(folder: Path) -> None:
    """The same model as checkpoints used to be: pickled."""
    import torch
    from safetensors.torch import load_file

    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"masked/{name}", folder / name)
    torch.save(load_file("masked/model.safetensors"), folder / "pytorch_model.bin")


def _write_trajectories() -> None:
    for order, file in (("margin", "a.jsonl"), ("left-to-right", "b.jsonl"), ("outer-in", "c.jsonl")):
        _run([*TRANSLATE[:-2], "--model", "model", "--order", order, "--json", file, "text/few.de"])
    Path("b.jsonl.gz").write_bytes(gzip.compress(Path("b.jsonl").read_bytes(), mtime=0))
    Path("c.jsonl.xz").write_bytes(lzma.compress(Path("c.jsonl").read_bytes()))
    for file in ("b.jsonl", "c.jsonl"):
        Path(file).unlink()


def _write_recipes() -> None:
    for verb in ("translate", "train", "learn-order", "evaluate", "prepare"):
        command = VERB_COMMANDS[verb]
        lines: list[str] = []
        groups: dict[str, list[str]] = {}
        for flag, value in zip(command[1::2], command[2::2], strict=False):
            if not flag.startswith("--"):
                continue
            group, _, name = flag[2:].replace("-", "_").rpartition(".")
            text = (
                f"[{value}]" if flag in ("--reference", "--trajectories") else f'"{value}"' if ":" in value else value
            )
            (groups.setdefault(group, []) if group else lines).append(f"{name}: {text}")
        for group, names in groups.items():
            lines += [f"{group}:", *(f"  {line}" for line in names)]
        Path(f"{verb}.yaml").write_text("\n".join(lines) + "\n")
