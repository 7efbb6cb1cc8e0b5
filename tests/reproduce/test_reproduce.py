"""Whole tables on a small model: nothing is done twice, and what was killed goes on."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from anyorder.decoder import Decoder, load
from anyorder.decoding.trajectory import read_trajectories
from anyorder.errors import InputError
from anyorder.learning.learn_order import LearnOrderResult
from anyorder.reproduce import jobs as jobs_module
from anyorder.reproduce import reproduce as reproduce_module
from anyorder.reproduce.jobs import ABLATION_STEPS, SETTINGS, DecodeJob, Job, write_cell
from anyorder.reproduce.report import Report
from anyorder.reproduce.reproduce import Request, jobs_of, list_jobs, make_plans, reproduce
from anyorder.reproduce.tables import ablation_name
from tests.cluster_work import Here
from tests.reproduce.conftest import Laboratory

SENTENCES = 14


def jobs_for(request: Request) -> list[Job]:
    return jobs_of(make_plans([request]))


def write(request: Request, so_far: bool = False) -> Report:
    (report,) = reproduce([request], so_far=so_far)
    return report


def kinds(jobs: Iterable[Job]) -> list[str]:
    return [job.title.split()[0] for job in jobs]


@pytest.fixture(scope="module")
def request_of(laboratory: Laboratory, tmp_path_factory: pytest.TempPathFactory) -> Request:
    return laboratory.small_table(tmp_path_factory.mktemp("results") / "out", SENTENCES)


@pytest.fixture(scope="module")
def made(request_of: Request) -> Path:
    """A table that was stopped twice on the way."""
    with pytest.MonkeyPatch.context() as patch:
        real, decoded = Decoder.decode, []

        def killed(self: Decoder, *args: object) -> object:
            decoded.append(args)  # left-to-right, then for each seed its validation and its order
            if len(decoded) == 4:
                raise KeyboardInterrupt
            return real(self, *args)  # type: ignore[arg-type]

        patch.setattr(Decoder, "decode", killed)
        with pytest.raises(KeyboardInterrupt):
            reproduce([request_of])
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        stopped = LearnOrderResult(Path(), {}, 0, finished=False)
        patch.setattr(jobs_module, "learn_order", lambda *args, **options: stopped)
        assert reproduce([request_of], on_line=lines.append) == []
    jobs = list_jobs([request_of])
    assert sorted(kinds(jobs)) == ["decode"] * 4 + ["learn"] * 2
    assert lines[-1] == "stopped; run the same command to continue"
    learned = [job.done for job in jobs if job.title.startswith("learn")]
    assert learned == [True, False]
    assert not (request_of.out / "table2.md").exists()
    write(request_of)
    return request_of.out


def test_the_table(made: Path, request_of: Request) -> None:
    record = json.loads((made / "table2.json").read_text())
    assert [(part["direction"], part["part"]["max_length"]) for part in record["parts"]] == [
        ("de-en", 20),
        ("de-en", 30),
    ]
    rows = {row["row"]: row for row in record["parts"][1]["rows"]}
    assert list(rows) == ["left-to-right", "learned:hidden", "margin"]
    assert rows["learned:hidden"]["paper"] == 29.4
    assert [seed["seed"] for seed in rows["learned:hidden"]["seeds"]] == [1, 2]
    assert set(rows["learned:hidden"]["compared"]) == {"left-to-right", "margin"}
    assert record["parts"][1]["sentences"] == SENTENCES
    assert record["minutes"]["CPU"].keys() == {"learn", "decode"}
    markdown = (made / "table2.md").read_text()
    assert "| De→En dev ≤30 (14) |" in markdown
    assert "order:*,learned:hidden@" in markdown
    assert "4 V100 for 72 hours" in markdown
    latex = (made / "table2.tex").read_text()
    assert r"De$\to$En dev $\le$30 (14)" in latex
    assert str(request_of.models[0]) not in markdown + latex + json.dumps(record)


def test_the_workers_of_a_cluster_make_the_same_table(made: Path, request_of: Request, tmp_path: Path) -> None:
    """Each does all that one learned order needs."""
    lines: list[str] = []
    request = replace(request_of, out=tmp_path)
    reproduce([request], on_line=lines.append, cluster=Here())
    first, second = (json.loads((folder / "table2.json").read_text()) for folder in (made, tmp_path))
    assert first["parts"] == second["parts"]
    for file in made.glob("decode/**/trajectories.jsonl.xz"):
        assert file.read_bytes() == (tmp_path / file.relative_to(made)).read_bytes()
    assert sorted(lines) == sorted(f"done: {job.title}" for job in list_jobs([request]))
    with pytest.raises(InputError, match="part does not go together with a cluster"):
        reproduce([request], part=(1, 2), cluster=Here())


def test_trajectories_lie_beside_their_cell(made: Path) -> None:
    cells = sorted(made.glob("decode/*/de-en/*/gold/*/cell.json"))
    learned = f"hidden,reward=bleu,lambda={SETTINGS['here']['hidden'].rl.entropy_coef:g},steps=1"
    assert [cell.parent.name for cell in cells] == [
        f"{learned},seed=1",
        f"{learned},seed=2",
        "left-to-right",
        "margin",
    ]
    for cell in cells:
        record = json.loads(cell.read_text())
        trajectories = list(read_trajectories(cell.with_name("trajectories.jsonl.xz")))
        assert record["sentences"] == len(trajectories) == SENTENCES
        assert {one.signature for one in trajectories} == {record["signature"]}


def test_a_second_call_computes_nothing(made: Path, request_of: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: (made / f"table2{name}").read_bytes() for name in (".md", ".tex", ".json")}

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("nothing is left to do")

    monkeypatch.setattr(Decoder, "decode", refuse)
    monkeypatch.setattr(jobs_module, "learn_order", refuse)
    monkeypatch.setattr("anyorder.reproduce.report.score_systems", refuse)
    write(request_of)
    assert {name: (made / f"table2{name}").read_bytes() for name in before} == before


def without(made: Path, out: Path, *cells: str) -> Path:
    """A copy of the results in which these cells are not decoded yet, and no table is written."""
    shutil.copytree(made, out)
    for file in out.glob("table2.*"):
        file.unlink()
    for cell in cells:
        (folder,) = out.glob(f"decode/*/*/*/*/{cell}")
        shutil.rmtree(folder)
    return out


def test_a_table_so_far(made: Path, request_of: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learned row needs all of its seeds; the rows that are there have the numbers of the whole table."""
    request = replace(request_of, out=without(made, tmp_path / "out", "*,seed=2"))
    monkeypatch.setattr(Decoder, "decode", None)  # nothing is decoded
    report = write(request, so_far=True)
    whole = json.loads((made / "table2.json").read_text())
    for found, part in zip(report.parts, whole["parts"], strict=True):
        bleu = {row["row"]: row["bleu"] for row in part["rows"]}
        assert {row.row: row.bleu for row in found.rows} == {name: bleu[name] for name in ("left-to-right", "margin")}
    note = "Not finished yet: De→En dev ≤20, gold (learned:hidden); De→En dev ≤30, gold (learned:hidden)."
    assert report.notes == [note, "Until then, p-values are corrected for the finished heuristic orders only."]
    assert note in (request.out / "table2.md").read_text()
    assert write(replace(request_of, name="all"), so_far=True).notes == []
    assert {file.name for file in made.glob("all.*")} == {"all.md", "all.tex", "all.json"}
    assert (made / "all.tex").read_bytes() == (made / "table2.tex").read_bytes()


