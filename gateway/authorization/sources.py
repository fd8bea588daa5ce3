"""The sources of ACLs, and their periodic reading."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Self

import structlog
from kafka.protocol.api_key import ApiKey

from gateway.authorization.acls import (
    Acl,
    AclsUnreadable,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    read_acl_file,
)
from gateway.authorization.authorizer import Authorizer
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import UpstreamLost
from gateway.watched_files import WatchedFiles

_DESCRIBE_VERSION = 3
_ANY = 1  # of each enum in a filter
_ALL_ACLS = {
    "resource_type_filter": _ANY,
    "resource_name_filter": None,
    "pattern_type_filter": _ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": _ANY,
    "permission_type": _ANY,
}
_OPERATIONS = frozenset(operation.value for operation in Operation)
_SECURITY_DISABLED, _CLUSTER_AUTHORIZATION_FAILED = 54, 31
_REASONS = {
    _SECURITY_DISABLED: "the brokers have no authorizer (authorizer.class.name), so they have no ACLs",
    _CLUSTER_AUTHORIZATION_FAILED: "the gateway's own principal needs DESCRIBE on the cluster",
}
# The minimum interval between log lines about failures to read.
_FAILURE_LOG_INTERVAL_S = 60.0

INTERVAL_S = 5.0
"""The default interval between two readings of the ACLs."""

Read = Callable[[], Awaitable[Sequence[Acl]]]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AclOptions:
    """The ACLs that the gateway checks: those of `file`, or the cluster's if `file` is None.

    They are read every `interval_s`. `Authorizer` describes the other options.
    """

    file: Path | None = None
    super_users: frozenset[str] = frozenset()
    allow_everyone_if_no_acl_found: bool = False
    interval_s: float = INTERVAL_S


async def read_cluster(cluster: Cluster) -> Sequence[Acl]:
    """Return the ACLs of the cluster, by DescribeAcls. Raises AclsUnreadable."""
    try:
        answer = await cluster.ask(ApiKey.DescribeAcls, _DESCRIBE_VERSION, _ALL_ACLS)
    except UpstreamLost as error:
        raise AclsUnreadable(f"the cluster's ACLs cannot be read: {error}") from error
    if answer.error_code:
        why = _REASONS.get(answer.error_code, answer.error_message or "")
        raise AclsUnreadable(f"the cluster's ACLs cannot be read: error {answer.error_code}: {why}")
    return await asyncio.to_thread(_acls_of_resources, answer.resources)


def _acls_of_resources(resources: Iterable[Any]) -> list[Acl]:
    return [acl for resource in resources for acl in _acls_of_resource(resource)]


def _acls_of_resource(resource: Any) -> list[Acl]:
    """Return the resource's ACLs, except those with an unknown type or operation, which no check needs."""
    with suppress(ValueError):  # an unknown type
        kind, pattern = ResourceType(resource.resource_type), PatternType(resource.pattern_type)
        return [
            Acl(
                kind,
                resource.resource_name,
                pattern,
                acl.principal,
                acl.host,
                Operation(acl.operation),
                Permission(acl.permission_type),
            )
            for acl in resource.acls
            if acl.operation in _OPERATIONS
        ]
    return []


def file_reader(path: Path) -> Read:
    """Return a function that returns the ACLs of a file, and reads the file again when it has changed.

    Raises AclsUnreadable.
    """
    files = WatchedFiles([path], partial(read_acl_file, path))

    def read() -> Sequence[Acl]:
        files.reload_if_changed()
        return files.value

    return partial(asyncio.to_thread, read)


class CurrentAcls:
    """The periodic update of the ACLs of `authorizer`. While ACLs cannot be read, the last ones apply."""

    def __init__(self, authorizer: Authorizer, read: Read, interval_s: float) -> None:
        self.authorizer = authorizer
        self._read = read
        self._interval_s = interval_s
        self._read_at_s: float | None = None
        self._failure_logged_at_s: float | None = None  # None while the ACLs can be read

    @classmethod
    def of(cls, options: AclOptions, cluster: Cluster) -> Self:
        """Return the update of the ACLs that the options describe."""
        authorizer = Authorizer(
            options.super_users, allow_everyone_if_no_acl_found=options.allow_everyone_if_no_acl_found
        )
        read = partial(read_cluster, cluster) if options.file is None else file_reader(options.file)
        return cls(authorizer, read, options.interval_s)

    @property
    def age_s(self) -> float | None:
        """The time since the ACLs were last read, or None before the first time."""
        return None if self._read_at_s is None else monotonic() - self._read_at_s

    async def refresh(self) -> None:
        """Read the ACLs. Raises AclsUnreadable."""
        began_s = monotonic()
        acls = await self._read()
        self._read_at_s = began_s
        if self._failure_logged_at_s is not None:
            self._failure_logged_at_s = None
            log.info("the ACLs are read again")
        if await self.authorizer.replace_in_thread(acls):
            log.info("the ACLs have changed", acls=len(self.authorizer))

    async def follow(self) -> None:
        """Read the ACLs periodically."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.refresh()
            except AclsUnreadable as error:
                self._log_failure(error)

    def _log_failure(self, error: AclsUnreadable) -> None:
        """Log a failure to read the ACLs, unless one was logged a short time ago."""
        since_s = None if self._failure_logged_at_s is None else monotonic() - self._failure_logged_at_s
        if since_s is None or since_s >= _FAILURE_LOG_INTERVAL_S:
            self._failure_logged_at_s = monotonic()
            age_s = self.age_s
            log.warning(
                "the ACLs cannot be read: the last ones stay in force",
                why=str(error),
                age_s=None if age_s is None else round(age_s, 1),
            )
