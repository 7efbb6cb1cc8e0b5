"""`anyorder distill`: training text made by an autoregressive baseline."""

from pathlib import Path

from anyorder import progress
from anyorder.cli.common import connected
from anyorder.device import Device
from anyorder.progress import Screen
from anyorder.reproduce.distillation import distill as distill_store


def distill(
    data: Path,
    baseline: Path,
    out: Path,
    pairs: int | None = None,
    minutes: float | None = None,
    beam: int = 1,
    seed: int = 1,
    device: Device = "auto",
    cluster: str | None = None,
) -> None:
    """Translate the training text of a store with an autoregressive baseline.

    Every pair becomes two, one for each direction, with the real text as source and the baseline's translation as
    target. The corpus 'news' becomes 'news-into-de' and 'news-into-en'; 'anyorder train' learns each of them in its
    direction only.

    Args:
        data: A store of two languages made by 'anyorder prepare'.
        baseline: The folder of a model that 'anyorder reproduce --baseline' trained.
        out: The store to write; it must not exist.
        pairs: How many training pairs to translate, drawn at random; by default all. The others stay as they are.
        minutes: Begin no more pairs after this time.
        beam: Beam size; 1 is greedy.
        seed: Seed for drawing pairs.
        device: Device to run on.
        cluster: Work on a Ray cluster: auto (the one this machine belongs to, or else all of its cores or GPUs), or
            HOST:PORT. The store is the same; see docs/cluster.md.
    """
    if cluster is not None:
        out.parent.mkdir(parents=True, exist_ok=True)  # what is done is kept there
    with connected(cluster, out) as machines, progress.bar("translating", unit="sentences") as bar:
        result = distill_store(
            data,
            baseline,
            out,
            pairs=pairs,
            minutes=minutes,
            beam=beam,
            seed=seed,
            device=device,
            on_progress=bar.advance,
            cluster=machines,
        )
    screen = Screen()
    screen.print_text(f"{result.pairs:,} pairs were translated in both directions.")
    for language, kept in result.kept.items():
        if kept:
            screen.print_text(f"{kept:,} of the translations into {language} were empty or endless and not used.")
    screen.print_text(f"wrote {out}")
