"""Users' own client files: what each kind of client makes of them, or the sentence that refuses them.

No secret of them is in a text of ours.
"""

import base64
import pickle
import ssl
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    pkcs12,
)
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kafka_why.cli.parameters import cluster_options
from kafka_why.cli.program import Program
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.client_login import JaasError, LoginModule, format_jaas, parse_jaas
from kafka_why.connections.oauth_tokens import LoginTokens
from kafka_why.connections.used_settings import ClientConfigError
from tests.harness.certificates import Authority
from tests.unit.kafka_why.client_files import ACCEPTED, PACKAGE, PASSWORD, SECRETS, STORE, Accepted
from tests.unit.kafka_why.refused_client_files import REFUSED

LOG = "settings of the client file have no use here"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the stores, keys and secrets that the files name."""
    folder = tmp_path_factory.mktemp("client")
    authority = Authority(folder)
    authority.issue("carol", password=STORE)
    issued = authority.issue("alice")
    key = load_pem_private_key(issued.key.read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    certificate = x509.load_pem_x509_certificate(issued.chain.read_bytes())
    trusted = x509.load_pem_x509_certificate(authority.certificate.read_bytes())
    traditional = PrivateFormat.TraditionalOpenSSL
    (folder / "alice-traditional-key.pem").write_bytes(
        key.private_bytes(Encoding.PEM, traditional, NoEncryption())
    )
    locked = BestAvailableEncryption(STORE.encode())
    (folder / "alice-encrypted-key.pem").write_bytes(key.private_bytes(Encoding.PEM, traditional, locked))
    own = pkcs12.serialize_key_and_certificates(b"alice", key, certificate, None, locked)
    (folder / "client.keystore.p12").write_bytes(own)
    store = pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(trusted, b"ca")], locked)
    for name in ("client.truststore.p12", "client.truststore.jks"):
        (folder / name).write_bytes(store)
    (folder / "old.jks").write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00\x00")
    (folder / "connect.credentials").write_text(f"user=connect\npassword={PASSWORD}\n")
    for name, text in {
        "cluster-ca/ca.password": f"{STORE}\n",
        "my-user/sasl.jaas.config": f'{PACKAGE}.scram.ScramLoginModule required username="my-user" '
        f'password="{PASSWORD}";\n',
    }.items():
        (folder / name).parent.mkdir()
        (folder / name).write_text(text)
    return folder


@pytest.fixture(autouse=True)
def few_authorities(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's authorities, which take long to read, are those of the tests."""
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))


Write = Callable[[str, str], Path]
Settings = Mapping[str, Any]


@pytest.fixture
def write(folder: Path) -> Iterator[Write]:
    path = folder / "client.properties"

    def write(text: str, encoding: str = "iso-8859-1") -> Path:
        path.write_bytes(text.replace("@/", f"{folder}/").replace("@:", f"{folder}:").encode(encoding))
        return path

    yield write
    path.unlink(missing_ok=True)