def test_nothing_so_far(made: Path, request_of: Request, tmp_path: Path) -> None:
    request = replace(request_of, out=without(made, tmp_path / "out", "left-to-right"))
    with pytest.raises(InputError, match="table2: no column is finished yet; each needs at least left-to-right"):
        reproduce([request], so_far=True)
    assert not list(request.out.glob("table2.*"))
    with pytest.raises(InputError, match="no column is finished yet"):
        reproduce([replace(request, out=tmp_path / "new")], so_far=True)
    assert not (tmp_path / "new").exists()


def test_several_tables_so_far(made: Path, request_of: Request) -> None:
    """A table of which nothing is finished does not stop the others."""
    whole = replace(request_of, table="table5", rows=["left-to-right"], max_lengths=[None], sentences=None)
    lines: list[str] = []
    twice = [replace(request_of, name=name) for name in ("once", "again")]
    reports = reproduce([whole, *twice], so_far=True, on_line=lines.append)
    assert [report.table.name for report in reports] == ["table2", "table2"]
    assert (made / "once.tex").read_bytes() == (made / "again.tex").read_bytes()
    assert lines == ["table5: no column is finished yet"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "x" * 101, "x.partial"])
def test_names_that_are_no_files(request_of: Request, name: str) -> None:
    with pytest.raises(InputError, match="is not a plain name"):
        replace(request_of, name=name)


