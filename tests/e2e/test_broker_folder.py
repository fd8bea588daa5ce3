"""The folder of the embedded broker: its records are read through the broker, which checks ACLs."""

from pathlib import Path

import pytest

from embedded.broker import EmbeddedBroker

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "made before"])
def test_other_users_read_no_segment(tmp_path: Path, *, is_there: bool) -> None:
    folder = tmp_path / "data" / "broker"
    if is_there:
        folder.mkdir(parents=True)
        folder.chmod(0o755)
    with EmbeddedBroker(folder):
        kept = [*(folder / "log").rglob("*")]
        assert any(path.suffix == ".log" and path.stat().st_size for path in kept)
        assert [path for path in kept if path.stat().st_mode & 0o077] == []
    assert folder.stat().st_mode & 0o777 == (0o755 if is_there else 0o700)