def set_environment(case: Accepted, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in case.environment.items():
        of_file = value.startswith("@/")
        monkeypatch.setenv(name, (folder / value[2:]).read_text() if of_file else value)


@pytest.mark.parametrize("case", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted_properties_file_configures_every_client_alike(
    case: Accepted, folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(case, folder, monkeypatch)
    with capture_logs() as logged:
        config = ClientConfig.read(write(case.text, case.encoding))
    assert config.bootstrap_servers == case.servers
    assert [line["names"] for line in logged if line["event"] == LOG] == [list(case.unused)] * bool(
        case.unused
    )
    java = config.java_settings()
    settings = (config.kafka_python_settings(), config.librdkafka_settings(), java)
    _check_protocol_and_login(case, *settings)
    if case.protocol.endswith("SSL"):
        _check_tls(case, folder, *settings)
    assert ClientConfig(case.servers, config.properties).java_settings() == java, "executors are given it"
    assert str(folder) not in str(java), "executors have no files"


def _check_protocol_and_login(case: Accepted, python: Settings, librdkafka: Settings, java: Settings) -> None:
    assert python["security_protocol"] == java["security.protocol"] == case.protocol
    assert librdkafka["security.protocol"] == case.protocol.lower()
    mechanisms = (python.get("sasl_mechanism"), librdkafka.get("sasl.mechanism"), java.get("sasl.mechanism"))
    assert mechanisms == (case.mechanism,) * 3
    if case.login is None:
        return
    options = dict(parse_jaas(java["sasl.jaas.config"]).options)
    if case.endpoint is not None:
        assert (options["clientId"], options["clientSecret"]) == case.login
        assert java["sasl.oauthbearer.token.endpoint.url"] == case.endpoint
        assert isinstance(python["sasl_oauth_token_provider"], LoginTokens)
        assert callable(librdkafka["oauth_cb"])
        return
    assert (options["username"], options["password"]) == case.login
    assert (python["sasl_plain_username"], python["sasl_plain_password"]) == case.login
    assert (librdkafka["sasl.username"], librdkafka["sasl.password"]) == case.login


def _check_tls(case: Accepted, folder: Path, python: Settings, librdkafka: Settings, java: Settings) -> None:
    context = python["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    assert context.check_hostname == python["ssl_check_hostname"] == case.checks_host
    assert librdkafka["ssl.endpoint.identification.algorithm"] == ("https" if case.checks_host else "none")
    assert java["ssl.endpoint.identification.algorithm"] == ("https" if case.checks_host else "")
    ca = None if case.ca is None else (folder / case.ca).read_text()
    assert librdkafka.get("ssl.ca.pem") == java.get("ssl.truststore.certificates") == ca
    if ca is not None:
        assert len(context.get_ca_certs()) == 1
    key = librdkafka.get("ssl.key.pem")
    assert key == java.get("ssl.keystore.key")
    if case.certificate is not None:
        chain = (folder / "alice.pem").read_text()
        assert librdkafka["ssl.certificate.pem"] == java["ssl.keystore.certificate.chain"] == chain
        assert key is not None and "BEGIN PRIVATE KEY" in key
        assert _public(key) == _public((folder / case.certificate).read_text())
        assert "ssl.key.password" not in java, "Java takes a password of encrypted keys only"


def _public(key: str) -> bytes:
    public = load_pem_private_key(key.encode(), None).public_key()
    return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def test_extensions_of_librdkafka_are_sent_with_tokens(write: Write) -> None:
    config = ClientConfig.read(write(ACCEPTED["librdkafka, tokens"].text, "utf-8"))
    provider = config.kafka_python_settings()["sasl_oauth_token_provider"]
    assert provider.extensions() == {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"}


def test_scram_user_is_escaped_for_clients_that_do_not_escape_it() -> None:
    login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "a=b,c", "sasl.password": PASSWORD}
    config = ClientConfig("kafka:9092", {"security.protocol": "SASL_PLAINTEXT", **login})
    assert config.kafka_python_settings()["sasl_plain_username"] == "a=3Db=2Cc"
    assert config.librdkafka_settings()["sasl.username"] == "a=b,c"


def test_client_config_is_pickled_and_hashed_by_its_value() -> None:
    config = ClientConfig("kafka:9092", {"ssl.key.password": STORE})
    copy = pickle.loads(pickle.dumps(config))
    assert (copy, hash(copy)) == (config, hash(config))


def test_log_names_the_login_in_use_if_a_file_has_two(write: Write) -> None:
    with capture_logs() as logged:
        ClientConfig.read(write(ACCEPTED["a user of librdkafka beside JAAS"].text, "utf-8"))
    assert [(line["names"], line["login_by"]) for line in logged] == [
        (["sasl.password", "sasl.username"], "sasl.jaas.config")
    ]


def test_security_settings_without_effect_are_a_warning(write: Write) -> None:
    with capture_logs() as logged:
        ClientConfig.read(write(ACCEPTED["SASL and TLS beside plain text"].text, "utf-8"))
        ClientConfig.read(write(ACCEPTED["timeouts"].text, "utf-8"))
    assert [(line["log_level"], line["protocol"]) for line in logged] == [
        ("warning", "PLAINTEXT"),
        ("info", "PLAINTEXT"),
    ]


@pytest.mark.parametrize(("text", "why"), REFUSED.values(), ids=REFUSED)
def test_error_of_a_refused_file_tells_how_to_fix_it(text: str, why: str, folder: Path, write: Write) -> None:
    with pytest.raises(ClientConfigError) as raised:
        ClientConfig.read(write(text, "iso-8859-1"))
    assert why.replace("@/", f"{folder}/") in str(raised.value)
    assert "client.properties" in str(raised.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClientConfigError, match=r"settings in .*none cannot be read: No such file"):
        ClientConfig.read(tmp_path / "none")


MUTATIONS: dict[str, Callable[[list[str]], Iterator[list[str]]]] = {
    "as it is": lambda lines: iter([lines]),
    "without a line": lambda lines: (lines[:at] + lines[at + 1 :] for at in range(len(lines))),
    "two lines in one": lambda lines: (
        [*lines[:at], lines[at] + " " + lines[at + 1], *lines[at + 2 :]] for at in range(len(lines) - 1)
    ),
    "without quotes": lambda lines: iter([[line.replace('"', "").replace("'", "") for line in lines]]),
    "with one quote less": lambda lines: iter([[line.replace('"', "", 3) for line in lines]]),
    "without continuation": lambda lines: iter([[line.rstrip("\\\r") for line in lines]]),
    "without names": lambda lines: iter([[line.partition("=")[2] for line in lines]]),
    # A value that is nothing but a secret is quoted where its name says that it is none.
    "every name is the protocol": lambda lines: (
        ["bootstrap.servers=a:1", f"security.protocol={value}"] for value in _values(lines)
    ),
    "every name is a path": lambda lines: (
        ["bootstrap.servers=a:1", "security.protocol=SSL", f"ssl.truststore.location={value}"]
        for value in _values(lines)
    ),
    "every line is a server": lambda lines: ([f"bootstrap.servers={value}"] for value in _values(lines)),
}


def _values(lines: list[str]) -> list[str]:
    values = [line.partition("=")[2] for line in lines]
    return [value for value in values if value not in SECRETS]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_no_secret_of_a_client_file_is_shown(
    mutation: str, folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [(case.text, case.encoding) for case in ACCEPTED.values()]
    files += [(text, "iso-8859-1") for text, _ in REFUSED.values()]
    for case in ACCEPTED.values():
        set_environment(case, folder, monkeypatch)
    for text, encoding in files:
        for lines in MUTATIONS[mutation](text.split("\n")):
            _check_nothing_shown(write("\n".join(lines), encoding))


def _check_nothing_shown(path: Path) -> None:
    with capture_logs() as logged:
        shown: list[object] = []
        try:
            config = ClientConfig.read(path, None)
            shown += [repr(config), str(config), repr(config._security())]
        except ClientConfigError as error:
            shown += ["".join(traceback.format_exception(error)), *_chain(error)]
    _assert_none_in(f"{shown} {logged}", path)


def _chain(error: BaseException | None) -> Iterator[str]:
    """Yield the text of an error and of all those that it was raised from or after, shown or not."""
    while error is not None:
        yield f"{error!r} {error.args} {vars(error)}"
        error = error.__cause__ or error.__context__


def _assert_none_in(text: str, path: Path) -> None:
    key = (path.parent / "alice-traditional-key.pem").read_text().splitlines()[1]
    for secret in (*SECRETS, key, *(base64.b64encode(secret.encode()).decode() for secret in SECRETS)):
        for part in (secret, secret[: len(secret) // 2 + 2], repr(secret)[1:-1]):
            assert part not in text, f"{part!r} is shown for\n{path.read_bytes()!r}"


@click.command()
@cluster_options()
def shows(client_config: ClientConfig) -> None:
    """Show the settings."""
    click.echo(f"{client_config!r}")


@pytest.mark.parametrize("name", [*ACCEPTED, *REFUSED])
def test_no_secret_is_in_the_output_of_a_command(
    name: str, folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = ACCEPTED.get(name)
    if case is not None:
        set_environment(case, folder, monkeypatch)
    path = write(case.text, case.encoding) if case else write(REFUSED[name][0], "iso-8859-1")
    program = Program("program", commands_at={"shows": f"{__name__}:shows"})
    result = CliRunner().invoke(program, ["shows", "--client-config", str(path)])
    assert result.exit_code == (0 if case else 2)
    assert bool(case and case.unused) == (LOG in result.stderr)
    assert LOG not in result.stdout
    _assert_none_in(result.output, path)


@pytest.mark.parametrize(
    ("text", "module"),
    [
        (
            'a.B required username="x" password="y z";',
            LoginModule("a.B", {"username": "x", "password": "y z"}),
        ),
        ("a.B REQUIRED;", LoginModule("a.B", {})),
        ("a.B required n = 'v' ;\n", LoginModule("a.B", {"n": "v"})),
        ("a.B required n=word-1.x;", LoginModule("a.B", {"n": "word-1.x"})),
        ('a.B\n  required /* not this */ n="v" // nor this\n;', LoginModule("a.B", {"n": "v"})),
        (r'a.B required n="\"\\\t\061=;";', LoginModule("a.B", {"n": '"\\\t1=;'})),
        ('a.B$C required user_alice="x";', LoginModule("a.B$C", {"user_alice": "x"})),
    ],
)
def test_jaas_text_is_parsed(text: str, module: LoginModule) -> None:
    assert parse_jaas(text) == module


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not begin with a login module"),
        (f'a.B required n="{PASSWORD}"', "does not end with ';'"),
        (f'a.B needed n="{PASSWORD}";', "is not 'required'"),
        (f'a.B required n="{PASSWORD}" m=;', "option 2 of its login module is not NAME"),
        (f'a.B required n:"{PASSWORD}";', "character 15 of it is not understood"),
        (f"a.B required n=7{PASSWORD};", "character 16 of it is not understood: values belong in quotes"),
        (f'a.B required n="{PASSWORD}\n";', "character 16 of it is not understood"),
        (f'a.B required n="{PASSWORD}"; c.D required;', "more than one login module"),
    ],
)
def test_invalid_jaas_text_is_rejected_without_its_secret(text: str, why: str) -> None:
    with pytest.raises(JaasError, match=why) as raised:
        parse_jaas(text)
    assert PASSWORD not in str(raised.value)


@given(st.dictionaries(st.sampled_from(["username", "password", "extension_a"]), st.text()))
def test_formatted_jaas_text_parses_back(options: dict[str, str]) -> None:
    module = LoginModule("a.B", options)
    assert parse_jaas(format_jaas(module)) == module


def test_repr_of_a_login_module_shows_no_options() -> None:
    assert PASSWORD not in repr(LoginModule("a.B", {"password": PASSWORD}))
