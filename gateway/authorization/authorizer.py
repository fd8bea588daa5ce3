"""Authorization decisions, like those of Kafka's StandardAuthorizer.

Source: org.apache.kafka.metadata.authorizer.StandardAuthorizerData, and `authorizeByResourceType` of
org.apache.kafka.server.authorizer.Authorizer.
"""

import asyncio
import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import MappingProxyType

from gateway.authorization.acls import (
    SUPPORTED,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

# Decisions are cached until the ACLs change, or up to this number.
_DECISIONS_MAX = 50_000
# The maximum number of cached client addresses in Java's form.
_HOSTS_MAX = 10_000
# Kafka's longest topic name has 249 characters. Longer group ids are not cached.
_CACHED_NAME_MAX_CHARS = 250

# The operations that imply an operation. This holds only for ALLOW: an ACL that denies READ does not deny
# DESCRIBE.
_IMPLIED_BY: Mapping[Operation, frozenset[Operation]] = MappingProxyType(
    {
        Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
        Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
    }
)

# A name that no ACL has. Kafka uses it to ask whether all resources of a type are allowed.
_ANY_NAME = "hardcode"

_DecisionKey = tuple[str, str, Operation, ResourceType, str | None]
"""The key of a cached decision. The name is None for a decision about any resource of the type."""


@dataclass
class _AclsOfType:
    """The ACLs of one type of resource, by the name of their resource."""

    literal: dict[str, list[Acl]] = field(default_factory=dict)
    prefixed: dict[str, list[Acl]] = field(default_factory=dict)
    prefix_lengths: list[int] = field(default_factory=list)

    def add(self, acl: Acl) -> None:
        is_literal = acl.pattern_type is PatternType.LITERAL
        (self.literal if is_literal else self.prefixed).setdefault(acl.name, []).append(acl)
        if not is_literal and len(acl.name) not in self.prefix_lengths:
            self.prefix_lengths.append(len(acl.name))

    def about(self, name: str) -> Iterator[Acl]:
        """Yield the ACLs that apply to the resource of this name."""
        yield from self.literal.get(name, ())
        if name != WILDCARD:
            yield from self.literal.get(WILDCARD, ())
        for length in self.prefix_lengths:
            if length <= len(name):
                yield from self.prefixed.get(name[:length], ())

    def covers(self, allow: Acl) -> bool:
        """Return True if these ACLs, which deny the operation, cancel an allowing one completely."""
        is_literal = allow.pattern_type is PatternType.LITERAL
        if WILDCARD in self.literal or (is_literal and allow.name in self.literal):
            return True
        if is_literal and allow.name == WILDCARD:
            return False  # no prefix has all names
        return any(allow.name[:length] in self.prefixed for length in self.prefix_lengths)


class Authorizer:
    """The ACLs, and decisions by them. Use it on one thread.

    Until the first `replace` only super users may do anything. `allow_everyone_if_no_acl_found` is the
    decision for a resource without ACLs. `version` counts the changes of the ACLs.
    """

    def __init__(
        self, super_users: Iterable[str] = (), *, allow_everyone_if_no_acl_found: bool = False
    ) -> None:
        self._super_users = frozenset(super_users)
        self._allows_without_acls = allow_everyone_if_no_acl_found
        self._acls: frozenset[Acl] | None = None
        self._by_type: dict[ResourceType, _AclsOfType] = {}
        self._decisions: dict[_DecisionKey, bool] = {}
        self.version = 0

    def __len__(self) -> int:
        """Return the number of ACLs."""
        return len(self._acls or ())

    @property
    def decisions(self) -> int:
        """The number of cached decisions."""
        return len(self._decisions)

    def replace(self, acls: Iterable[Acl]) -> bool:
        """Replace the ACLs. Return True if they differ from the previous ones."""
        return self._apply(self._sort_if_new(acls))

    async def replace_in_thread(self, acls: Iterable[Acl]) -> bool:
        """Replace the ACLs as `replace` does, but compare and sort them in a thread, because there may be
        many.
        """
        return self._apply(await asyncio.to_thread(self._sort_if_new, acls))

    def _sort_if_new(
        self, acls: Iterable[Acl]
    ) -> tuple[frozenset[Acl], dict[ResourceType, _AclsOfType]] | None:
        """Return the set of ACLs, and the ACLs by resource type, or None if this set is already in force."""
        new_acls = frozenset(acls)
        if new_acls == self._acls:
            return None
        by_type: dict[ResourceType, _AclsOfType] = {kind: _AclsOfType() for kind in ResourceType}
        for acl in new_acls:
            by_type[acl.resource_type].add(acl)
        return new_acls, by_type

    def _apply(self, changed: tuple[frozenset[Acl], dict[ResourceType, _AclsOfType]] | None) -> bool:
        """Put the ACLs of `_sort_if_new` in force. Return False if they are the same as before."""
        if changed is None:
            return False
        self._acls, self._by_type = changed
        self.forget()
        self.version += 1
        return True

    def may(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return True if this client may do this operation on the resource."""
        key = principal, host, operation, kind, name
        is_allowed = self._decisions.get(key)
        if is_allowed is None:
            is_allowed = self._decide(principal, java_address(host), operation, kind, name)
            if len(name) <= _CACHED_NAME_MAX_CHARS:
                self._cache(key, is_allowed=is_allowed)
        return is_allowed

    def predicate(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> Callable[[str], bool]:
        """Return a function that decides as `may` does about the resource of a name.

        The function caches nothing, and uses the ACLs in force at each call.
        """
        return partial(self._decide, principal, java_address(host), operation, kind)

    def operations(self, principal: str, host: str, kind: ResourceType, name: str) -> frozenset[Operation]:
        """Return this client's permitted operations on the resource."""
        return frozenset(
            operation for operation in SUPPORTED[kind] if self.may(principal, host, operation, kind, name)
        )

    def forget(self) -> None:
        """Clear the cached decisions."""
        self._decisions.clear()

    def is_super_user(self, principal: str) -> bool:
        """Return True if this principal may do everything."""
        return principal in self._super_users

    def may_somewhere(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Return True if this client may do this operation on at least one resource of the type, existing or
        not.
        """
        if self.may(principal, host, operation, kind, _ANY_NAME):
            return True
        key = principal, host, operation, kind, None
        is_allowed = self._decisions.get(key)
        if is_allowed is None:
            is_allowed = self._decide_somewhere(principal, java_address(host), operation, kind)
            self._cache(key, is_allowed=is_allowed)
        return is_allowed

    def _cache(self, key: _DecisionKey, *, is_allowed: bool) -> None:
        if len(self._decisions) >= _DECISIONS_MAX:
            self.forget()
        self._decisions[key] = is_allowed

    def _decide_somewhere(
        self, principal: str, address: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Return True if some ACL allows the operation, and no ACLs cancel it completely."""
        denied, allowed = _AclsOfType(), list[Acl]()
        for acl in self._acls or ():
            is_for_operation = acl.resource_type is kind and acl.operation in (operation, Operation.ALL)
            if not is_for_operation or not _is_about_client(acl, principal, address):
                continue
            if acl.permission is Permission.DENY:
                denied.add(acl)
            else:
                allowed.append(acl)
        return any(not denied.covers(acl) for acl in allowed)

    def _decide(
        self, principal: str, address: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """Return False if an ACL denies the operation, True if one allows it. Otherwise return the default,
        but False for a resource that has ACLs.
        """
        if principal in self._super_users:
            return True
        if self._acls is None:
            return False
        has_acls = is_allowed = False
        for acl in self._by_type[kind].about(name):
            has_acls = True
            if _is_about_client(acl, principal, address) and _is_for_operation(acl, operation):
                if acl.permission is Permission.DENY:
                    return False
                is_allowed = True
        return is_allowed or (self._allows_without_acls and not has_acls)


def _is_about_client(acl: Acl, principal: str, address: str) -> bool:
    return acl.principal in (principal, WILDCARD_PRINCIPAL) and acl.host in (address, WILDCARD)


def _is_for_operation(acl: Acl, operation: Operation) -> bool:
    if acl.operation in (operation, Operation.ALL):
        return True
    return acl.permission is Permission.ALLOW and acl.operation in _IMPLIED_BY.get(operation, ())


@lru_cache(_HOSTS_MAX)
def java_address(host: str) -> str:
    """Return the address in the form of Java's InetAddress.getHostAddress, in which Kafka compares ACLs'
    hosts.
    """
    text = host.removeprefix("/")  # a client's host has a slash before the address
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv4Address):
        return text
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    high_bytes, low_bytes = address.packed[::2], address.packed[1::2]
    plain = ":".join(f"{high << 8 | low:x}" for high, low in zip(high_bytes, low_bytes, strict=True))
    return plain if address.scope_id is None else f"{plain}%{address.scope_id}"
