"""What it costs the gateway to read a request, and what it would cost to write it again: docs/decisions/0028.

python -m bench.reading
"""

from collections.abc import Iterator, Mapping
from time import process_time
from timeit import Timer
from typing import Any
from uuid import UUID

from kafka.protocol.api_key import ApiKey

from gateway.wire import codec
from gateway.wire.framing import request_header

_REPEATS = 7
_TOPIC = UUID(int=5)

Request = tuple[str, int, int, Mapping[str, Any]]


def _fetch(label: str, topics: int, partitions: int) -> Request:
    wanted = [{"partition": p, "fetch_offset": 5, "partition_max_bytes": 1 << 20} for p in range(partitions)]
    limits = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 50_000_000, "session_epoch": -1}
    return label, ApiKey.Fetch, 17, limits | {"topics": [{"topic_id": _TOPIC, "partitions": wanted}] * topics}


def _produce(label: str, partitions: int, record_bytes: int) -> Request:
    data = [{"index": p, "records": bytes(record_bytes)} for p in range(partitions)]
    topics = [{"name": "orders", "partition_data": data}]
    return label, ApiKey.Produce, 12, {"acks": -1, "timeout_ms": 1, "topic_data": topics}


def _commit(label: str, partitions: int) -> Request:
    committed = [{"partition_index": p, "committed_offset": 7} for p in range(partitions)]
    fields = {"group_id": "group", "generation_id_or_member_epoch": 1, "member_id": "m" * 40}
    return label, ApiKey.OffsetCommit, 9, fields | {"topics": [{"name": "orders", "partitions": committed}]}


def requests() -> Iterator[Request]:
    """The requests that are measured."""
    yield _fetch("Fetch of a session", 0, 0)
    yield _fetch("Fetch, 1 topic of 1 partition", 1, 1)
    yield _fetch("Fetch, 10 topics of 10 partitions", 10, 10)
    yield _produce("Produce, 1 kB to 1 partition", 1, 1_000)
    yield _produce("Produce, 1 MB to 1 partition", 1, 1_000_000)
    yield _produce("Produce, 100 B to each of 100 partitions", 100, 100)
    yield _commit("OffsetCommit, 4 partitions", 4)
    yield _commit("OffsetCommit, 100 partitions", 100)


def _us(timer: Timer) -> float:
    """Microseconds of processor time of one run, the least of some repeats."""
    number, taken_s = timer.autorange()
    return min(taken_s, *timer.repeat(_REPEATS, number)) / number * 1e6


def main() -> None:
    """Print a row for each request, in microseconds."""
    print("| request | kafka-python's decoder, unchecked | strict reader | encoding |\n|---|---|---|---|")
    for label, key, version, body in requests():
        message = codec.encode_request(key, version, 1, "me", body)
        header = request_header(message)
        request = codec.decode_passed(header, message)
        view, kind = memoryview(message)[header.client_id_end + 1 :], codec.REQUESTS[key]
        timers = (
            Timer(lambda: kind.decode(view, version=version), timer=process_time),  # noqa: B023 - it runs here
            Timer(lambda: codec.decode_passed(header, message), timer=process_time),  # noqa: B023
            Timer(lambda: codec.with_body(header, message, request), timer=process_time),  # noqa: B023
        )
        print(f"| {label} | {' | '.join(f'{_us(timer):.1f}' for timer in timers)} |")


if __name__ == "__main__":
    main()
