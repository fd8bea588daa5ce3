"""Client files as users have them: what services and operators hand out, and what people wrote by hand.

Names, addresses and secrets are made up. `@` stands for the folder with the certificates of the tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

SECRETS = ("s3cret/Key+1==", "Pa55-of-the-team", "st0re-Passw0rd", "cl1ent-S3cret", "p\u20ac-geheim")
"""The passwords and keys, which no output may have."""
KEY, PASSWORD, STORE, CLIENT, EURO = SECRETS
USER = "us\u00e9r"
PACKAGE = "org.apache.kafka.common.security"
PLAIN = f"{PACKAGE}.plain.PlainLoginModule"
SCRAM = f"{PACKAGE}.scram.ScramLoginModule"
OAUTH = f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule"


@dataclass(frozen=True)
class Accepted:
    """A file that is accepted. `login` has a user and a password, or for tokens the client's id and secret.
    `certificate` is the file with the client's certificate and key, `ca` that of the trusted authority.
    """

    text: str
    protocol: str = "SASL_SSL"
    servers: str = "kafka-1.example:9093"
    mechanism: str | None = None
    login: tuple[str, str] | None = None
    endpoint: str | None = None
    ca: str | None = None
    certificate: str | None = None
    checks_host: bool = True
    unused: tuple[str, ...] = ()
    encoding: str = "iso-8859-1"
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


ACCEPTED = {
    # What people posted, and this project once refused.
    "blank after values": Accepted(
        "security.protocol=PLAINTEXT \nbootstrap.servers=kafka-1.example:9093 \t\n", "PLAINTEXT"
    ),
    "blank after a mechanism": Accepted(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN \n"
        f'sasl.jaas.config={PLAIN} required username="ann" password="{PASSWORD}"; \n'
        "bootstrap.servers=kafka-1.example:9093\n",
        "SASL_PLAINTEXT",
        mechanism="PLAIN",
        login=("ann", PASSWORD),
    ),
    "settings of an admin client": Accepted(
        "bootstrap.servers=kafka-1.example:9093\ndefault.api.timeout.ms=60000\nmetadata.max.age.ms=10000\n"
        "enable.metrics.push=false\n",
        "PLAINTEXT",
        unused=("default.api.timeout.ms", "enable.metrics.push", "metadata.max.age.ms"),
    ),
    "timeouts": Accepted(
        "bootstrap.servers=kafka-1.example:9093\nrequest.timeout.ms=20000\nretry.backoff.ms=500\n",
        "PLAINTEXT",
        unused=("request.timeout.ms", "retry.backoff.ms"),
    ),
    "SASL and TLS beside plain text": Accepted(
        "bootstrap.servers=kafka-1.example:9093\nssl.endpoint.identification.algorithm=\nsasl.mechanism=PLAIN\n",
        "PLAINTEXT",
        unused=("sasl.mechanism", "ssl.endpoint.identification.algorithm"),
    ),
    "settings of another protocol and another mechanism": Accepted(
        "bootstrap.servers=kafka-1.example:9093\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN} required username="ann" password="{PASSWORD}";\nssl.key.password={STORE}\n'
        "sasl.oauthbearer.scope=x\nsasl.oauthbearer.token.endpoint.url=https://id.example/token\n"
        "sasl.login.callback.handler.class=x\nacks=all\n",
        "SASL_PLAINTEXT",
        mechanism="PLAIN",
        login=("ann", PASSWORD),
        unused=(
            "acks",
            "sasl.login.callback.handler.class",
            "sasl.oauthbearer.scope",
            "sasl.oauthbearer.token.endpoint.url",
            "ssl.key.password",
        ),
    ),
    "escaped letters, and an option for Kerberos": Accepted(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN} required username="us\\u00e9r" password="p\\u20ac-geheim" '
        'serviceName="kafka";\nbootstrap.servers=kafka-1.example:9093\n',
        "SASL_PLAINTEXT",
        mechanism="PLAIN",
        login=(USER, EURO),
    ),
    # What services, operators and distributions have.
    "Confluent Cloud, Java": Accepted(
        "# Required for producers, consumers and admin clients\nbootstrap.servers=kafka-1.example:9093\n"
        "security.protocol=SASL_SSL\n"
        f"sasl.jaas.config={PLAIN} required username='CLOUDKEY' password='{KEY}';\n"
        "sasl.mechanism=PLAIN\n# For clients before 2.6\nclient.dns.lookup=use_all_dns_ips\n\n"
        "session.timeout.ms=45000\n\nacks=all\nclient.id=ccloud-java\n\n"
        "schema.registry.url=https://registry.example\nbasic.auth.credentials.source=USER_INFO\n"
        f"basic.auth.user.info=SRKEY:{KEY}\nconfluent.monitoring.interceptor.topic=_monitoring\n",
        mechanism="PLAIN",
        login=("CLOUDKEY", KEY),
        unused=(
            "acks",
            "basic.auth.credentials.source",
            "basic.auth.user.info",
            "client.dns.lookup",
            "client.id",
            "confluent.monitoring.interceptor.topic",
            "schema.registry.url",
            "session.timeout.ms",
        ),
    ),
    "Confluent Cloud, an INI file for librdkafka": Accepted(
        "[default]\nbootstrap.servers=kafka-1.example:9093\nsecurity.protocol=sasl_ssl\nsasl.mechanisms=PLAIN\n"
        f"sasl.username=CLOUDKEY\nsasl.password={KEY}\n\n[consumer]\ngroup.id=py-example\n"
        "# 'earliest' begins at the start\nauto.offset.reset=earliest\n",
        mechanism="PLAIN",
        login=("CLOUDKEY", KEY),
        unused=("auto.offset.reset", "group.id"),
    ),
    "Aiven, PKCS12 stores": Accepted(
        "bootstrap.servers=kafka-1.example:9093\nsecurity.protocol=SSL\nssl.protocol=TLS\n"
        "ssl.keystore.type=PKCS12\nssl.keystore.location=@/client.keystore.p12\n"
        f"ssl.keystore.password={STORE}\nssl.key.password={STORE}\n"
        f"ssl.truststore.type=JKS\nssl.truststore.location=@/client.truststore.jks\n"
        f"ssl.truststore.password={STORE}\n",
        "SSL",
        ca="ca.pem",
        certificate="alice-both.pem",
        unused=("ssl.key.password", "ssl.protocol"),
    ),
    "MSK, SCRAM": Accepted(
        "bootstrap.servers=b-1.orders.a1b2.c3.kafka.eu-west-1.amazonaws.com:9096\n"
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={SCRAM} required \\\n  username="ann" \\\n  password="{PASSWORD}";\n'
        f"ssl.truststore.location=@/client.truststore.jks\nssl.truststore.password={STORE}\n",
        servers="b-1.orders.a1b2.c3.kafka.eu-west-1.amazonaws.com:9096",
        mechanism="SCRAM-SHA-512",
        login=("ann", PASSWORD),
        ca="ca.pem",
    ),
    "Strimzi, TLS": Accepted(
        "bootstrap.servers=my-cluster-kafka-bootstrap.kafka.svc:9093\nsecurity.protocol=SSL\n"
        "config.providers=secrets,env\n"
        "config.providers.secrets.class=org.apache.kafka.common.config.provider.DirectoryConfigProvider\n"
        "config.providers.env.class=io.strimzi.kafka.EnvVarConfigProvider\n"
        "ssl.truststore.type=PKCS12\nssl.truststore.location=@/client.truststore.p12\n"
        "ssl.truststore.password=${secrets:@/cluster-ca:ca.password}\n"
        "ssl.keystore.type=PKCS12\nssl.keystore.location=@/client.keystore.p12\n"
        "ssl.keystore.password=${env:USER_PASSWORD}\n",
        "SSL",
        servers="my-cluster-kafka-bootstrap.kafka.svc:9093",
        ca="ca.pem",
        certificate="alice-both.pem",
        environment=MappingProxyType({"USER_PASSWORD": STORE}),
    ),
    "Strimzi, SCRAM": Accepted(
        "bootstrap.servers=kafka-1.example:9093\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        "config.providers=dir\n"
        "config.providers.dir.class=org.apache.kafka.common.config.provider.DirectoryConfigProvider\n"
        "sasl.jaas.config=${dir:@/my-user:sasl.jaas.config}\n"
        "ssl.truststore.type=PEM\nssl.truststore.certificates=${dir:@:ca.pem}\n",
        mechanism="SCRAM-SHA-512",
        login=("my-user", PASSWORD),
        ca="ca.pem",
    ),
    "Strimzi, OAuth": Accepted(
        "bootstrap.servers=kafka-1.example:9093\nsecurity.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
        f'sasl.jaas.config={OAUTH} required \\\n  oauth.client.id="kafka-client" \\\n'
        f'  oauth.client.secret="{CLIENT}" \\\n'
        '  oauth.token.endpoint.uri="https://sso.example/realms/kafka/protocol/openid-connect/token" \\\n'
        '  oauth.ssl.truststore.location="@/client.truststore.p12" \\\n'
        f'  oauth.ssl.truststore.password="{STORE}";\n'
        "sasl.login.callback.handler.class=io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler\n",
        mechanism="OAUTHBEARER",
        login=("kafka-client", CLIENT),
        endpoint="https://sso.example/realms/kafka/protocol/openid-connect/token",
    ),
    "Redpanda Cloud": Accepted(
        "bootstrap.servers=kafka-1.example:9093\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
        f'sasl.jaas.config={SCRAM} required username="ann" password="{PASSWORD}" ;\n'
        "auto.offset.reset=earliest\nssl.enabled.protocols=TLSv1.2\n",
        mechanism="SCRAM-SHA-256",
        login=("ann", PASSWORD),
        unused=("auto.offset.reset", "ssl.enabled.protocols"),
    ),
    "Event Hubs": Accepted(
        "bootstrap.servers=orders.servicebus.windows.net:9093\nsecurity.protocol=SASL_SSL\n"
        "sasl.mechanism=PLAIN\nrequest.timeout.ms=60000\ngroup.id=$Default\n"
        f'sasl.jaas.config={PLAIN} required username="$ConnectionString" password="Endpoint=sb://orders.'
        f'servicebus.windows.net/;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={KEY}";\n',
        servers="orders.servicebus.windows.net:9093",
        mechanism="PLAIN",
        login=(
            "$ConnectionString",
            "Endpoint=sb://orders.servicebus.windows.net/;SharedAccessKeyName=RootManageSharedAccessKey;"
            f"SharedAccessKey={KEY}",
        ),
        unused=("group.id", "request.timeout.ms"),
    ),
    "Databricks's name of the module": Accepted(
        "bootstrap.servers=kafka-1.example:9093\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config=kafkashaded.{PLAIN} required username="ann" password="{PASSWORD}";\n',
        mechanism="PLAIN",
        login=("ann", PASSWORD),
    ),
    "Heroku, PEM in variables": Accepted(
        "bootstrap.servers=kafka-1.example:9093\nsecurity.protocol=SSL\nssl.ca.pem=${env:KAFKA_TRUSTED_CERT}\n"
        "ssl.certificate.pem=${env:KAFKA_CLIENT_CERT}\nssl.key.pem=${env:KAFKA_CLIENT_CERT_KEY}\n"
        "ssl.endpoint.identification.algorithm=\n",
        "SSL",
        ca="ca.pem",
        certificate="alice-both.pem",
        checks_host=False,
        environment=MappingProxyType(
            {
                "KAFKA_TRUSTED_CERT": "@/ca.pem",
                "KAFKA_CLIENT_CERT": "@/alice.pem",
                "KAFKA_CLIENT_CERT_KEY": "@/alice-traditional-key.pem",
            }
        ),
    ),
    "kcat": Accepted(
        "# ~/.config/kcat.conf\nmetadata.broker.list=kafka-1.example:9093\nsecurity.protocol=ssl\n"
        "ssl.ca.location=@/ca.pem\nssl.certificate.location=@/alice.pem\n"
        f"ssl.key.location=@/alice-encrypted-key.pem\nssl.key.password={STORE}\n"
        "ssl.endpoint.identification.algorithm=none\nstatistics.interval.ms=0\napi.version.request=true\n",
        "SSL",
        ca="ca.pem",
        certificate="alice-both.pem",
        checks_host=False,
        unused=("api.version.request", "statistics.interval.ms"),
    ),
    "librdkafka, tokens": Accepted(
        "bootstrap.servers=kafka-1.example:9093\nsecurity.protocol=SASL_SSL\nsasl.mechanisms=OAUTHBEARER\n"
        "sasl.oauthbearer.method=oidc\nsasl.oauthbearer.client.id=kafka-client\n"
        f"sasl.oauthbearer.client.secret={CLIENT}\n"
        "sasl.oauthbearer.token.endpoint.url=https://login.example/oauth2/v2.0/token\n"
        "sasl.oauthbearer.extensions=logicalCluster=lkc-1,identityPoolId=pool-2\n",
        mechanism="OAUTHBEARER",
        login=("kafka-client", CLIENT),
        endpoint="https://login.example/oauth2/v2.0/token",
    ),
    "the distribution's consumer.properties": Accepted(
        "# list of brokers used for bootstrapping knowledge about the rest of the cluster\n"
        "bootstrap.servers=kafka-1.example:9093\n\n# consumer group id\ngroup.id=test-consumer-group\n\n"
        "#auto.offset.reset=\n",
        "PLAINTEXT",
        unused=("group.id",),
    ),
    "the distribution's producer.properties": Accepted(
        "bootstrap.servers=kafka-1.example:9093\ncompression.type=none\n#partitioner.class=\n#linger.ms=\n",
        "PLAINTEXT",
        unused=("compression.type",),
    ),
    "a worker of Connect": Accepted(
        "bootstrap.servers=kafka-1.example:9093\ngroup.id=connect-cluster\n"
        "key.converter=org.apache.kafka.connect.json.JsonConverter\nkey.converter.schemas.enable=true\n"
        "offset.storage.topic=connect-offsets\noffset.flush.interval.ms=10000\nplugin.path=/opt/plugins\n"
        "config.providers=file\n"
        "config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider\n"
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN} required username="${{file:@/connect.credentials:user}}" '
        'password="${file:@/connect.credentials:password}";\n'
        "producer.security.protocol=SASL_SSL\n"
        f'producer.sasl.jaas.config={PLAIN} required username="ann" password="{PASSWORD}";\n'
        "consumer.sasl.mechanism=PLAIN\n",
        mechanism="PLAIN",
        login=("connect", PASSWORD),
        unused=(
            "consumer.sasl.mechanism",
            "group.id",
            "key.converter",
            "key.converter.schemas.enable",
            "offset.flush.interval.ms",
            "offset.storage.topic",
            "plugin.path",
            "producer.sasl.jaas.config",
            "producer.security.protocol",
        ),
    ),
    "Windows, UTF-8": Accepted(
        "bootstrap.servers=kafka-1.example:9093\r\nsecurity.protocol = SASL_SSL\r\nsasl.mechanism : PLAIN\r\n"
        f'sasl.jaas.config={PLAIN} required \\\r\n\tusername="{USER}" \\\r\n\tpassword="{EURO}";\r\n',
        mechanism="PLAIN",
        login=(USER, EURO),
        encoding="utf-8-sig",
    ),
    "Windows, UTF-16": Accepted(
        "bootstrap.servers=kafka-1.example:9093\r\nsecurity.protocol=SASL_SSL\r\nsasl.mechanism=PLAIN\r\n"
        f'sasl.jaas.config={PLAIN} required username="{USER}" password="{EURO}";\r\n',
        mechanism="PLAIN",
        login=(USER, EURO),
        encoding="utf-16",
    ),
    "ISO 8859-1, as Java reads a file": Accepted(
        "bootstrap.servers=kafka-1.example:9093\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN} required username="{USER}" password="{PASSWORD}";\n',
        mechanism="PLAIN",
        login=(USER, PASSWORD),
    ),
    "a user of librdkafka beside JAAS": Accepted(
        "bootstrap.servers=kafka-1.example:9093\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN} required username="ann" password="{PASSWORD}";\n'
        f"sasl.username=bob\nsasl.password={KEY}\n",
        mechanism="PLAIN",
        login=("ann", PASSWORD),
        unused=("sasl.password", "sasl.username"),
    ),
    "empty lines of a template": Accepted(
        "bootstrap.servers=kafka-1.example:9093\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f"sasl.jaas.config=\nsasl.username=ann\nsasl.password={PASSWORD}\nssl.keystore.location=\n"
        "ssl.truststore.location=\n",
        mechanism="PLAIN",
        login=("ann", PASSWORD),
    ),
}
