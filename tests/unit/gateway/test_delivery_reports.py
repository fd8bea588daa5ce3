"""Deliveries of share groups that a gateway counts on its connections, writes, and exports as metrics."""

from kafka.protocol.api_key import ApiKey

from gateway.deliveries.service import DeliveryReports
from gateway.wire import codec
from tests.harness.gateway import GatewayFixture, RawClient, played, topic_id
from tests.harness.share_frames import ACKNOWLEDGE, FETCH, fetched, finds_share_groups
from tests.harness.waiting import until
from tests.unit.gateway.test_gateway_numbers import value

LEADER = {"leader_id": 1, "leader_epoch": 1}


def response(*acquired: tuple[int, int, int], records: bytes = b"r", topic: str = "orders") -> codec.Fields:
    ranges = [{"first_offset": f, "last_offset": t, "delivery_count": n} for f, t, n in acquired]
    partition = {
        "partition_index": 2,
        "current_leader": LEADER,
        "records": records,
        "acquired_records": ranges,
    }
    return {
        "acquisition_lock_timeout_ms": 30_000,
        "responses": [{"topic_id": topic_id(topic), "partitions": [partition]}],
    }


async def acknowledge(world: GatewayFixture, client: RawClient, first: int, last: int, *types: int) -> None:
    partition = {"partition_index": 2, "current_leader": LEADER}
    topic = {"topic_id": topic_id("orders"), "partitions": [partition]}
    world.broker.answers[ACKNOWLEDGE] = {"acquisition_lock_timeout_ms": 30_000, "responses": [topic]}
    batch = {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}
    told = fetched("orders", epoch=1)
    told["topics"][0]["partitions"] = [{"partition_index": 2, "acknowledgement_batches": [batch]}]
    await client.ask(ACKNOWLEDGE, 2, **told)


def reports(world: GatewayFixture) -> DeliveryReports:
    found = world.gateway._reports
    assert found is not None
    return found


@played
async def test_deliveries_are_counted_and_reported_with_topic_names(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    world.broker.answers[FETCH] = response((0, 9, 1))
    await client.ask(FETCH, 2, **fetched("orders"))
    await acknowledge(world, client, 0, 3, 1)
    await acknowledge(world, client, 4, 5, 3, 2)
    numbers = world.gateway.numbers()
    for label, count in (("Accept", 4), ("Release", 1), ("Reject", 1), ("Renew", 0)):
        assert value(numbers, "share_record_acknowledgements_total", ack_type=label) == count
    await reports(world).write()
    (record,) = world.evidence.deliveries
    (row,) = record.rows
    assert (record.group_id, record.sessions, record.lock_ms) == ("g", 1, 30_000)
    assert (row.topic, row.partition, row.member_id) == ("orders", 2, "m")
    assert (row.delivered, row.accepted, row.rejected, row.released) == (10, 4, 1, 1)
    assert [(one.topic, one.offset, one.rejected_by) for one in record.suspects] == [("orders", 4, "m")]
    await reports(world).write()
    assert len(world.evidence.deliveries) == 1, "nothing has happened since"


@played
async def test_closed_connection_releases_the_records_its_member_held(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    world.broker.answers[FETCH] = response((0, 9, 5))
    await client.ask(FETCH, 2, **fetched("orders"))
    assert value(world.gateway.numbers(), "share_sessions") == 1
    client.writer.close()
    await until(lambda: value(world.gateway.numbers(), "share_sessions") == 0)
    numbers = world.gateway.numbers()
    assert value(numbers, "share_records_released_by_end_total") == 10
    assert value(numbers, "share_records_at_delivery_limit_total") == 10
    assert value(numbers, "share_records_suspected_total") == 10
    await reports(world).write()
    (record,) = world.evidence.deliveries
    assert (record.rows[0].ended, len(record.suspects), record.sessions) == (10, 10, 0)


@played
async def test_delivery_count_limit_of_a_group_is_queried_once(world: GatewayFixture) -> None:
    client = await finds_share_groups(world)
    world.broker.answers |= {
        FETCH: response((0, 0, 3)),
        ApiKey.DescribeConfigs: {
            "results": [
                {
                    "resource_type": 32,
                    "resource_name": "g",
                    "configs": [{"name": "share.delivery.count.limit", "value": "3"}],
                }
            ]
        },
    }
    await client.ask(FETCH, 2, **fetched("orders"))
    await reports(world).query_limits()
    world.broker.answers[ApiKey.DescribeConfigs] = {"results": []}
    await reports(world).query_limits()
    await client.ask(FETCH, 2, **fetched("orders", epoch=1))
    await reports(world).write()
    (record,) = world.evidence.deliveries
    assert (record.delivery_limit, record.is_limit_known, record.rows[0].last) == (3, True, 1)
