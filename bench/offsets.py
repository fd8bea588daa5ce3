"""The cost of a commit of one partition in a group with many: `python -m bench.offsets` prints a table.

The measurement covers the operator's part of a call, without Spark: decode the state, apply the commit,
encode the state.
"""

import statistics
import time
from collections.abc import Iterator
from functools import partial
from uuid import UUID

from checkpoints import codec
from records.layout import TopicLayout
from state.config import CoordinatorConfig
from state.kafka.group import Group
from state.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit
from state.timeline import Row, Timeline
from streaming.query.admission import Message
from streaming.query.log_order import LogRow
from streaming.query.output import Output

SIZES = (10, 1_000, 10_000)
PARTITIONS_PER_TOPIC = 50
CALLS = 50
GROUP = "g"
TOPIC_ID = UUID(int=1)
AT_MS = 1_700_000_000_000


def main() -> None:
    """Print the table."""
    print(f"{'partitions':>10} {'call ms':>8} {'state bytes':>12} {'bytes on topics':>16}")
    for size in SIZES:
        payload = _state_of(size)
        ms, on_topics = zip(*_calls(payload, size), strict=True)
        print(f"{size:>10} {statistics.median(ms):>8.2f} {len(payload):>12} {max(on_topics):>16}")


def _commit(partitions: dict[str, list[int]]) -> OffsetCommit:
    topics = [
        CommittedTopic(topic, [CommittedPartition(n, 1_000_000 + n) for n in numbers], TOPIC_ID)
        for topic, numbers in partitions.items()
    ]
    return OffsetCommit(group_id=GROUP, correlation_id="c", reply_partition=0, api_version=9, topics=topics)


def _state_of(size: int) -> bytes:
    """Return the stored state of a group with this many committed partitions."""
    topics: dict[str, list[int]] = {}
    for n in range(size):
        topics.setdefault(f"topic-{n // PARTITIONS_PER_TOPIC}", []).append(n % PARTITIONS_PER_TOPIC)
    timeline = Timeline(GROUP, None, CoordinatorConfig())
    timeline.apply(Row(AT_MS, "requests-0-0", _commit(topics)))
    assert timeline.group is not None
    return codec.write_row({GROUP: codec.encode_group(timeline.group, timeline.next_deadline_ms())})[1]


def _stored(payload: bytes) -> Group:
    entries = codec.read_row(GROUP, codec.STATE_VERSION, payload)
    group = codec.decode_group(GROUP, entries[GROUP])
    assert isinstance(group, Group)
    return group


def _calls(payload: bytes, size: int) -> Iterator[tuple[float, int]]:
    """Yield the milliseconds of each call, and how many bytes it writes to the topics."""
    layout = TopicLayout.named()
    for n in range(CALLS):
        partition = n * size // CALLS
        topic = f"topic-{partition // PARTITIONS_PER_TOPIC}"
        request = _commit({topic: [partition % PARTITIONS_PER_TOPIC]})
        began_s = time.perf_counter()
        timeline = Timeline(GROUP, _stored(payload), CoordinatorConfig(), restore=partial(_stored, payload))
        timeline.apply(Row(AT_MS + n, f"requests-0-{n + 1}", request))
        output = Output(layout)
        message = Message(LogRow(0, n + 1, AT_MS + n, GROUP.encode(), b""), None, b"", f"requests-0-{n + 1}")
        for effects in timeline.take_effects():
            output.effects(effects, GROUP.encode(), message)
        output.offsets(GROUP)
        assert timeline.group is not None
        codec.write_row({GROUP: codec.encode_group(timeline.group, timeline.next_deadline_ms())})
        (frame,) = output.frame()
        ms = (time.perf_counter() - began_s) * 1e3
        yield ms, sum(len(v or b"") for v in [*frame["value"], *frame["key"]])


if __name__ == "__main__":
    main()
