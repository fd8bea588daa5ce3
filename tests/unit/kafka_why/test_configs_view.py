"""What readers of the groups topic see of the settings of a group id."""

from kafka_why.contract.codec import encode
from kafka_why.contract.history_reader import AnyView, GroupTable, decode_any_snapshot, decode_configs
from kafka_why.contract.messages import SettingValue
from state.dispatch import view_of
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.group import ConfigsOnly


def test_settings_without_a_group_are_known_but_not_listed() -> None:
    own: dict[str, SettingValue] = {
        "consumer.assignment.interval.ms": 0,
        "share.auto.offset.reset": "earliest",
    }
    member = {"m": ConsumerMember("m")}
    groups: GroupTable[AnyView] = GroupTable(decode_any_snapshot)
    configs = GroupTable(decode_configs)
    for stored, listed, settings in (
        (ConfigsOnly("g", "requests-0-0", 1, own), [], [own]),
        (ConsumerGroup("g", "requests-0-1", members=member, configs=own), ["g"], [own]),
        (ConfigsOnly("g", "requests-0-2", 1, own), [], [own]),
        (ConsumerGroup("g", "requests-0-3", members=member), ["g"], []),
    ):
        value = encode(view_of(stored))
        groups.apply(b"g", value)
        configs.apply(b"g", value)
        assert [view.group_id for view in groups.groups] == listed
        assert [found.configs for found in configs.groups] == settings
