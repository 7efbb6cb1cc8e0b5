"""Figures for papers and talks, from an analysis or its JSON. Needs matplotlib, which is an optional extra.

    plot_heat_maps(anyorder.analyze(systems), "heat.png")

Measures nothing itself.
"""

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

from anyorder.analysis.results import Analysis
from anyorder.errors import InputError
from anyorder.files import added_files

MAIN_METRICS = (
    "kendall left-to-right",
    "kendall outer-in",
    "edge share",
    "adjacent share",
    "mean jump",
    "local ar-ness@1",
    "global ar-ness@1",
    "order entropy",
    "diversity",
    "suffix last share",
    "constituent share",
    "repetition rate",
    "frequency correlation",
)
"""The metrics in the chart, if the analysis has them."""
INK, ACCENT, BAND, NULL = "#1d1e22", "#3d4fb8", "#dcdcd6", "#85878d"
_STYLE = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.linewidth": 0.6,
    "axes.edgecolor": NULL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": NULL,
    "ytick.color": NULL,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # embeds fonts as text
    "svg.fonttype": "path",  # outlines, which look the same on every machine
    "svg.hashsalt": "anyorder",
}
_NO_DATE: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
"""Metadata by format: without a date, the same analysis gives the same file."""
_Records = Sequence[Mapping[str, Any]]
"""Those of an analysis, as in its JSON."""


def plot_heat_maps(analysis: Analysis | Mapping[str, Any], file: str | Path | None = None) -> Any:
    """Heat maps: at which time (downward) which part of the sentence (rightward) is filled, one map per system.

    Args:
        analysis: What `anyorder.analyze` returned, or the content of the file that `anyorder analyze --json` wrote.
        file: Also save the figure there, as .pdf, .svg or .png.

    Returns:
        A matplotlib figure.
    """
    return _plot(_draw_heat_maps, analysis, file)


def plot_metrics(analysis: Analysis | Mapping[str, Any], file: str | Path | None = None) -> Any:
    """The main metrics with 95% intervals, in front of what random orders of the same lengths give.

    For arguments and result see `plot_heat_maps`.
    """
    return _plot(_draw_metrics, analysis, file)


def plot_jumps(analysis: Analysis | Mapping[str, Any], file: str | Path | None = None) -> Any:
    """Histograms of the jumps from each filled position to the next one, one per system.

    For arguments and result see `plot_heat_maps`.
    """
    return _plot(_draw_jumps, analysis, file)


def plot_all(
    analysis: Analysis | Mapping[str, Any], folder: str | Path, formats: Sequence[str] = ("pdf", "svg", "png")
) -> list[Path]:
    """Save all figures in every format: `heatmaps`, `figures` (the metrics) and `jumps`.

    Leaves out what was not measured, and returns the files.
    """
    for name in formats:
        _check_format(name)
    names: list[str] = []
    with _style(), added_files(Path(folder)) as partial:
        drawings = {"heatmaps": _draw_heat_maps, "figures": _draw_metrics, "jumps": _draw_jumps}
        for name, draw in drawings.items():
            figure = draw(_systems(analysis))
            if figure is None:
                continue
            for ending in formats:
                names.append(f"{name}.{ending}")
                _save(figure, partial / names[-1])
    return [Path(folder) / name for name in names]


def _plot(draw: Callable[[_Records], Any], analysis: Analysis | Mapping[str, Any], file: str | Path | None) -> Any:
    if file is not None:
        _check_format(Path(file).suffix.removeprefix("."))
    with _style():
        figure = draw(_systems(analysis))
        if figure is None:
            raise InputError("the analysis does not hold what this figure shows")
        if file is not None:
            with added_files(Path(file).parent) as partial:
                _save(figure, partial / Path(file).name)
    return figure


def _systems(analysis: Analysis | Mapping[str, Any]) -> _Records:
    record = analysis.as_json() if isinstance(analysis, Analysis) else analysis
    return [system for system in record.get("systems") or [] if system]


def _check_format(name: str) -> None:
    if name not in _NO_DATE:
        raise InputError(f"unknown figure format '{name}' (known: {', '.join(_NO_DATE)})")


def _save(figure: Any, file: Path) -> None:
    """Draw in memory first: matplotlib's own clean-up fails on a full disk."""
    ending = file.suffix.removeprefix(".")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=ending, dpi=300, metadata=_NO_DATE[ending])
    file.write_bytes(drawn.getvalue())


