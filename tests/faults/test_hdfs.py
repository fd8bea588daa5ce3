"""A checkpoint on HDFS, with a real name node and data node. Another machine continues from it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoints.files import FolderError
from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from state.errors import ErrorCode
from streaming.service.coordinator import Coordinator
from streaming.service.options import Options
from streaming.service.topics import prepare_topics
from tests.e2e.harness import coordinating, new_layout, stable_member
from tests.harness.hdfs import Hdfs

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with Hdfs(tmp_path_factory.mktemp("hdfs")) as running:
        yield running


def test_another_machine_goes_on_with_the_state(hdfs: Hdfs, broker: EmbeddedBroker, tmp_path: Path) -> None:
    options = Options(
        broker.client_config,
        tmp_path / "one",
        new_layout(),
        {"group.initial.rebalance.delay.ms": "0"},
        checkpoint=f"{hdfs.uri}/coordinator",
        first_request_wait_s=1.0,
    )
    prepare_topics(options.client_config, options.layout)
    with CoordinatorClient(options.client_config, options.layout, client_id="test") as client:
        with coordinating(options):
            member = stable_member(client, "kept")
        assert not (options.folder / "spark").exists()
        with coordinating(replace(options, folder=tmp_path / "two")):
            assert member.heartbeat(1) is ErrorCode.NONE


def test_a_place_that_does_not_answer_is_named(broker: EmbeddedBroker, tmp_path: Path) -> None:
    options = Options(broker.client_config, tmp_path, new_layout(), checkpoint="hdfs://127.0.0.1:1/there")
    refused = r"hdfs://127\.0\.0\.1:1/there.* cannot be written: .*Connection refused"
    with pytest.raises(FolderError, match=refused):
        Coordinator(options).start()
