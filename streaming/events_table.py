"""The events topic as a Spark table, one row per history entry."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

_ENTRY = """
    group_id string, incarnation string, seq long, at_ms long, type string, from_state string,
    to_state string, generation int, reason string, rule string, cause string, member_id string,
    group_instance_id string, client_id string, client_host string, client_reason string, leader_id string,
    protocol_name string, members array<string>, waiting_for array<string>, deadline_ms long,
    assignments map<string, binary>, partitions map<string, array<int>>, superseded string, late_by_ms long,
    topics array<string>, subscriptions map<string, array<string>>, version int,
    last_rebalance_at_ms long, replaced_member_id string, principal string,
    producer_id long, transactional_id string,
    group_type string, assignment_epoch int, member_epoch int, member_state string, assignor_name string,
    assigned map<string, array<int>>, revoking map<string, array<int>>, awaiting map<string, array<int>>,
    targets map<string, map<string, array<int>>>, moved_partitions int, took_ms long, observed boolean,
    within_ms long, error_code int, process_id string,
    task_states map<string, struct<role: string, offset: long, end_offset: long, reported_before_ms: long>>,
    protocol string, connection string, connections array<string>, message_model string,
    broker string, client_address string
"""


def events_table(records: DataFrame) -> DataFrame:
    """Return the entries in `records`, whose column `value` is that of Kafka's source.

    The columns are the fields of `kafka_why.contract.kafka.history.HistoryEntry` and of
    `kafka_why.contract.rocketmq.history.HistoryEntry`. `protocol` is the tag of the latter, null for Kafka's
    groups. `at` is the entry's time as a timestamp. Duplicates from the at-least-once writer, and entries
    without a group, are left out.
    """
    entry = F.from_json(F.col("value").cast("string"), _ENTRY)
    return (
        records.select(entry.alias("entry"))
        .select("entry.*", F.timestamp_millis("entry.at_ms").alias("at"))
        .where("group_id is not null")
        .dropDuplicates(["group_id", "incarnation", "seq"])
    )