def test_a_table_cannot_have_the_name_of_another(request_of: Request) -> None:
    assert replace(request_of, name="table2").name == "table2"
    with pytest.raises(InputError, match="table1: is the name of another table"):
        replace(request_of, name="table1")


def test_several_tables_share_their_jobs(made: Path, request_of: Request) -> None:
    """No job is listed twice, and each comes after the one that it needs."""
    rows = ["learned:hidden", "learned:confidence"]
    jobs = list_jobs([replace(request_of, table=name, rows=rows, steps=None) for name in ("table2", "table5")])
    titles = [job.title for job in jobs]
    assert len(titles) == len(set(titles))
    assert sorted(kinds(jobs)) == ["decode"] * 10 + ["learn"] * 4
    assert all(titles.index(job.needs.title) < number for number, job in enumerate(jobs) if job.needs)
    alone = replace(request_of, rows=["left-to-right"])
    reports = reproduce([alone, replace(alone, table="analysis", max_lengths=[30])])
    assert [report.table.name for report in reports] == ["table2", "analysis"]
    assert {file.name for file in made.glob("analysis.*")} == {"analysis.md", "analysis.tex", "analysis.json"}
    write(request_of)


def test_several_tables_load_the_model_once(request_of: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    monkeypatch.setattr(
        reproduce_module, "load", lambda *args, **options: loaded.append(load(*args, **options)) or loaded[-1]
    )
    alone = replace(request_of, rows=["left-to-right"])
    first, second = make_plans([alone, replace(alone, table="analysis")])
    assert len(loaded) == 1
    assert first.parts[0].data == second.parts[0].data


def test_ablations_have_shorter_runs(request_of: Request) -> None:
    steps = {}
    for table, row in (("table3", "bleu, λ=0.01"), ("table2", "learned:hidden")):
        jobs = jobs_for(replace(request_of, table=table, rows=[row], steps=None))
        steps[table] = {job.title.split("steps=")[1] for job in jobs if job.title.startswith("learn")}
    usual = SETTINGS["here"]["hidden"].run.steps
    assert steps == {
        "table3": {f"{ABLATION_STEPS}, seed {n}" for n in (1, 2)},
        "table2": {f"{usual}, seed {n}" for n in (1, 2)},
    }


def test_another_table_takes_what_is_there(made: Path, request_of: Request) -> None:
    """The whole dev set needs its long sentences only, and the same lambda is learned already."""
    same = ablation_name("bleu", SETTINGS["here"]["hidden"].rl.entropy_coef)
    other = replace(request_of, table="table3", rows=[same])
    assert all(job.done for job in jobs_for(other))
    whole = jobs_for(replace(request_of, table="table5", rows=["outer-in:stride=2"], sentences=None))
    assert [job.done for job in whole] == [False, False]


def test_directions_can_share_an_order(request_of: Request) -> None:
    both = replace(request_of, directions=["de-en", "en-de"], rows=["learned:hidden"])
    apart, shared = (
        [job.title for job in jobs_for(one) if job.title.startswith("learn")]
        for one in (both, replace(both, shared=True))
    )
    assert [title.split()[1] for title in apart] == ["de-en", "de-en", "en-de", "en-de"]
    assert [title.split()[1] for title in shared] == ["de-en+en-de", "de-en+en-de"]
    alone = jobs_for(replace(both, shared=True, directions=["de-en"]))
    assert [job.title for job in alone if job.title.startswith("learn")] == shared  # other tables find them


def test_short_sentences_alone(made: Path, request_of: Request) -> None:
    """Those of Table 2 are enough for the short columns of another table."""
    (short,) = make_plans([replace(request_of, table="analysis", max_lengths=[30])])
    assert [part.part.text for part in short.parts] == ["dev ≤30"]
    assert all(job.done for job in jobs_of([short]))


def first_decoding(request: Request) -> DecodeJob:
    (job, *_) = (job for job in jobs_for(request) if isinstance(job, DecodeJob))
    return job


def test_a_cell_is_filled_up(request_of: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = first_decoding(replace(request_of, out=tmp_path, rows=["left-to-right"]))
    longer = sorted(job.data.test_set.sizes.tolist())
    short = replace(job, max_length=longer[4])
    assert short.run()
    known = short.trajectories()
    assert 5 <= len(known) < SENTENCES
    decoded: list[int] = []
    real = Decoder.decode
    monkeypatch.setattr(
        Decoder,
        "decode",
        lambda self, sentences, *args: decoded.append(len(sentences)) or real(self, sentences, *args),
    )
    assert not job.done
    assert job.run()
    assert decoded == [SENTENCES - len(known)]
    assert job.done
    assert len(job.costs()) == 2
    fresh = replace(job, place=tmp_path / "fresh")
    assert fresh.run()
    assert job.trajectories() == fresh.trajectories()


def test_a_replacement_that_was_killed_is_finished(
    made: Path, request_of: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system where it takes two steps: nothing is decoded again."""
    job = first_decoding(request_of)
    folder = job.folder.rename(job.folder.with_name(f"{job.folder.name}.old"))
    assert not job.done
    monkeypatch.delattr(Decoder, "decode")
    assert job.run()
    assert job.done
    assert not folder.exists()


def test_another_order_under_the_same_name_is_decoded_again(made: Path, request_of: Request, tmp_path: Path) -> None:
    """Such as one that was learned again."""
    request = replace(request_of, out=tmp_path / "out")
    shutil.copytree(made, request.out)
    job = first_decoding(request)
    record = json.loads((job.folder / "cell.json").read_text())
    write_cell(job.folder, {**record["key"], "order": "another"}, job.trajectories(), [])
    assert not job.done
    with pytest.raises(InputError, match="another process decoded something else"):
        job.checksum()


def test_other_settings_are_not_mixed_up(made: Path, request_of: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    here = SETTINGS["here"]
    changed = replace(here["hidden"], run=replace(here["hidden"].run, learning_rate=0.5))
    monkeypatch.setitem(SETTINGS, "here", {**here, "hidden": changed})
    with pytest.raises(InputError, match="has other settings \\(run.learning_rate was 0.001, now it is 0.5"):
        reproduce([request_of])


def test_an_order_that_was_learned_before_a_setting_existed_is_kept(
    made: Path, request_of: Request, tmp_path: Path
) -> None:
    out = tmp_path / "older"
    shutil.copytree(made, out)
    for file in out.glob("learn/*/*/*/seed-*.json"):
        record = json.loads(file.read_text())
        del record["key"]["rl"]["length"], record["key"]["policy"]["init_scale"]
        file.write_text(json.dumps(record))
    assert all(job.done for job in jobs_for(replace(request_of, out=out)))


def test_orders_beside_the_model(laboratory: Laboratory, request_of: Request, tmp_path: Path) -> None:
    request = replace(request_of, out=tmp_path, learned="model", data=[laboratory.text], sentences=3)
    report = write(request)
    assert report.notes == ["De→En: the model has no order of its own for the row learned:hidden."]
    assert [row.row for row in report.parts[0].rows] == ["left-to-right", "margin"]
    assert "too few for a significance test" in " ".join(report.footer())


def test_the_settings_behind_the_published_tables() -> None:
    """recipes/six-directions/notes.md names them: other settings would be other tables."""
    here = SETTINGS["here"]
    for kind, learning_rate, steps, minibatches, entropy_coef in (
        ("features", 0.001, 600, 4, 0.0001),
        ("confidence", 0.003, 600, 4, 0.0001),
        ("hidden", 0.001, 1250, 16, 0.0001),
        ("ppo", 0.001, 300, 4, 0.0),
    ):
        rl, run = here[kind].rl, here[kind].run
        assert (rl.sentences, rl.rollouts) == (64, 8)
        assert (run.learning_rate, run.steps, rl.num_minibatches, rl.entropy_coef) == (
            learning_rate, steps, minibatches, entropy_coef,
        )  # fmt: skip
    assert ABLATION_STEPS == 300


def test_a_model_that_does_not_translate() -> None:
    with pytest.raises(InputError, match="sudoku-4x4: does not translate"):
        make_plans([Request("table2", Path("results"), models=["sudoku-4x4"])])
