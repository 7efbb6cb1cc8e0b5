"""What takes minutes is announced once."""

import pytest

from anyorder.cli import common
from anyorder.cli.common import SlowNote


@pytest.mark.parametrize(("seconds", "note"), [(1.0, "about 2 minutes"), (0.1, ""), (60.0, "about 100 minutes")])
def test_the_time_of_a_slow_verb(
    seconds: float, note: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(common.time, "monotonic", lambda: now)
    slow = SlowNote("evaluate", "decoding 100 lines", 100)
    for _ in range(100):
        now += seconds
        slow(1)
    error = capsys.readouterr().err
    assert error == (f"anyorder evaluate: decoding 100 lines takes {note}\n" if note else "")
