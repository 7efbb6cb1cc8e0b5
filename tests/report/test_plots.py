"""Figures for papers: which files come out, and that nothing unmeasured stops them."""

import sys
from pathlib import Path
from typing import Any

import pytest

from anyorder.errors import InputError
from anyorder.report.plots import figures, scale
from tests.report.conftest import make_analysis, make_systems

STARTS = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}


@pytest.fixture
def analysis() -> dict[str, Any]:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    return make_analysis(make_systems(4))


def test_three_figures_in_three_formats(analysis: dict[str, Any], tmp_path: Path) -> None:
    made = figures(analysis, tmp_path / "new")
    assert sorted(file.name for file in made) == sorted(
        f"{n}.{e}" for n in ("heatmaps", "figures", "jumps") for e in STARTS
    )
    for file in made:
        assert file.read_bytes().startswith(STARTS[file.suffix[1:]])


def test_fonts_are_inside(analysis: dict[str, Any], tmp_path: Path) -> None:
    figures(analysis, tmp_path, ["pdf", "svg"])
    pdf = (tmp_path / "figures.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert "<text" not in (tmp_path / "figures.svg").read_text()


def test_the_same_analysis_gives_the_same_files(analysis: dict[str, Any], tmp_path: Path) -> None:
    for one, other in zip(figures(analysis, tmp_path / "a"), figures(analysis, tmp_path / "b"), strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_what_was_not_measured_is_left_out(analysis: dict[str, Any], tmp_path: Path) -> None:
    analysis["systems"][0]["figures"] = None
    analysis["systems"][1]["figures"]["edge share"] = {"value": 0.5, "low": None, "high": None, "null": None}
    for system in analysis["systems"]:
        system["positions"] = system["jumps"] = None
    assert [file.name for file in figures(analysis, tmp_path, ["png"])] == ["figures.png"]
    assert figures({"systems": None}, tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"figures in 'bmp' are not made \(known: pdf, svg, png\)"):
        figures({}, tmp_path, ["bmp"])


def test_without_matplotlib_the_user_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="anyorder\\[plots\\]"):
        figures({}, tmp_path)


def test_lightness_rises_evenly_for_every_eye() -> None:
    """The scale is read by lightness (CIE L*), which colour blindness leaves alone, in nearly equal steps."""

    def lightness(t: float) -> float:
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in scale(t)]
        return 116 * (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]) ** (1 / 3) - 16

    rises = [lightness((i + 1) / 10) - lightness(i / 10) for i in range(10)]
    assert min(rises) > 5
    assert max(rises) < 9
