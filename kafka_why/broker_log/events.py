"""Parses the log messages of group coordinators, from Kafka 2.4 to 4.4, into events of groups.

Sources: GroupCoordinator.scala and GroupMetadataManager.scala of the coordinator in Scala (up to 4.0), and
GroupMetadataManager.java and ClassicGroup.java of the coordinator in Java (from 3.7). An event has the type
of the history entry that follows from it. Its `rule` is the row of docs/rules.md or docs/rules-consumer.md by
which Kafka acted.
"""

import re
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from kafka_why.contract.kafka.history import EntryType

NOT_STORED, OVER_SIZE = "LOG1", "LOG2"
"""Rows of docs/why.md, for reasons in logs that docs/rules.md does not have."""
_ABSENT = ("None", "null", "not provided")  # texts of a missing value
_MAX_DIGITS = 18  # of a number of 64 bits
# A member joins in two steps (KIP-394). In the second it sends this reason, which is not the application's.
_SECOND_JOIN_REASON = "need to re-join with the given member-id"


class LogEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message about a group. A field is None or "" if the message does not have it."""

    type: EntryType
    group_id: str = ""
    at_ms: int = 0  # 0 in `causes`
    place: str = ""  # the log file's name and the number of the line
    rule: str = ""
    group_type: str = ""
    reason: str = ""  # in the broker's words
    # The group epoch, or a classic group's new generation. A PreparingRebalance has the old generation.
    generation: int | None = None
    members: int | None = None  # number of members
    member_id: str | None = None
    replaced_member_id: str | None = None
    group_instance_id: str | None = None
    client_id: str | None = None
    client_host: str | None = None
    client_reason: str | None = None  # in the client's words
    leader_id: str | None = None
    assignor_name: str | None = None
    member_state: str | None = None  # of a MemberReconciled, such as STABLE
    causes: tuple["LogEvent", ...] = ()  # named in the reason of a PreparingRebalance


_MessageForm = tuple[EntryType, str, re.Pattern[str]]
"""The type and the rule of an event, and the pattern of its message. The pattern's named groups are fields of
LogEvent, and `listed` for a list of member ids.
"""
_CLIENT_REASON = r"(?:; client reason: (?P<client_reason>.*))?"
# Ids are bounded: a client may choose an id that contains the text after it many times over, which would make
# the search slow.
_ANY = r".{1,300}?"
_REPLACED_ID = rf"(?P<replaced_member_id>{_ANY})"
_CLIENT_ID, _HOST, _REST = r"(?P<client_id>.{0,300}?)", r"(?P<client_host>[^,]{0,300})", r".{0,2000}?"
_LEADER = r"(?P<leader_id>.{1,300}?)"
# The id of the member that the message is about.
_ID = r"(?P<member_id>.{1,300}?)"
_INSTANCE = r"(?:Some\()?(?P<group_instance_id>.{1,300}?)\)?"
_GROUP = r"(?P<group_id>.{1,300}?)"
_IN_STATE = r"(?:in \w+ state|in state \w+)"
_PARTITION = r"(?: \(__consumer_offsets-\d+\))?"
_FENCED = rf"(?:Streams )?[mM]ember {_ID} fenced from the group because"


def _message_forms(*rows: tuple[EntryType, str, str]) -> tuple[_MessageForm, ...]:
    return tuple((type_, rule, re.compile(f"{pattern}$", re.DOTALL)) for type_, rule, pattern in rows)


_CLASSIC = _message_forms(
    (
        EntryType.PREPARING_REBALANCE,
        "",
        rf"Preparing to rebalance group {_GROUP} in state \w+ with old generation (?P<generation>\d+)"
        r"(?: \(__consumer_offsets-\d+\))? \(reason: (?P<reason>.*)\)\.?",
    ),
    (
        EntryType.COMPLETING_REBALANCE,
        "C5",
        rf"Stabilized group {_GROUP} generation (?P<generation>\d+)(?: \(__consumer_offsets-\d+\))?"
        r"(?: with (?P<members>\d+) members)?\.?",
    ),
    (
        EntryType.STABLE,
        "S8",
        rf"Assignment received from leader(?: {_LEADER})? for group {_GROUP} "
        r"for generation (?P<generation>\d+)(?:\. The group has (?P<members>\d+) members,.*)?",
    ),
    (
        EntryType.EMPTY,
        "C4",
        rf"Group {_GROUP} with generation (?P<generation>\d+) is now empty{_PARTITION}\.?",
    ),
    (
        EntryType.MEMBER_REMOVED,
        "T5",
        rf"Member {_ID} in group {_GROUP} has failed, removing it from the group\.?",
    ),
    (
        EntryType.MEMBER_REMOVED,
        "L6",
        rf"Member ?\[group\.instance\.id {_INSTANCE}, member\.id {_ID}\] in group {_GROUP} has left, "
        r"removing it from the group",
    ),
    (
        EntryType.MEMBER_REMOVED,
        "L6",
        rf"Member MemberMetadata\(memberId={_ID}, groupInstanceId={_INSTANCE}, clientId={_CLIENT_ID}, "
        rf"clientHost={_HOST}, {_REST}\) has left group {_GROUP} "
        rf"through explicit `LeaveGroup`(?: request)?{_CLIENT_REASON}",
    ),
    (
        EntryType.MEMBER_REMOVED,
        "L6",
        rf"\[Group {_GROUP}\] (?:Dynamic |Static )?[mM]ember {_ID}(?: with instance id {_INSTANCE})? "
        rf"has left group through explicit `LeaveGroup` request{_CLIENT_REASON};?",
    ),
    (
        EntryType.PENDING_MEMBER_REMOVED,
        "T2",
        rf"Pending member {_ID} in group {_GROUP} has been removed after session timeout expiration\.?",
    ),
    (
        EntryType.MEMBER_ID_ASSIGNED,
        "N5",
        rf"Dynamic [mM]ember with unknown member id joins group {_GROUP} {_IN_STATE}\. "
        rf"Created a new member id {_ID} and request(?:ing)? the member to rejoin with this id\.?",
    ),
    (
        EntryType.MEMBER_ADDED,
        "N4",
        rf"(?:Dynamic [mM]ember|Static [mM]ember(?: with groupInstanceId={_INSTANCE} and)?)"
        rf"(?: with)? unknown member id joins group {_GROUP} {_IN_STATE}\. "
        rf"Created a new member id {_ID} (?:for this member )?and add(?:ed)? (?:the member )?to the group\.?",
    ),
    (
        EntryType.MEMBER_ADDED,
        "N4",
        rf"Adding new static member {_INSTANCE} to group {_GROUP} with member id {_ID}\.",
    ),
    (
        EntryType.MEMBER_ADDED,
        "E4",
        rf"Pending dynamic member with id {_ID} joins group {_GROUP} {_IN_STATE}\. "
        r"Adding to the group now\.?",
    ),
    (
        EntryType.MEMBER_REPLACED,
        "N3",
        rf"Static [mM]ember with groupInstanceId={_INSTANCE} and unknown member id joins group {_GROUP} "
        rf"{_IN_STATE}\. Replacing previously mapped member {_REPLACED_ID} "
        r"with this groupInstanceId\.?",
    ),
    (
        EntryType.MEMBER_REPLACED,
        "N3",
        rf"Static member {_INSTANCE} of group {_GROUP} with unknown member id rejoins, "
        rf"assigning new member id {_ID}, while old member id {_REPLACED_ID} will be removed\.",
    ),
    (
        EntryType.REBALANCE_EXTENDED,
        "C3",
        rf"Group {_GROUP} could not complete rebalance because no members rejoined\.?",
    ),
    (EntryType.GROUP_DELETED, "", rf"Group {_GROUP} transitioned to Dead in generation (?P<generation>\d+)"),
)
_NOT_REJOINED = re.compile(
    rf"Group {_GROUP} removed dynamic members who haven't joined: (?P<members>.*)", re.DOTALL
)
_DELETED = re.compile(
    r"The following groups were deleted: (?P<groups>.*)\. A total of \d+ offsets", re.DOTALL
)
_LIST = re.compile(r"^(?:\w+\(|\[|\()?(?P<items>.*?)[)\]]?\.?$", re.DOTALL)

# The reasons that a PreparingRebalance may have, each with the event that is its cause.
_REASONS = tuple(
    (type_, rule, re.compile(f"(?P<reason>{pattern}){_CLIENT_REASON}$", re.DOTALL))
    for type_, rule, pattern in (
        (
            EntryType.MEMBER_ADDED,
            "N4",
            rf"Adding new member {_ID} with group instance ?id {_INSTANCE}",
        ),
        (
            EntryType.MEMBER_REPLACED,
            "N3",
            r"(?:Updating metadata for|Group's selectedProtocol will change because) static member "
            rf"{_ID} with instance id {_INSTANCE}(?: joined with change of protocol)?",
        ),
        (EntryType.MEMBER_REJOINED, "E10", rf"Updating metadata for member {_ID}(?: during \w+)?"),
        (EntryType.MEMBER_REJOINED, "E9", rf"[lL]eader {_ID} re-joining group during \w+"),
        (EntryType.MEMBER_REMOVED, "L6", rf"[rR]emoving member {_ID} on LeaveGroup"),
        (EntryType.MEMBER_REMOVED, "T5", rf"[rR]emoving member {_ID} on heartbeat expiration\.?"),
        (EntryType.MEMBER_REMOVED, "L6", r"explicit `LeaveGroup` request for (?P<listed>\(.*\)) members\.?"),
        (EntryType.MEMBER_REMOVED, "Y2", r"[rR]emoving (?P<listed>.*) on pending sync request expiration\.?"),
        (EntryType.GROUP_CONVERTED, "", r"Downgrade group .* from consumer to classic.*?"),
        (
            EntryType.PREPARING_REBALANCE,
            NOT_STORED,
            r"[eE]rror .*when storing group assignment ?during SyncGroup.*?",
        ),
        (EntryType.PREPARING_REBALANCE, OVER_SIZE, r"Freshly-loaded group .*is over capacity.*?"),
    )
)

_EPOCH_PREFIX = re.compile(
    r"\[GroupId (?P<group_id>.{1,300}?)\](?:\[MemberId (?P<member_id>.{1,300}?)\])? (?P<rest>.*)$", re.DOTALL
)
_TYPE = r"(?P<group_type>consumer|share|streams)"
_EPOCHS = _message_forms(
    (
        EntryType.MEMBER_ADDED,
        "",
        rf"Member joins the {_TYPE} group.*",
    ),
    (
        EntryType.MEMBER_ADDED,
        "",
        rf"Static member {_ID} with instance id {_INSTANCE} joins the {_TYPE} group.*",
    ),
    (EntryType.MEMBER_ADDED, "", rf"Member {_ID} joins the {_TYPE} group.*"),
    (
        EntryType.MEMBER_REPLACED,
        "",
        rf"Static member {_ANY} with instance id {_INSTANCE} re-joins the {_TYPE} group.* "
        rf"Created a new member {_ID} to replace the existing member {_REPLACED_ID}\.?",
    ),
    (
        EntryType.MEMBER_LEFT_TEMPORARILY,
        "",
        rf"Static member {_ID} with instance id {_INSTANCE} temporarily left the {_TYPE} group\.",
    ),
    (
        EntryType.MEMBER_REMOVED,
        "",
        rf"(?:Member|(?:Static )?[mM]ember {_ID}(?: with instance id {_INSTANCE})?) left the {_TYPE} group\.",
    ),
    (
        EntryType.MEMBER_REMOVED,
        "",
        rf"(?:Dynamic|Static) [mM]ember {_ID}(?: with instance id {_INSTANCE})? has left group "
        rf"through explicit `LeaveGroup` request{_CLIENT_REASON}",
    ),
    (EntryType.MEMBER_REMOVED, "TM1", rf"{_FENCED} (?:the member|its) session expired\.*"),
    (EntryType.MEMBER_REMOVED, "TM5", rf"{_FENCED} (?:the member|it) failed to sync.*"),
    (EntryType.MEMBER_REMOVED, "TM3", rf"{_FENCED} it failed to .*"),
    (
        EntryType.GROUP_EPOCH_BUMPED,
        "",
        r"Bumped (?:(?P<group_type>\w+) )?group epoch to (?P<generation>\d+)\b.*",
    ),
    (
        EntryType.TARGET_ASSIGNMENT_COMPUTED,
        "",
        r"Computed a new target assignment for epoch (?P<generation>\d+)"
        r"(?: with '(?P<assignor_name>[^']*)' assignor)?.*",
    ),
    (
        EntryType.MEMBER_RECONCILED,
        "",
        rf"(?:Member's|Member {_ID}) new assignment state: epoch=(?P<generation>-?\d+), previousEpoch=-?\d+, "
        r"state=(?P<member_state>\w+),.*",
    ),
    (
        EntryType.MEMBER_REJOINED,
        "",
        rf"Member {_ID} updated its subscribed (?:topics|topic regex|regex) to: .*",
    ),
    (
        EntryType.TOPICS_CHANGED,
        "HB53",
        r"Computed new (?:subscription metadata: \{.*\w.*|metadata hash: -?[1-9]).*",
    ),
    (
        EntryType.GROUP_CONVERTED,
        "",
        r"Converted the (?:empty )?\w+ group to a (?P<group_type>classic|consumer|share|streams) group\.",
    ),
)


def events_in(message: str) -> Iterator[LogEvent]:
    """Yield the events in a coordinator's message, or none if the message is unknown.

    The events have neither a time nor a place.
    """
    if message.startswith("[GroupId "):
        yield from _epoch_events(message)
    elif (not_rejoined := _NOT_REJOINED.match(message)) is not None:
        for member_id in _split_list(not_rejoined["members"]):
            yield LogEvent(
                type=EntryType.MEMBER_REMOVED,
                group_id=not_rejoined["group_id"],
                rule="C1",
                member_id=member_id,
                reason=f"member {member_id} did not rejoin within the rebalance timeout",
            )
    elif (deleted := _DELETED.match(message)) is not None:
        for group_id in deleted["groups"].split(", "):
            yield LogEvent(type=EntryType.GROUP_DELETED, group_id=group_id, reason="the group was deleted")
    elif (event := _first_match(_CLASSIC, message)) is not None:
        if event.type is EntryType.PREPARING_REBALANCE:
            event = _with_causes(event)
        yield replace(event, group_type="classic", reason=event.reason or message)


def _epoch_events(message: str) -> Iterator[LogEvent]:
    """Yield the event in a message about a group with epochs, if it is known."""
    prefix = _EPOCH_PREFIX.match(message)
    event = None if prefix is None else _first_match(_EPOCHS, prefix["rest"])
    if prefix is not None and event is not None:
        member_id = event.member_id or prefix["member_id"]
        class_name, at_sign, _ = (event.assignor_name or "").partition("@")
        if at_sign:  # Java's text of an object: PACKAGE.CLASS@HASH
            event = replace(event, assignor_name=class_name.rpartition(".")[2])
        yield replace(event, group_id=prefix["group_id"], member_id=member_id, reason=prefix["rest"])


def _first_match(forms: tuple[_MessageForm, ...], text: str) -> LogEvent | None:
    """Return the event of the first form that matches, or None.

    If the text lists members, the event's causes are an event for each of them.
    """
    for type_, rule, pattern in forms:
        match = pattern.match(text)
        if match is None:
            continue
        fields: dict[str, str] = {
            name: value for name, value in match.groupdict().items() if value and value not in _ABSENT
        }
        if fields.get("client_reason", "").startswith(_SECOND_JOIN_REASON):
            del fields["client_reason"]
        member_list = fields.pop("listed", None)
        numbers = {
            name: int(fields.pop(name)[:_MAX_DIGITS]) for name in ("generation", "members") if name in fields
        }
        event = LogEvent(type=type_, rule=rule, **fields, **numbers)  # type: ignore[arg-type]
        if member_list is None:
            return event
        causes = tuple(replace(event, member_id=member_id) for member_id in _split_list(member_list))
        return replace(event, causes=causes)
    return None


def _with_causes(event: LogEvent) -> LogEvent:
    """Return a PreparingRebalance with the causes that its reason names."""
    cause = _first_match(_REASONS, event.reason)
    if cause is None:
        return event
    if cause.type is EntryType.PREPARING_REBALANCE:  # the cause is no change of a member
        return replace(event, reason=cause.reason, rule=cause.rule)
    causes = cause.causes
    if cause.member_id is not None or cause.type is EntryType.GROUP_CONVERTED:
        causes = (cause,)
    return replace(event, reason=cause.reason, client_reason=cause.client_reason, causes=causes)


def _split_list(text: str) -> list[str]:
    """Return the items of `Set(a, b)`, `[a, b]` or `(a, b)`."""
    match = _LIST.match(text)
    items = "" if match is None else match["items"]
    return items.split(", ") if items else []