def _draw_heat_maps(systems: _Records) -> Any:
    """One map per system, all on the same scale."""
    from matplotlib.colors import ListedColormap, PowerNorm

    shown = [system for system in systems if (system.get("positions") or {}).get("share")]
    if not shown:
        return None
    largest = max(max(map(max, system["positions"]["share"])) for system in shown)
    # From white to the dark end; the square root keeps both strict and loose orders visible.
    colors = ListedColormap([_toward_white(color_scale(1 - i / 255), 1 - min(1.0, i / 64)) for i in range(256)])
    figure, grid = _grid(len(shown), width=2.1, height=2.15)
    image = None
    for axes, system in zip(grid, shown, strict=True):
        image = axes.imshow(
            system["positions"]["share"], cmap=colors, norm=PowerNorm(0.5, 0, largest), extent=(0, 1, 1, 0),
            interpolation="nearest",
        )  # fmt: skip
        axes.set_title(system["name"])
        axes.set(xticks=(0, 0.5, 1), yticks=(0, 0.5, 1), xlabel="position", ylabel="step")
        axes.label_outer()
    bar = figure.colorbar(image, ax=list(grid), shrink=0.6, aspect=30, label="share of a step's fills")
    bar.outline.set_linewidth(0)
    return figure


def _draw_metrics(systems: _Records) -> Any:
    """Dots with 95% intervals; the band and the tick behind them are random orders of the same lengths."""
    by_name = {
        name: [(system["name"], (system.get("figures") or {}).get(name) or {}) for system in systems]
        for name in MAIN_METRICS
    }
    shown = [name for name in MAIN_METRICS if any(_is_known(metric.get("value")) for _, metric in by_name[name])]
    if not shown:
        return None
    figure, grid = _grid(len(shown), width=2.2, height=0.55 + 0.16 * len(systems))
    for axes, name in zip(grid, shown, strict=True):
        axes.set_title(name)
        axes.set_yticks(range(len(systems)), [system for system, _ in by_name[name]])
        axes.set_ylim(len(systems) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.label_outer(remove_inner_ticks=False)
        axes.tick_params(axis="x", labelbottom=True)
        axes.grid(axis="x", color=BAND, linewidth=0.5)
        axes.set_axisbelow(True)
        axes.spines["left"].set_visible(False)
        for row, (_, metric) in enumerate(by_name[name]):
            low, high, null_low, null_high = (metric.get(key) for key in ("low", "high", "null_low", "null_high"))
            if _is_known(null_low) and _is_known(null_high):
                axes.barh(row, null_high - null_low, left=null_low, height=0.7, color=BAND)
            if _is_known(metric.get("null")):
                axes.plot([metric["null"]] * 2, [row - 0.35, row + 0.35], color=NULL, linewidth=0.9)
            if _is_known(low) and _is_known(high):
                axes.plot([low, high], [row, row], color=ACCENT, linewidth=1.6, solid_capstyle="round")
            if _is_known(metric.get("value")):
                axes.plot(
                    metric["value"], row, "o", color=ACCENT, markersize=4, markeredgecolor="white", markeredgewidth=0.5
                )
        if name.startswith(("kendall", "spearman")) or "correlation" in name:
            axes.set_xlim(-1.08, 1.08)
        else:
            left, right = axes.get_xlim()
            axes.set_xlim(min(left, -0.04 * right), right)  # shares and distances start at zero
    return figure


def _draw_jumps(systems: _Records) -> Any:
    """One histogram per system."""
    shown = [system for system in systems if system.get("jumps")]
    if not shown:
        return None
    figure, grid = _grid(len(shown), width=2.1, height=1.4)
    for axes, system in zip(grid, shown, strict=True):
        jumps = sorted((int(jump), share or 0.0) for jump, share in system["jumps"].items())
        edge = max(abs(jump) for jump, _ in jumps) or 1
        axes.bar([jump for jump, _ in jumps], [100 * share for _, share in jumps], width=0.78, color=ACCENT)
        axes.set_title(system["name"])
        axes.set_xticks((-edge, 0, edge), (f"≤ −{edge}", "0", f"≥ {edge}"))
        axes.set(xlabel="jump", ylabel="% of moves")
    return figure


def color_scale(t: float) -> tuple[float, float, float]:
    """The sequential colors of the web page: even lightness through OKLCH, from dark indigo (0) to pale yellow (1).

    >>> [round(255 * x) for x in color_scale(0)]
    [58, 37, 117]
    """
    lightness, chroma, hue = 0.34 + 0.6 * t, 0.094 + 0.036 * (2 * t - 1) ** 2, math.radians(290 - 185 * t)
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3
    return (
        _gamma(4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short),
        _gamma(-1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short),
        _gamma(-0.0041960863 * long - 0.7034186147 * medium + 1.707614701 * short),
    )


def _gamma(linear: float) -> float:
    linear = min(1.0, max(0.0, linear))
    return 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055


def _toward_white(color: tuple[float, float, float], share: float) -> tuple[float, float, float]:
    red, green, blue = (x + (1 - x) * share for x in color)
    return red, green, blue


def _is_known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _grid(count: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure with `count` panels, row by row; sizes in inches."""
    from matplotlib.figure import Figure

    columns = min(3, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, i + 1) for i in range(count)]


@contextmanager
def _style() -> Iterator[None]:
    """The style of these figures, while they are drawn."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise InputError("figures need matplotlib: pip install 'anyorder[plots]'") from None
    with rc_context(_STYLE):
        yield
