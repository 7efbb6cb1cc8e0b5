"""A short run of the campaign that sends odd requests."""

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the explorer needs the extra 'app'")
pytest.importorskip("uvicorn", reason="the explorer needs the extra 'app'")

from campaigns.fuzz_explorer import KINDS, campaign, make_case


def test_odd_requests_get_proper_answers(folder: Path, masked_folder: Path) -> None:
    statuses, failures = campaign([folder, masked_folder], seed=0, numbers=range(200))
    assert failures == []
    assert {"200", "400", "413", "422"} <= set(statuses)


def test_cases_follow_from_seed_and_number() -> None:
    cases = [make_case(3, number) for number in range(50)]
    assert cases == [make_case(3, number) for number in range(50)]
    assert {case.kind for case in cases} == set(KINDS)


def test_the_campaign_sees_an_internal_error(
    folder: Path, masked_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyorder.app.served_model.ServedModel.decode", lambda *_: 1 / 0)
    _, failures = campaign([folder, masked_folder], seed=0, numbers=range(20))
    assert failures
    assert all(line.startswith("python campaigns/fuzz_explorer.py --seed 0 --only ") for line in failures)
    assert "status 500" in failures[0]
