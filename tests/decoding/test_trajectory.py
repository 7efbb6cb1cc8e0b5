import pytest

from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.report.terminal import runs, trace
from tests.analysis.paper import TEARGAS


def teargas() -> Trajectory:
    """The paper's first example, steps read off its table."""
    tokens, steps = TEARGAS
    return Trajectory("...", " ".join(tokens), tokens, steps, [-0.1] * 20, "learned", 20, "s")


@pytest.mark.parametrize(
    ("step", "printed"),
    [
        (4, "[There are no reports]" + " __" * 16),
        (6, "[There are no reports]" + " __" * 14 + " {gas .}"),
        (8, "[There are no reports] of" + " __" * 12 + " tear {gas .}"),
        (17, "[There are no reports] of [any injuries] {, but} some __ __ __ {after the use of} tear {gas .}"),
        (
            20,
            "[There are no reports] of [any injuries] {, but} some [people are crying] {after the use of} tear {gas .}",
        ),
    ],
)
def test_the_papers_example_is_printed_as_in_the_paper(step: int, printed: str) -> None:
    assert trace(teargas())[step - 1].split(maxsplit=1) == [str(step), printed]


def test_runs() -> None:
    assert runs([]) == []
    assert runs([1]) == []
    assert runs([1, 2, 3]) == [(0, 2, 1)]
    assert runs([3, 1, 2]) == [(1, 2, 1)]
    assert runs([2, 1, 3, 4]) == [(0, 1, -1), (2, 3, 1)]
    assert runs([1, 1, 2, 2]) == [(1, 2, 1)]


def test_json_there_and_back() -> None:
    assert Trajectory.from_json(teargas().to_json()) == teargas()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "not JSON"),
        ("[]", "expected an object with tokens and steps"),
        ("{}", "tokens is missing"),
        ('{"source": 1}', "tokens is missing"),
        (teargas().to_json().replace("[1, ", "["), "20 tokens but 19 steps"),
    ],
)
def test_not_a_trajectory(line: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Trajectory.from_json(line)


def test_permutation() -> None:
    assert teargas().permutation[:6] == [0, 1, 2, 3, 19, 18]


def test_signature() -> None:
    made = DecodingConfig.of("margin", "one", "gold", 3).signature
    assert made.startswith("order:margin|budget:one|beam:1|length:gold|seed:3|version:anyorder.")
