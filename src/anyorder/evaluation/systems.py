"""Systems to compare: several sets of trajectories of the same sentences, by name, and what they have in common.

Knows nothing about scores or models.
"""

from collections.abc import Iterable, Mapping, Sequence

from anyorder.decoding.signature import Signature
from anyorder.decoding.trajectory import INFILL, Trajectory
from anyorder.errors import InputError
from anyorder.tasks import TASKS, PuzzleTask, make_puzzle

Systems = Mapping[str, Sequence[Trajectory]]
UNKNOWN = "unknown"


def name_systems(systems: Systems | Sequence[Trajectory]) -> Systems:
    """The systems by name; trajectories alone are one system, named after their order."""
    if isinstance(systems, Mapping):
        return systems
    return {common_order(systems) or "system": systems}


def common_order(trajectories: Iterable[Trajectory]) -> str:
    """The name of the order; several names if there are several, empty if none is recorded."""
    return ", ".join(dict.fromkeys(trajectory.order for trajectory in trajectories if trajectory.order))


def common_setting(trajectories: Iterable[Trajectory], key: str) -> str:
    """A setting of the signatures, such as `schedule`; several values if there are several, empty if none is known."""
    signatures = dict.fromkeys(trajectory.signature for trajectory in trajectories)
    return ", ".join(dict.fromkeys(filter(None, (_parse(signature).get(key) for signature in signatures))))


def common_task(systems: Systems) -> str:
    """The task, such as a direction; several if there are several, empty if none is recorded."""
    tasks = (trajectory.task for trajectories in systems.values() for trajectory in trajectories if trajectory.task)
    return ", ".join(dict.fromkeys(tasks))


def puzzle_task(systems: Systems) -> PuzzleTask | None:
    """The puzzle task that the trajectories solve; None if they do something else, or solve several tasks.

    Among them there may be lines that are not puzzles and were filled as text, and trajectories without a task.
    """
    names = {trajectory.task for trajectories in systems.values() for trajectory in trajectories} - {INFILL, ""}
    [name] = names if len(names) == 1 else [""]
    return make_puzzle(name) if name in TASKS and issubclass(TASKS[name], PuzzleTask) else None


def only_puzzles(
    systems: Systems, task: PuzzleTask, references: Sequence[str] | None = None
) -> tuple[Systems, Sequence[str] | None]:
    """The lines that at least one system solves as a puzzle of this task, and their references."""
    rows = zip(*systems.values(), strict=True)
    lines = [i for i, row in enumerate(rows) if any(trajectory.task == task.name for trajectory in row)]
    kept = {name: [trajectories[i] for i in lines] for name, trajectories in systems.items()}
    return kept, None if references is None else [references[i] for i in lines]


def common_signature(systems: Systems) -> Signature:
    """The settings that the trajectories were decoded with.

    `order` is `*`, because each system has its own, followed by what identifies a learned order. A setting that
    differs between trajectories lists its values; `unknown` is one of them if a trajectory records none.
    """
    recorded: dict[str, Signature] = {}
    orders: dict[str, None] = {}
    for trajectories in systems.values():
        for trajectory in trajectories:
            if trajectory.signature not in recorded:
                recorded[trajectory.signature] = _parse(trajectory.signature)
            identity = recorded[trajectory.signature].get("order", trajectory.order)
            if identity != trajectory.order:
                orders[identity] = None
    keys = dict.fromkeys(key for signature in recorded.values() for key in signature)
    settings: dict[str, str] = {}
    for key in keys:
        values = dict.fromkeys(signature.get(key, UNKNOWN) for signature in recorded.values())
        settings[key] = ",".join(["*", *orders] if key == "order" else values)
    return Signature(settings)


def _parse(text: str) -> Signature:
    """The signature; empty if a file from elsewhere has text in another format."""
    try:
        return Signature.parse(text)
    except InputError:
        return Signature()
