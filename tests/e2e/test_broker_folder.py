"""The folder of the embedded broker: its records are read through the broker, which checks ACLs."""

from pathlib import Path

import pytest

from embedded.broker import EmbeddedBroker

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


def test_broker_segments_are_unreadable_to_other_users(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    folder.chmod(0o755)
    with EmbeddedBroker(folder):
        kept = [*(folder / "log").rglob("*")]
        assert any(path.suffix == ".log" and path.stat().st_size for path in kept)
        assert [path for path in kept if path.stat().st_mode & 0o077] == []
    assert folder.stat().st_mode & 0o777 == 0o755
