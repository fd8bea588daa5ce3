"""The settings of a file while they are parsed: values trimmed as in Kafka, and a record of the settings that
were not read.
"""

import difflib
import re
from collections.abc import Iterable, Mapping

from kafka_why.connections.properties import BLANKS, Resolve
from kafka_why.errors import UserFacingError

# The least similarity of a mistyped name, with one or two wrong letters.
_SIMILARITY = 0.9
# A line of a password or of a key may be read as a name, so only names of this form are shown.
_SETTING_NAME = re.compile(r"[a-z][a-z0-9]{0,31}([._-][a-z0-9]{1,31}){0,15}")


def intended_name(name: str) -> str | None:
    """Return the setting that a mistyped name resembles, or None."""
    if name in KNOWN or _is_prefixed(name):
        return None
    dotted = re.sub(r"[_-]", ".", name.lower())
    return next(iter(difflib.get_close_matches(dotted, sorted(KNOWN), n=1, cutoff=_SIMILARITY)), None)


def shown_names(names: Iterable[str]) -> list[str]:
    """Return the sorted names, without names that may be secrets."""
    return sorted(name for name in names if name in KNOWN or ("." in name and _SETTING_NAME.fullmatch(name)))


def _is_prefixed(name: str) -> bool:
    """Return True if `name` has a client's prefix, as Connect's `producer.sasl.jaas.config`."""
    parts = name.split(".")
    return any(".".join(parts[start:]) in KNOWN for start in range(1, len(parts)))


# Settings of the admin client, the consumer and the producer of Kafka 3.9 and 4.4.
_JAVA = """
    acks allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter
    auto.offset.reset batch.size bootstrap.controllers bootstrap.resolve.timeout.ms bootstrap.servers
    buffer.memory buffer.memory.allocation.strategy check.crcs client.dns.lookup client.id client.rack
    compression.gzip.level compression.lz4.level compression.type compression.zstd.level config.providers
    connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms enable.auto.commit
    enable.idempotence enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms
    fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
    interceptor.classes isolation.level key.deserializer key.serializer linger.ms max.block.ms
    max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    max.request.size metadata.cluster.check.enable metadata.fetch.timeout.ms metadata.max.age.ms
    metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
    partition.assignment.strategy partitioner.adaptive.partitioning.enable
    partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys partitioner.rack.aware
    receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries
    retry.backoff.max.ms retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
    sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
    sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
    sasl.login.refresh.window.factor sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms
    sasl.login.retry.backoff.ms sasl.mechanism sasl.oauthbearer.allow.unverified.audience
    sasl.oauthbearer.allow.unverified.issuer sasl.oauthbearer.assertion.algorithm
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
    sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
    sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
    sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
    security.protocol security.providers send.buffer.bytes session.timeout.ms share.acknowledgement.mode
    share.acquire.mode socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
    ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class
    ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key
    ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
    ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
    ssl.truststore.location ssl.truststore.password ssl.truststore.type transaction.timeout.ms
    transaction.two.phase.commit.enable transactional.id value.deserializer value.serializer
"""
# Further settings of librdkafka 2.
_LIBRDKAFKA = """
    api.version.fallback.ms api.version.request api.version.request.timeout.ms auto.commit.enable
    batch.num.messages broker.address.family broker.address.ttl broker.version.fallback builtin.features
    compression.codec compression.level consume.callback.max.messages coordinator.query.interval.ms debug
    delivery.report.only.error enable.auto.offset.store enable.gapless.guarantee enable.partition.eof
    enable.random.seed enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification
    fetch.error.backoff.ms fetch.message.max.bytes fetch.queue.backoff.ms fetch.wait.max.ms
    group.protocol.type https.ca.location https.ca.pem interceptors log.connection.close log.queue
    log.thread.name log_level max.in.flight message.copy.max.bytes message.max.bytes
    message.send.max.retries message.timeout.ms metadata.broker.list msg_order_cmp offset.store.method
    offset.store.path offset.store.sync.interval.ms partitioner plugin.library.paths produce.offset.report
    queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
    queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages queuing.strategy
    receive.message.max.bytes reconnect.backoff.jitter.ms request.required.acks sasl.kerberos.keytab
    sasl.kerberos.principal sasl.mechanisms sasl.oauthbearer.assertion.jwt.template.file
    sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
    sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
    sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.password sasl.username
    socket.blocking.max.ms socket.keepalive.enable socket.max.fails socket.nagle.disable
    socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.crl.location
    ssl.curves.list ssl.engine.id ssl.engine.location ssl.key.location ssl.key.pem ssl.providers
    ssl.sigalgs.list ssl_ca ssl_certificate ssl_key statistics.interval.ms sticky.partitioning.linger.ms
    topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
    topic.metadata.refresh.sparse
"""
KNOWN = frozenset(_JAVA.split() + _LIBRDKAFKA.split())
"""The settings of Kafka's clients. They distinguish an unused setting from a mistyped name."""


# A value with one of these texts may be a secret, contain a secret, or be a URL with credentials.
_MAY_BE_SECRET = ("-----", "@", "?", "=", ";", '"', "'")
_REFERENCE_START = "${"
JAVA_CLASS = "is a class of Java, and not all clients here are Java's"
_MAX_SHOWN_CHARS = 200


class ClientConfigError(UserFacingError, ValueError):
    """The error of unusable client settings. Its message names the file and the setting, but no secret."""


class UsedSettings:
    """Settings by their names, with a record of the settings that were not read."""

    def __init__(self, values: Mapping[str, str], resolve: Resolve = lambda _, value: value) -> None:
        self._values = values
        self._resolve = resolve
        self._unread = set(values)

    def text(self, name: str) -> str | None:
        """Return the value of a setting, which may be "", or None if it is not set."""
        if name not in self._values:
            return None
        self._unread.discard(name)
        return self._resolve(name, self._values[name]).strip(BLANKS)

    def get(self, name: str) -> str | None:
        """Return the value of a setting, or None if it is not set or ""."""
        return self.text(name) or None

    def first(self, *names: str) -> tuple[str, str | None]:
        """Return the first of these settings that has a value, with the value.

        The settings after it stay unread. If none has a value, return the first name and None.
        """
        for name in names:
            if value := self.get(name):
                return name, value
        return names[0], None

    def is_shown(self, name: str) -> bool:
        """Return True if an error may quote this setting, because its value has no secret."""
        return _REFERENCE_START not in self._values[name] and _is_harmless(self._values[name])

    def shown(self, name: str) -> str:
        """Return a setting's value for an error text, unless it may be secret. References are unresolved."""
        value = self._values[name].strip(BLANKS)
        return repr(value) if _is_harmless(value) else "its value (not shown)"

    @property
    def unused(self) -> list[str]:
        """The sorted names of settings that were not read, without names that may be secrets."""
        # An unknown name without a value may be a line of a key.
        return shown_names(name for name in self._unread if self._values[name] or name in KNOWN)


def _is_harmless(value: str) -> bool:
    """Return True if a value is short, and has no text that a secret may have."""
    return len(value) <= _MAX_SHOWN_CHARS and not any(mark in value for mark in _MAY_BE_SECRET)
