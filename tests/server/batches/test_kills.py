"""A batch of several servers, of which each kind of process is killed once; `make rehearse` kills ten."""

from pathlib import Path

from tests.rehearsal.batches import KILLS, answer_under_kills


def test_each_request_is_answered_once_whatever_is_killed(tmp_path: Path) -> None:
    found = answer_under_kills(tmp_path, num_requests=60, num_kills=len(KILLS))
    assert (found.status, found.num_failed) == ("BATCH_STATUS_COMPLETED", 0)
    assert sorted(found.custom_ids) == sorted(f"r{number}" for number in range(60))
    assert found.num_kills == dict.fromkeys(KILLS, 1)
