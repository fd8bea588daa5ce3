"""The authorizer against a model that reads Kafka's rules word by word, and the rules one by one."""

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.authorization.acls import Acl, Operation, PatternType, Permission, ResourceType
from gateway.authorization.authorizer import Authorizer, java_address

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
ANN, BOB, ANYBODY = "User:ann", "User:bob", "User:*"
HOST = "10.0.0.1"

NAMES = ("", "a", "ab", "abc", "b", "*", "*a")
ACLS = st.builds(
    Acl,
    st.sampled_from([GROUP, TOPIC]),
    st.sampled_from([name for name in NAMES if name]),
    st.sampled_from(PatternType),
    st.sampled_from([ANN, BOB, ANYBODY]),
    st.sampled_from([HOST, "10.0.0.2", "*"]),
    st.sampled_from(Operation),
    st.sampled_from(Permission),
)


def acl(
    operation: Operation = Operation.READ,
    name: str = "g",
    permission: Permission = ALLOW,
    *,
    pattern: PatternType = LITERAL,
    principal: str = ANN,
    host: str = "*",
    kind: ResourceType = GROUP,
) -> Acl:
    return Acl(kind, name, pattern, principal, host, operation, permission)


def authorizer(*acls: Acl, **settings: bool) -> Authorizer:
    made = Authorizer(**settings)  # type: ignore[arg-type]
    made.replace(acls)
    return made


def is_about(one: Acl, kind: ResourceType, name: str) -> bool:
    """Kafka: ResourcePatternFilter with PatternType.MATCH."""
    if one.resource_type is not kind:
        return False
    if one.pattern_type is PREFIXED:
        return name.startswith(one.name)
    return one.name in (name, "*")


def model(
    acls: Iterable[Acl],
    default: bool,
    principal: str,
    host: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
) -> bool:
    """DENY before ALLOW before the default, over all ACLs about the resource."""
    about = [one for one in acls if is_about(one, kind, name)]
    mine = [one for one in about if one.principal in (principal, ANYBODY) and one.host in (host, "*")]
    implying = {
        Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }.get(operation, set())
    exact = {operation, Operation.ALL}
    if any(one.permission is DENY and one.operation in exact for one in mine):
        return False
    if any(one.permission is ALLOW and one.operation in exact | implying for one in mine):
        return True
    return default and not about


@given(
    acls=st.lists(ACLS, max_size=8),
    later=st.lists(ACLS, max_size=8),
    default=st.booleans(),
    asked=st.lists(
        st.tuples(
            st.sampled_from([ANN, BOB]),
            st.sampled_from([HOST, "10.0.0.3"]),
            st.sampled_from([one for one in Operation if one is not Operation.ALL]),
            st.sampled_from([GROUP, TOPIC]),
            st.sampled_from(NAMES),
        ),
        min_size=1,
        max_size=20,
    ),
)
def test_random_decisions_match_the_reference_model(
    acls: Sequence[Acl],
    later: Sequence[Acl],
    default: bool,
    asked: Sequence[tuple[str, str, Operation, ResourceType, str]],
) -> None:
    made = Authorizer(allow_everyone_if_no_acl_found=default)
    for current in (acls, later):
        made.replace(current)
        for one in [*asked, *asked]:  # the second time from what is kept
            assert made.may(*one) is model(current, default, *one), one


def test_super_users_are_allowed_despite_denials_and_before_acls_are_loaded() -> None:
    made = Authorizer([BOB])
    assert made.may(BOB, HOST, Operation.READ, GROUP, "g")
    assert not made.may(ANN, HOST, Operation.READ, GROUP, "g")
    made.replace([acl(Operation.ALL, "*", DENY, principal=ANYBODY)])
    assert made.may(BOB, HOST, Operation.READ, GROUP, "g")


def test_everything_is_denied_until_acls_are_loaded_even_with_allow_everyone() -> None:
    made = Authorizer(allow_everyone_if_no_acl_found=True)
    assert not made.may(ANN, HOST, Operation.READ, GROUP, "g")
    assert not made.may_somewhere(ANN, HOST, Operation.WRITE, TOPIC)
    made.replace([])
    assert made.may(ANN, HOST, Operation.READ, GROUP, "g")
    assert made.may_somewhere(ANN, HOST, Operation.WRITE, TOPIC)


def test_changed_acls_apply_at_once_and_equal_ones_keep_the_version() -> None:
    made = authorizer(acl())
    version = made.version
    assert made.may(ANN, HOST, Operation.READ, GROUP, "g")
    assert not made.replace([acl(), acl()])
    assert made.version == version
    assert made.replace([])
    assert made.version == version + 1
    assert not made.may(ANN, HOST, Operation.READ, GROUP, "g")


def test_decision_cache_is_bounded_and_skips_long_names() -> None:
    made = authorizer(acl(name="g", pattern=PREFIXED))
    assert made.may(ANN, HOST, Operation.READ, GROUP, "g" * 30_000)
    assert made.decisions == 0
    for number in range(60_000):
        assert made.may(ANN, HOST, Operation.READ, GROUP, f"g{number}")
    assert made.decisions <= 50_000


@pytest.mark.parametrize(
    ("python", "java"),
    [
        ("/10.1.2.3", "10.1.2.3"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("/2001:db8::a", "2001:db8:0:0:0:0:0:a"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("unknown", "unknown"),
    ],
)
def test_addresses_are_written_as_java_writes_them(python: str, java: str) -> None:
    assert java_address(python) == java


SOMEWHERE = [
    ("nothing", [], False),
    ("one topic", [acl(Operation.WRITE, "a", kind=TOPIC)], True),
    ("ALL on a prefix", [acl(Operation.ALL, "a", kind=TOPIC, pattern=PREFIXED)], True),
    ("another's", [acl(Operation.WRITE, "a", kind=TOPIC, principal=BOB)], False),
    ("from elsewhere", [acl(Operation.WRITE, "a", kind=TOPIC, host="10.9.9.9")], False),
    ("the same denied", [acl(Operation.WRITE, "a", p, kind=TOPIC) for p in Permission], False),
    (
        "another one denied",
        [acl(Operation.WRITE, "a", kind=TOPIC), acl(Operation.WRITE, "b", DENY, kind=TOPIC)],
        True,
    ),
    (
        "all denied",
        [acl(Operation.WRITE, "a", kind=TOPIC), acl(Operation.WRITE, "*", DENY, kind=TOPIC)],
        False,
    ),
    (
        "its prefix denied",
        [acl(Operation.WRITE, "ab", kind=TOPIC), acl(Operation.ALL, "a", DENY, kind=TOPIC, pattern=PREFIXED)],
        False,
    ),
    (
        "a longer prefix denied",
        [
            acl(Operation.WRITE, "a", kind=TOPIC, pattern=PREFIXED),
            acl(Operation.WRITE, "ab", DENY, kind=TOPIC, pattern=PREFIXED),
        ],
        True,
    ),
    (
        "every name but a prefix",
        [
            acl(Operation.WRITE, "*", kind=TOPIC),
            acl(Operation.WRITE, "a", DENY, kind=TOPIC, pattern=PREFIXED),
        ],
        True,
    ),
]


@pytest.mark.parametrize(("acls", "expected"), [pytest.param(a, e, id=n) for n, a, e in SOMEWHERE])
def test_write_permission_on_any_topic_is_detected(acls: list[Acl], expected: bool) -> None:
    assert authorizer(*acls).may_somewhere(ANN, HOST, Operation.WRITE, TOPIC) is expected
