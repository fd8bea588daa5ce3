"""What `adopt --execute` shows when a coordinator fails in the middle of it."""

import json
from collections.abc import Iterable, Mapping

import pytest
from click.testing import CliRunner

import cli.adopt
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.protocols.subscriptions import TopicPartition
from operations.adopt.groups_at import AdoptError, CommittedPosition, FoundGroup

HERE, THERE = "here:9092", "there:9092"
Offsets = Mapping[TopicPartition, CommittedPosition]


class GroupsInMemory:
    """Two coordinators, by their addresses. That of --to loses its connection at the commit for `b`."""

    groups: dict[str, dict[str, Offsets]]

    def __init__(self, client_config: ClientConfig, timeout_s: float) -> None:
        self._groups = self.groups[client_config.bootstrap_servers]

    def cluster_id(self) -> str:
        return "one"

    def ids(self) -> list[str]:
        return sorted(self._groups)

    def read(self, group_ids: Iterable[str]) -> dict[str, FoundGroup]:
        return {
            name: FoundGroup(name, "classic", "Empty", 0, self._groups[name])
            for name in group_ids
            if name in self._groups
        }

    def commit(self, group_id: str, offsets: Offsets) -> dict[TopicPartition, str]:
        if group_id == "b":
            raise AdoptError(f"{THERE}: the connection is lost")
        self._groups[group_id] = offsets
        return {}


def test_adopt_error_refuses_one_group_and_reports_the_moved_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    at: Offsets = {TopicPartition("orders", 0): CommittedPosition(5, None, "")}
    monkeypatch.setattr(GroupsInMemory, "groups", {HERE: dict.fromkeys("abc", at), THERE: {}}, raising=False)
    monkeypatch.setattr(cli.adopt, "GroupAdmin", GroupsInMemory)
    result = CliRunner().invoke(
        cli.adopt.adopt, ["--from", HERE, "--to", THERE, "--execute", "--output", "json"]
    )
    assert result.exit_code == 1
    assert [(row["group"], row["outcome"], row["reason"]) for row in json.loads(result.stdout)] == [
        ("a", "moved", ""),
        ("b", "refused", f"{THERE}: the connection is lost: check it, and start again"),
        ("c", "moved", ""),
    ]
