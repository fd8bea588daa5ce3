"""Client files that cannot be used, with a part of the sentence that refuses each."""

from tests.unit.kafka_why.client_files import CLIENT, KEY, OAUTH, PASSWORD, PLAIN, SCRAM, STORE

_SASL = "bootstrap.servers=kafka-1.example:9093\nsecurity.protocol=SASL_SSL\n"
_TLS = "bootstrap.servers=kafka-1.example:9093\nsecurity.protocol=SSL\n"
_CERTIFICATE = "-----BEGIN CERTIFICATE-----\\nAAAA\\n-----END CERTIFICATE-----"
REFUSED = {
    "a typo": (
        f'{_SASL}sasl.mechanism=PLAIN\nsasl.jass.config={PLAIN} required username="a" password="{KEY}";\n',
        "sasl.jass.config: no Kafka client has this setting. Did you mean sasl.jaas.config?",
    ),
    "a name as a variable of the environment": (
        f"{_SASL}SASL_MECHANISM=PLAIN\nsasl.username=a\nsasl.password={KEY}\n",
        "SASL_MECHANISM: no Kafka client has this setting. Did you mean sasl.mechanism?",
    ),
    "an unknown protocol": (
        "bootstrap.servers=kafka-1.example:9093\nsecurity.protocol=PLAINTEX\n",
        "security.protocol: 'PLAINTEX' is not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
    ),
    "two lines in one": (
        f"{_SASL}sasl.mechanism=PLAIN sasl.password={KEY}\n",
        "sasl.mechanism: its value (not shown) is not one of PLAIN, SCRAM-SHA-256",
    ),
    "Kerberos": (
        f"{_SASL}sasl.mechanism=GSSAPI\nsasl.kerberos.service.name=kafka\n"
        "sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;\n",
        "sasl.mechanism: GSSAPI (Kerberos) is not supported. Use PLAIN, SCRAM-SHA-256",
    ),
    "no mechanism": (
        f'{_SASL}sasl.jaas.config={PLAIN} required username="a" password="{KEY}";\n',
        "sasl.mechanism: GSSAPI (Kerberos), Kafka's default, is not supported",
    ),
    "Aiven, a JKS store": (
        f"{_TLS}ssl.truststore.location=@/old.jks\nssl.truststore.password={STORE}\n",
        "is a JKS store, which only Java reads: `keytool -importkeystore -srckeystore @/old.jks "
        "-destkeystore @/old.jks.p12 -deststoretype PKCS12`",
    ),
    "a store with another password": (
        f"{_TLS}ssl.truststore.location=@/client.truststore.p12\nssl.truststore.password={PASSWORD}\n",
        "cannot be read: it cannot be read as a PKCS12 store with this password (ssl.truststore.password)",
    ),
    "a store without a key": (
        f"{_TLS}ssl.keystore.location=@/client.truststore.p12\nssl.keystore.password={STORE}\n",
        "ssl.keystore.location: it has no private key",
    ),
    "a key where a path belongs": (
        f"{_TLS}ssl.keystore.location=-----BEGIN PRIVATE KEY-----{KEY}-----END PRIVATE KEY-----\n",
        "ssl.keystore.location is the path of a file, and its value is the text of one",
    ),
    "PEM whose lines do not continue": (
        f"{_TLS}ssl.keystore.certificate.chain=-----BEGIN CERTIFICATE-----\nMIIB{CLIENT}\n"
        f"ssl.keystore.key=-----BEGIN PRIVATE KEY-----\nMIIE{CLIENT}\n-----END PRIVATE KEY-----\n",
        "ssl.keystore.certificate.chain: it has no certificate as PEM: it has no END.",
    ),
    "JAAS whose lines do not continue": (
        f"{_SASL}sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN} required\n"
        f'  username="ann"\n  password="{PASSWORD}";\n',
        "does not end with ';' (a line that the next one continues ends with a backslash)",
    ),
    "a certificate that is not verified": (
        f"{_TLS}enable.ssl.certificate.verification=false\n",
        "Spark's Kafka clients cannot connect without verification. Name the brokers' authority",
    ),
    "Entra ID's handler": (
        f"{_SASL}sasl.mechanism=OAUTHBEARER\nsasl.jaas.config={OAUTH} required;\n"
        "sasl.login.callback.handler.class=com.example.EntraLoginCallbackHandler\n",
        "sasl.login.callback.handler.class: 'com.example.EntraLoginCallbackHandler' is a class of Java",
    ),
    "Strimzi, a refresh token": (
        f'{_SASL}sasl.mechanism=OAUTHBEARER\nsasl.jaas.config={OAUTH} required oauth.refresh.token="{KEY}";\n'
        "sasl.login.callback.handler.class=io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler\n",
        "sasl.jaas.config: oauth.refresh.token needs io.strimzi.kafka.oauth.client",
    ),
    "a delegation token": (
        f'{_SASL}sasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={SCRAM} required username="t" '
        f'password="{KEY}" tokenauth="true";\n',
        "sasl.jaas.config: tokenauth: a delegation token cannot be used",
    ),
    "certificates from a class": (
        f"{_TLS}ssl.engine.factory.class=com.example.VaultSslEngineFactory\n",
        "ssl.engine.factory.class: 'com.example.VaultSslEngineFactory' is a class of Java",
    ),
    "a provider that is a class": (
        "bootstrap.servers=kafka-1.example:9093\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        "config.providers=vault\nconfig.providers.vault.class=com.example.VaultConfigProvider\n"
        f"config.providers.vault.param.token={KEY}\nsasl.username=a\nsasl.password=${{vault:kafka:password}}\n",
        "the provider 'vault' of its value is a class of Java, VaultConfigProvider. Refer to the environment",
    ),
    "a token endpoint with a user": (
        f"{_SASL}sasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url=https://me:{CLIENT}@sso.example\n",
        "sasl.oauthbearer.token.endpoint.url is not a URL with http, https or file, or it has a user",
    ),
    "servers with a user": (
        f"bootstrap.servers=https://me:{CLIENT}@kafka-1.example:9093\n",
        "bootstrap.servers in @/client.properties: its value (not shown) is not HOST:PORT,...",
    ),
    "UTF-16 without a byte order mark": (
        "b\0o\0o\0t\0s\0t\0r\0a\0p\0",
        "cannot be read: it has zero bytes. Save it as UTF-8 or ISO 8859-1",
    ),
    "MSK, a role": (
        f"{_SASL}sasl.mechanism=AWS_MSK_IAM\n"
        "sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required "
        'awsRoleArn="arn:aws:iam::1:role/x";\n',
        "sasl.jaas.config: a role (awsRoleArn) is not assumed here",
    ),
    "servers without a port": (
        "bootstrap.servers=kafka\n",
        "bootstrap.servers in @/client.properties: 'kafka' is not",
    ),
    "no servers": ("security.protocol=SSL\n", "has no bootstrap.servers, and no other servers are given"),
    "a variable that is not set": (
        f"{_TLS}ssl.keystore.key=${{env:NO_SUCH_NAME}}\n",
        "ssl.keystore.key in @/client.properties: env:NO_SUCH_NAME cannot be read: it is not set",
    ),
    "a reference to a file that is not there": (
        f"{_TLS}ssl.keystore.key=${{file:/no/such}}\n",
        "ssl.keystore.key in @/client.properties: file:/no/such cannot be read: No such file",
    ),
    "a typo beside a name that no client of Kafka has": (
        f"{_TLS}ack5=all\nssl.keystore.kye=all\n",
        "properties: ssl.keystore.kye: no Kafka client has this setting. Did you mean ssl.keystore.key?",
    ),
    "half an escape": (f"{_TLS}ssl.key={KEY}\\u12\n", "cannot be read: InvalidUEscapeError"),
    "a mechanism in small letters": (
        f"{_SASL}sasl.mechanism=plain\n",
        "sasl.mechanism: 'plain' is not one of PLAIN, SCRAM-SHA-256, SCRAM",
    ),
    "no login": (
        f"{_SASL}sasl.mechanism=PLAIN\n",
        "sasl.mechanism=PLAIN needs sasl.jaas.config, or sasl.username and sasl.password",
    ),
    "a client's handler": (
        f'{_SASL}sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN} required username="a" password="{KEY}";\n'
        "sasl.client.callback.handler.class=com.example.Handler\n",
        "sasl.client.callback.handler.class: 'com.example.Handler' is a class of Java",
    ),
    "another mechanism's module": (
        f'{_SASL}sasl.mechanism=PLAIN\nsasl.jaas.config={SCRAM} required username="a";\n',
        f"module of PLAIN is {PLAIN}",
    ),
    "a user without a password": (
        f'{_SASL}sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN} required username="a";\n',
        "its password is missing",
    ),
    "a typo in JAAS": (
        f'{_SASL}sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN} required username="a" pasword="{KEY}";\n',
        "sasl.jaas.config: pasword: did you mean password?",
    ),
    "no token endpoint": (
        f"{_SASL}sasl.mechanism=OAUTHBEARER\nsasl.jaas.config={OAUTH} required;\n",
        "needs sasl.oauthbearer.token.endpoint.url",
    ),
    "a client of a token endpoint without a secret": (
        f"{_SASL}sasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url=https://id.example/token\n"
        f'sasl.jaas.config={OAUTH} required clientId="me";\n',
        "needs clientId and clientSecret",
    ),
    "a store that is not there": (
        f"{_TLS}ssl.truststore.location=/no/such\n",
        "ssl.truststore.location: '/no/such' cannot be read: No such",
    ),
    "an authority that is no PEM": (
        f"{_TLS}ssl.truststore.certificates={KEY}\n",
        "ssl.truststore.certificates: it has no certificate as PEM",
    ),
    "an authority that is no certificate": (
        f"{_TLS}ssl.truststore.certificates={_CERTIFICATE}\n",
        "ssl.truststore.certificates: the trusted certificates cannot be used",
    ),
    "a key without its certificate": (
        f"{_TLS}ssl.keystore.key={KEY}\n",
        "ssl.keystore.certificate.chain and ssl.keystore.key belong together",
    ),
    "a certificate without its key": (
        f"{_TLS}ssl.certificate.pem={KEY}\n",
        "ssl.certificate.pem and ssl.key.pem belong together",
    ),
    "a check of host names by LDAP": (
        f"{_TLS}ssl.endpoint.identification.algorithm=ldap\n",
        "'ldap' is not supported. Use https or",
    ),
    "an encrypted key without its password": (
        f"{_TLS}ssl.keystore.location=@/carol-both.pem\n",
        "ssl.keystore.location: the certificate and its key",
    ),
    "an encrypted key with another password": (
        f"{_TLS}ssl.keystore.location=@/carol-both.pem\nssl.key.password={PASSWORD}\n",
        "ssl.keystore.location: the certificate and its key",
    ),
    "a key that Java cannot read": (
        f"{_TLS}ssl.keystore.certificate.chain={_CERTIFICATE}\n"
        f"ssl.keystore.key=-----BEGIN EC PRIVATE KEY-----\\n{KEY}\\n-----END EC PRIVATE KEY-----\n",
        "EC PRIVATE KEY, not PKCS#8",
    ),
}
"""The text of each file, and a part of the sentence that refuses it."""
