"""What was counted of share groups' records, as numbers. Groups and members are no labels, because clients
name them.
"""

from gateway.deliveries.service import Deliveries
from gateway.metrics.numbers import Numbers, Values

_ACK_TYPES = {"Accept": "accepted", "Release": "released", "Reject": "rejected", "Renew": "renewed"}
"""The labels are those of Kafka's RecordAcknowledgementsPerSec (kafka.server:type=ShareGroupMetrics)."""
_COUNTERS = {
    "share_records_delivered": "delivered",
    "share_records_redelivered": "redelivered",
    "share_records_at_delivery_limit": "last",
    "share_records_expired": "expired",
    "share_records_released_by_end": "ended",
    "share_records_not_followed": "unfollowed",
    "share_acknowledgements_late": "late",
}


def delivered(deliveries: Deliveries | None) -> Numbers:
    """The numbers, all of them from the start."""
    if deliveries is None:
        return {}
    totals = deliveries.totals
    counted = totals.counted
    acknowledged: Values = {(label,): [float(getattr(counted, name))] for label, name in _ACK_TYPES.items()}
    return {
        "share_record_acknowledgements": acknowledged,
        **{metric: {(): [float(getattr(counted, name))]} for metric, name in _COUNTERS.items()},
        "share_acknowledgements_refused": {(): [float(totals.refused)]},
        "share_records_suspected": {(): [float(totals.suspected)]},
        "share_sessions": {(): [float(deliveries.sessions)]},
    }
