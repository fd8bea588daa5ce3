"""GetTelemetrySubscriptions (key 71) and PushTelemetry (key 72): clients push their own metrics (KIP-714).

Without `--client-telemetry` both pass to the brokers. The rules are those of
org.apache.kafka.server.ClientMetricsManager of Kafka 4.4. The metrics' receiver is the topic of
`gateway.telemetry.service`.
"""

import asyncio
from typing import Any
from uuid import uuid4

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api, may_read_group
from gateway.apis.context import RequestContext
from gateway.telemetry.otlp import ACCEPTED, CompressionType, PayloadError, read_metrics
from gateway.telemetry.service import MAX_BYTES, ClientTelemetry, Pusher, is_valid_id, kafka_uuid, record_of
from gateway.wire.codec import Fields, GatewayError
from kafka_why.contract.messages import ErrorCode

_COMPRESSION_TYPES = frozenset(CompressionType)


async def get_subscriptions(context: RequestContext, request: Any) -> Fields:
    """Return the subscription of this client, with a new id for the client if it has none."""
    telemetry = _telemetry(context)
    error = context.caches.pushes.accept_get(_now_s(), telemetry.interval_s)
    if error:
        return {"error_code": error}
    client_instance_id = request.client_instance_id or uuid4()
    return {
        "error_code": ErrorCode.NONE,
        "client_instance_id": client_instance_id,
        "subscription_id": telemetry.subscription.id_for(client_instance_id),
        "accepted_compression_types": list(ACCEPTED),
        "push_interval_ms": telemetry.subscription.interval_ms,
        "telemetry_max_bytes": MAX_BYTES,
        "delta_temporality": True,
        "requested_metrics": telemetry.subscription.requested_metrics,
    }


async def push(context: RequestContext, request: Any) -> Fields:
    """Accept the metrics that a client pushes."""
    if not is_valid_id(request.client_instance_id):
        return {"error_code": ErrorCode.INVALID_REQUEST}
    error = context.caches.pushes.accept_push(
        _now_s(), _telemetry(context).interval_s, is_terminating=request.terminating
    )
    return {"error_code": context.caches.pushes.answered(error or _process(context, request))}


def _process(context: RequestContext, request: Any) -> int:
    """Process the content of a push that is not too early. Return the push's error, or 0."""
    telemetry = _telemetry(context)
    if request.subscription_id != telemetry.subscription.id_for(request.client_instance_id):
        return GatewayError.UNKNOWN_SUBSCRIPTION_ID
    if request.compression_type not in _COMPRESSION_TYPES:
        return GatewayError.UNSUPPORTED_COMPRESSION_TYPE
    if len(request.metrics) > MAX_BYTES:
        return GatewayError.TELEMETRY_TOO_LARGE
    if not request.metrics:
        return ErrorCode.NONE
    pusher = Pusher(
        client_instance_id=kafka_uuid(request.client_instance_id),
        client_id=context.header.client_id or "",
        client_host=context.client_host,
        principal=context.principal,
        push_interval_ms=telemetry.subscription.interval_ms,
        terminating=request.terminating,
    )
    kind = CompressionType(request.compression_type)
    try:
        resources = read_metrics(telemetry.decompressor.decompress(request.metrics, kind))
    except PayloadError:
        return GatewayError.INVALID_RECORD
    record = record_of(resources, pusher)
    if record is not None and may_read_group(context, record.group_id):
        telemetry.evidence.write(record)
    return ErrorCode.NONE


def _telemetry(context: RequestContext) -> ClientTelemetry:
    telemetry = context.services.telemetry
    assert telemetry is not None, "without it the requests pass to the brokers"
    return telemetry


def _now_s() -> float:
    return asyncio.get_running_loop().time()


GET_API = Api(
    key=ApiKey.GetTelemetrySubscriptions,
    serve=get_subscriptions,
    asks_coordinator=False,
    is_passed=lambda services: services.telemetry is None,
)
PUSH_API = Api(
    key=ApiKey.PushTelemetry,
    serve=push,
    asks_coordinator=False,
    is_passed=lambda services: services.telemetry is None,
)
