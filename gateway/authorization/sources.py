"""The sources of ACLs, and their periodic reading."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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

_VERSION = 3
# All ACLs: any resource, pattern, operation and permission.
_ANY = 1
_EVERYTHING = {
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
_COMPLAINT_INTERVAL_S = 60.0

INTERVAL_S = 5.0
"""The default interval between two readings of the ACLs."""

Read = Callable[[], Awaitable[Sequence[Acl]]]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AclOptions:
    """The ACLs that the gateway checks. If `file` is None, these are the cluster's. `Authorizer` describes
    the other options.
    """

    file: Path | None = None
    super_users: frozenset[str] = frozenset()
    allow_everyone_if_no_acl_found: bool = False
    interval_s: float = INTERVAL_S


def cluster_reader(cluster: Cluster) -> Read:
    """Return a function that reads the ACLs of the cluster, with DescribeAcls."""

    async def read() -> Sequence[Acl]:
        try:
            answer = await cluster.ask(ApiKey.DescribeAcls, _VERSION, _EVERYTHING)
        except UpstreamLost as error:
            raise AclsUnreadable(f"the cluster's ACLs cannot be read: {error}") from error
        if answer.error_code:
            why = _REASONS.get(answer.error_code, answer.error_message or "")
            raise AclsUnreadable(f"the cluster's ACLs cannot be read: error {answer.error_code}: {why}")
        return await asyncio.to_thread(_of_resources, answer.resources)

    return read


def _of_resources(resources: Iterable[Any]) -> list[Acl]:
    return [acl for resource in resources for acl in _of_resource(resource)]


def _of_resource(resource: Any) -> list[Acl]:
    """Return the resource's ACLs, except those with an unknown type or operation, which no check needs."""
    with suppress(ValueError):
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
    """Return a function that returns the ACLs of a file. It reads the file when the file has changed."""
    files: WatchedFiles[Sequence[Acl]] | None = None

    def read() -> Sequence[Acl]:
        nonlocal files
        if files is None:
            files = WatchedFiles([path], partial(read_acl_file, path))
        else:
            files.read_again()
        return files.value

    return partial(asyncio.to_thread, read)


class CurrentAcls:
    """The periodic update of the ACLs of `authorizer`. While ACLs cannot be read, the last ones apply."""

    def __init__(self, authorizer: Authorizer, read: Read, interval_s: float) -> None:
        self.authorizer = authorizer
        self._read = read
        self._interval_s = interval_s
        self._read_at_s: float | None = None
        self._complained_at_s: float | None = None

    @classmethod
    def of(cls, options: AclOptions, cluster: Cluster) -> Self:
        """Return the update of the ACLs that the options describe."""
        authorizer = Authorizer(
            options.super_users, allow_everyone_if_no_acl_found=options.allow_everyone_if_no_acl_found
        )
        read = cluster_reader(cluster) if options.file is None else file_reader(options.file)
        return cls(authorizer, read, options.interval_s)

    @property
    def age_s(self) -> float | None:
        """The time since the ACLs were last read, or None before the first time."""
        return None if self._read_at_s is None else _now_s() - self._read_at_s

    async def refresh(self) -> None:
        """Read the ACLs. Raises AclsUnreadable."""
        began_s = _now_s()
        acls = await self._read()
        self._read_at_s = began_s
        if self._complained_at_s is not None:
            self._complained_at_s = None
            log.info("the ACLs are read again")
        if await self.authorizer.replace_in_thread(acls):
            log.info("the ACLs have changed", acls=len(self.authorizer))

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Read the ACLs periodically until the block ends."""
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self._follow())
            yield
            following.cancel()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.refresh()
            except AclsUnreadable as error:
                self._complain(error)

    def _complain(self, error: AclsUnreadable) -> None:
        since_s = None if self._complained_at_s is None else _now_s() - self._complained_at_s
        if since_s is None or since_s >= _COMPLAINT_INTERVAL_S:
            self._complained_at_s = _now_s()
            age_s = self.age_s
            log.warning(
                "the ACLs cannot be read: the last ones stay in force",
                why=str(error),
                age_s=None if age_s is None else round(age_s, 1),
            )


def _now_s() -> float:
    return asyncio.get_running_loop().time()
