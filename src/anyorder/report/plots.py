"""Figures for papers and talks, drawn from the JSON of an analysis. Knows matplotlib, which is an optional extra."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyorder.errors import InputError

MAIN = (
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
"""What the chart of figures shows, where the analysis has it."""
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
    "pdf.fonttype": 42,  # fonts inside, as letters
    "svg.fonttype": "path",  # letters as outlines: the same on every machine
    "svg.hashsalt": "anyorder",
}
_UNDATED: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


def figures(analysis: Mapping[str, Any], folder: Path, formats: Sequence[str] = ("pdf", "svg", "png")) -> list[Path]:
    """Writes `heatmaps`, `figures` and `jumps` in every format; returns the files. Leaves out what was not measured."""
    for name in formats:
        if name not in _UNDATED:
            raise InputError(f"figures in '{name}' are not made (known: {', '.join(_UNDATED)})")
    systems = [system for system in analysis.get("systems") or [] if system]
    made: list[Path] = []
    with _matplotlib():
        drawn = {"heatmaps": heat_maps(systems), "figures": dot_chart(systems), "jumps": jump_histogram(systems)}
        for name, figure in drawn.items():
            if figure is None:
                continue
            folder.mkdir(parents=True, exist_ok=True)
            for ending in formats:
                made.append(folder / f"{name}.{ending}")
                figure.savefig(made[-1], dpi=300, metadata=_UNDATED[ending])
    return made


def heat_maps(systems: Sequence[Mapping[str, Any]]) -> Any:
    """When (downwards) which part of the sentence (rightwards) is filled, one map a system, all on one scale."""
    from matplotlib.colors import ListedColormap, PowerNorm

    shown = [system for system in systems if (system.get("positions") or {}).get("share")]
    if not shown:
        return None
    most = max(max(map(max, system["positions"]["share"])) for system in shown)
    # From paper white to the dark end; the square root keeps both a strict order and a spread one visible.
    colours = ListedColormap([_towards_white(scale(1 - i / 255), 1 - min(1.0, i / 64)) for i in range(256)])
    figure, grid = _grid(len(shown), columns=3, width=2.1, height=2.15)
    image = None
    for axes, system in zip(grid, shown, strict=True):
        image = axes.imshow(
            system["positions"]["share"], cmap=colours, norm=PowerNorm(0.5, 0, most), extent=(0, 1, 1, 0),
            interpolation="nearest",
        )  # fmt: skip
        axes.set_title(system["name"])
        axes.set(xticks=(0, 0.5, 1), yticks=(0, 0.5, 1), xlabel="position", ylabel="step")
        axes.label_outer()
    bar = figure.colorbar(image, ax=list(grid), shrink=0.6, aspect=30, label="share of a step's fills")
    bar.outline.set_linewidth(0)
    return figure


def dot_chart(systems: Sequence[Mapping[str, Any]], names: Sequence[str] = MAIN) -> Any:
    """Figures with 95% intervals; the band and tick behind are random orders of the same lengths."""
    of = {
        name: [(system["name"], (system.get("figures") or {}).get(name) or {}) for system in systems] for name in names
    }
    shown = [name for name in names if any(_known(figure.get("value")) for _, figure in of[name])]
    if not shown:
        return None
    figure, grid = _grid(len(shown), columns=3, width=2.2, height=0.55 + 0.16 * len(systems))
    for axes, name in zip(grid, shown, strict=True):
        axes.set_title(name)
        axes.set_yticks(range(len(systems)), [system for system, _ in of[name]])
        axes.set_ylim(len(systems) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.label_outer(remove_inner_ticks=False)
        axes.tick_params(axis="x", labelbottom=True)
        axes.grid(axis="x", color=BAND, linewidth=0.5)
        axes.set_axisbelow(True)
        axes.spines["left"].set_visible(False)
        for row, (_, told) in enumerate(of[name]):
            if _known(told.get("null_low")) and _known(told.get("null_high")):
                axes.barh(row, told["null_high"] - told["null_low"], left=told["null_low"], height=0.7, color=BAND)
            if _known(told.get("null")):
                axes.plot([told["null"]] * 2, [row - 0.35, row + 0.35], color=NULL, linewidth=0.9)
            if _known(told.get("low")) and _known(told.get("high")):
                axes.plot([told["low"], told["high"]], [row, row], color=ACCENT, linewidth=1.6, solid_capstyle="round")
            if _known(told.get("value")):
                axes.plot(
                    told["value"], row, "o", color=ACCENT, markersize=4, markeredgecolor="white", markeredgewidth=0.5
                )
        if name.startswith(("kendall", "spearman")) or "correlation" in name:
            axes.set_xlim(-1.08, 1.08)
        else:
            left, right = axes.get_xlim()
            axes.set_xlim(min(left, -0.04 * right), right)  # a distance means something from nought on
    return figure


def jump_histogram(systems: Sequence[Mapping[str, Any]]) -> Any:
    """How far, and to which side, from each position to the one filled next."""
    shown = [system for system in systems if system.get("jumps")]
    if not shown:
        return None
    figure, grid = _grid(len(shown), columns=3, width=2.1, height=1.4)
    for axes, system in zip(grid, shown, strict=True):
        jumps = sorted((int(jump), share or 0.0) for jump, share in system["jumps"].items())
        edge = max(abs(jump) for jump, _ in jumps) or 1
        axes.bar([jump for jump, _ in jumps], [100 * share for _, share in jumps], width=0.78, color=ACCENT)
        axes.set_title(system["name"])
        axes.set_xticks((-edge, 0, edge), (f"≤ −{edge}", "0", f"≥ {edge}"))
        axes.set(xlabel="jump", ylabel="% of moves")
    return figure


def scale(t: float) -> tuple[float, float, float]:
    """The page's sequential colours (`page/colour.js`): even lightness through OKLCH, dark indigo to pale yellow.

    >>> [round(255 * x) for x in scale(0)]
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


def _towards_white(colour: tuple[float, float, float], part: float) -> tuple[float, float, float]:
    red, green, blue = (x + (1 - x) * part for x in colour)
    return red, green, blue


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _grid(count: int, columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure with `count` panels, row by row; sizes in inches."""
    from matplotlib.figure import Figure

    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, i + 1) for i in range(count)]


@contextmanager
def _matplotlib() -> Iterator[None]:
    """The style of these figures, for as long as they are drawn."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise InputError("figures need matplotlib: pip install 'anyorder[plots]'") from None
    with rc_context(_STYLE):
        yield
