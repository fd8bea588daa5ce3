"""Which records show that clients are back after an outage. tests/faults/test_outage.py has the log."""

import pytest

from kafka_why.contract.codec import encode, pack
from kafka_why.contract.kafka.requests import AnyRequest, TopicMetadata
from streaming.service.outages.outage import is_of_the_service, is_topic_metadata
from tests.spark.log import marker, txn_commit


@pytest.mark.parametrize(
    ("request_", "of_the_service", "of_the_watcher"),
    [
        (TopicMetadata(group_id="g", topics={"t": None}), True, True),
        (marker("g"), True, False),
        (txn_commit("g", 5), False, False),
    ],
    ids=["watcher of topics", "follower of transactions", "client"],
)
def test_requests_of_the_service_do_not_count_as_clients(
    request_: AnyRequest, of_the_service: bool, of_the_watcher: bool
) -> None:
    """A TransactionMarker that no batch has handled counts as an unread request, so that it is not lost."""
    assert is_of_the_service(encode(request_)) is of_the_service
    assert is_topic_metadata(encode(request_)) is of_the_watcher


@pytest.mark.parametrize("value", [None, b"", b"{", pack([encode(marker("g"))])], ids=repr)
def test_packs_and_unreadable_records_count_as_gateway_traffic(value: bytes | None) -> None:
    assert not is_of_the_service(value)
