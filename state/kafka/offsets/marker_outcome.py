"""Whether a marker ends the transaction of a pending offset. Rows TO10, TO11.

The core and the follower of the markers decide by this function alone, so they cannot disagree.
"""

from kafka_why.contract.kafka.transactions import MarkerOutcome


def outcome_of(txn_version: int, producer_epoch: int, marker_epoch: int, committed: bool) -> MarkerOutcome:
    """What a marker means for pending offsets at or below its position.

    `txn_version` and `producer_epoch` are those of the TxnOffsetCommit. In version 2 the end of a transaction
    raises the epoch by one, and the marker has the raised epoch. In version 1 the marker of a client's
    EndTxn has the producer's epoch, and a marker of a higher epoch was written by the transaction coordinator
    itself: the producer was fenced, or the transaction took too long.
    """
    own_epoch = producer_epoch + 1 if txn_version > 1 else producer_epoch
    if marker_epoch < own_epoch:
        return MarkerOutcome.IGNORED
    if marker_epoch > own_epoch:
        return MarkerOutcome.DROPPED
    return MarkerOutcome.COMMIT if committed else MarkerOutcome.ABORT
