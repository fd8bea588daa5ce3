"""ConsumerGroupDescribe (key 69). The coordinator gets one request for each group."""

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.modern_groups import Description, assignment_fields
from gateway.wire.codec import Fields
from kafka_why.contract.kafka.requests import ConsumerGroupDescribe
from kafka_why.contract.kafka.responses import ConsumerGroupMemberDescription


def _member(member: ConsumerGroupMemberDescription) -> Fields:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscribed_topic_names,
        "subscribed_topic_regex": member.subscribed_topic_regex,
        "assignment": assignment_fields(member.assignment),
        "target_assignment": assignment_fields(member.target_assignment),
        "member_type": member.member_type,
    }


_DESCRIPTION = Description(
    ConsumerGroupDescribe,
    is_on=lambda services: services.consumer_protocol,
    assignments=lambda member: (member.assignment, member.target_assignment),  # row AD6
    member=_member,
    hidden="The group has topics that the client is not authorized to describe.",
)

API = Api(key=ApiKey.ConsumerGroupDescribe, serve=_DESCRIPTION.serve, of_consumer_protocol=True)
