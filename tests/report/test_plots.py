"""Figures for papers: which files come out, and that nothing unmeasured stops them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import anyorder
from anyorder.analysis.results import Analysis
from anyorder.errors import InputError
from anyorder.report.plots import color_scale, plot_all, plot_heat_maps, plot_jumps, plot_metrics
from tests.report.conftest import make_analysis, make_systems

STARTS = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}


@pytest.fixture
def analysis() -> dict[str, Any]:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    return make_analysis(make_systems(4))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All figures in all formats."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    return plot_all(make_analysis(make_systems(4)), tmp_path_factory.mktemp("plots") / "new")


@pytest.fixture(scope="module")
def measured() -> Analysis:
    return anyorder.analyze(make_systems(4), tagger="none", samples=20, null_samples=2)


def test_three_figures_in_three_formats(drawn: list[Path]) -> None:
    assert sorted(file.name for file in drawn) == sorted(
        f"{n}.{e}" for n in ("heatmaps", "figures", "jumps") for e in STARTS
    )
    for file in drawn:
        assert file.read_bytes().startswith(STARTS[file.suffix[1:]])


@pytest.mark.parametrize(("plot", "ending"), [(plot_heat_maps, "pdf"), (plot_metrics, "svg"), (plot_jumps, "png")])
def test_one_figure_by_one_call(plot: Callable[..., Any], ending: str, measured: Analysis, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    figure = plot(measured, tmp_path / f"figure.{ending}")
    assert (tmp_path / f"figure.{ending}").read_bytes().startswith(STARTS[ending])
    assert len(figure.axes) >= 3
    assert len(plot(measured.as_json()).axes) == len(figure.axes)
    assert [file.name for file in tmp_path.iterdir()] == [f"figure.{ending}"]
    plot(measured, str(tmp_path / "text.svg"))
    with pytest.raises(InputError, match="unknown figure format 'bmp'"):
        plot(measured, tmp_path / "figure.bmp")
    with pytest.raises(InputError, match="does not hold what this figure shows"):
        plot({"systems": []}, tmp_path / "none.png")


def test_fonts_are_embedded(drawn: list[Path]) -> None:
    pdf = drawn[0].with_name("figures.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert "<text" not in drawn[0].with_name("figures.svg").read_text()


def test_the_same_analysis_gives_the_same_files(analysis: dict[str, Any], drawn: list[Path], tmp_path: Path) -> None:
    again = plot_all(analysis, tmp_path / "again", ("pdf", "svg"))
    assert len(again) == 6
    for file in again:
        assert file.read_bytes() == drawn[0].with_name(file.name).read_bytes()


def test_what_was_not_measured_is_left_out(analysis: dict[str, Any], tmp_path: Path) -> None:
    analysis["systems"][0]["figures"] = None
    analysis["systems"][1]["figures"]["edge share"] = {"value": 0.5, "low": None, "high": None, "null": None}
    for system in analysis["systems"]:
        system["positions"] = system["jumps"] = None
    assert [file.name for file in plot_all(analysis, tmp_path, ["png"])] == ["figures.png"]
    assert plot_all({"systems": None}, tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown figure format 'bmp' \(known: pdf, svg, png\)"):
        plot_all({}, tmp_path, ["bmp"])


def test_without_matplotlib_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="anyorder\\[plots\\]"):
        plot_all({}, tmp_path)


def test_lightness_rises_evenly() -> None:
    """Lightness (CIE L*), which color blindness does not change, rises in nearly equal steps."""

    def lightness(t: float) -> float:
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in color_scale(t)]
        return 116 * (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]) ** (1 / 3) - 16

    rises = [lightness((i + 1) / 10) - lightness(i / 10) for i in range(10)]
    assert min(rises) > 5
    assert max(rises) < 9
