"""Ends transactions with pending offsets by hand."""

from collections.abc import Sequence
from concurrent.futures import Future

from clients.coordinator_client import CoordinatorClient
from clients.pending import CoordinatorError
from kafka_why.contract.codec import PendingTransaction
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import TransactionMarker
from kafka_why.contract.kafka.responses import TransactionMarkerResponse


def abort_pending(client: CoordinatorClient, pending: Sequence[PendingTransaction]) -> list[ErrorCode]:
    """Drop these pending offsets, as an ABORT marker of their own transaction would do. Returns the
    coordinator's answer for each.
    """
    sent = [client.send(_marker(client, one)) for one in pending]
    return [_code(future) for future in sent]


def _marker(client: CoordinatorClient, pending: PendingTransaction) -> TransactionMarker:
    """The marker that would end this transaction by an abort, at its own position."""
    own_epoch = pending.producer_epoch + 1 if pending.txn_version > 1 else pending.producer_epoch
    return TransactionMarker(
        **client.header(pending.group_id),
        waits_for_views=True,
        producer_id=pending.producer_id,
        producer_epoch=own_epoch,
        txn_partition=pending.txn_partition,
        txn_position=pending.txn_position,
        txn_topic_id=pending.txn_topic_id,
        first_position=pending.txn_position,
        committed=False,
    )


def _code(future: Future[TransactionMarkerResponse]) -> ErrorCode:
    try:
        return future.result().error_code
    except CoordinatorError as error:
        return error.error_code
