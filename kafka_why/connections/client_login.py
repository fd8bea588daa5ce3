"""The `sasl.` settings of a client, and their parsing.

The settings have the names of Kafka's clients in Java, or those of librdkafka where the names differ.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from kafka_why.connections.client_tls import TRUSTED, read_tls, read_trusted
from kafka_why.connections.oauth_tokens import IamLogin, TokenLogin, region_of
from kafka_why.connections.used_settings import JAVA_CLASS, ClientConfigError, UsedSettings

# `sasl.jaas.config`: the login module of a client and its options, as Kafka's clients in Java read them.


# As java.io.StreamTokenizer splits the text: comments, texts in quotes, words, and single characters.
_TOKEN = re.compile(
    r"""
    (?P<skip> \s+ | //[^\r\n]* | /\*.*?\*/ )
    | "(?P<double> (?:\\.|[^"\\\r\n])* )"
    | '(?P<single> (?:\\.|[^'\\\r\n])* )'
    | (?P<word> [A-Za-z_$\-\u00a0-\uffff][\w.$\-\u00a0-\uffff]* )
    | (?P<mark> [=;] )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})


class JaasError(ValueError):
    """The error of a text that is not a login by one module.

    Its message does not quote the text, which has a password.
    """


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A login module with its options."""

    name: str  # its class in Java
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(text: str) -> LoginModule:
    """Parse `<module> required <name>="<value>" ...;`. Raises JaasError."""
    tokens = list(_tokens(text))
    if len(tokens) < 2 or not all(is_text for _, is_text in tokens[:2]):
        raise JaasError("it does not begin with a login module and 'required'")
    if tokens[-1] != (";", False):
        raise JaasError("it does not end with ';' (a line that the next one continues ends with a backslash)")
    (name, _), (flag, _), *options = tokens[:-1]
    if flag.lower() not in _FLAGS:
        raise JaasError("the word after the login module is not 'required'")
    if (";", False) in options:
        raise JaasError("it has more than one login module")
    found = {}
    for at in range(0, len(options), 3):
        option = options[at : at + 3]
        if len(option) < 3 or not (option[0][1] and option[1] == ("=", False) and option[2][1]):
            raise JaasError(f'option {at // 3 + 1} of its login module is not NAME="VALUE"')
        found[option[0][0]] = option[2][0]
    return LoginModule(name, found)


def format_jaas(module: LoginModule) -> str:
    """Return the JAAS text of this module."""
    options = "".join(f" {name}={_quoted(value)}" for name, value in module.options.items())
    return f"{module.name} required{options};"


def _tokens(text: str) -> Iterator[tuple[str, bool]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise JaasError(f"character {at + 1} of it is not understood: values belong in quotes")
        at = match.end()
        kind = match.lastgroup
        if kind in ("double", "single"):
            # True for a word or a quoted text, False for `=` or `;`.
            yield _ESCAPE.sub(_unescaped, match[kind]), True
        elif kind in ("word", "mark"):
            yield match[kind], kind == "word"


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPED.get(code, code)


def _quoted(value: str) -> str:
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{text}"'


JAAS = "sasl.jaas.config"
HANDLER = "sasl.login.callback.handler.class"
CLIENT_HANDLER = "sasl.client.callback.handler.class"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
# Kafka 4.1 has these as settings. Older clients have them as options of the login module.
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"  # noqa: S105 - a name
# The first set has the names of Kafka's clients in Java, the second those of librdkafka.

SETTINGS = frozenset(
    {
        "sasl.mechanism",
        "sasl.mechanisms",
        JAAS,
        "sasl.username",
        "sasl.password",
        HANDLER,
        ENDPOINT,
        CLIENT_ID,
        CLIENT_SECRET,
        "sasl.oauthbearer.scope",
    }
    | {
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.extensions",
        "https.ca.location",
        "https.ca.pem",
    }
)
_PACKAGE = "org.apache.kafka.common.security"
_PLAIN_MODULE = f"{_PACKAGE}.plain.PlainLoginModule"
_SCRAM_MODULE = f"{_PACKAGE}.scram.ScramLoginModule"
_OAUTH_MODULE = f"{_PACKAGE}.oauthbearer.OAuthBearerLoginModule"
IAM = "AWS_MSK_IAM"
IAM_PACKAGE = "software.amazon.msk.auth.iam"
MODULES = {
    "PLAIN": _PLAIN_MODULE,
    "SCRAM-SHA-256": _SCRAM_MODULE,
    "SCRAM-SHA-512": _SCRAM_MODULE,
    "OAUTHBEARER": _OAUTH_MODULE,
    IAM: f"{IAM_PACKAGE}.IAMLoginModule",
}
IAM_HANDLER = f"{IAM_PACKAGE}.IAMClientCallbackHandler"
_IAM_TOKEN_HANDLER = f"{IAM_PACKAGE}.IAMOAuthBearerLoginCallbackHandler"
IAM_PROFILE = "awsProfileName"
# The class in Spark's Kafka clients, and the name that older clients have for it.
OAUTH_HANDLER = f"{_PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler"
_OAUTH_HANDLERS = (OAUTH_HANDLER, f"{_PACKAGE}.oauthbearer.secured.OAuthBearerLoginCallbackHandler")
_STRIMZI_HANDLER = "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler"
# The options of Strimzi's handler, and the options of Kafka's own handler with the same meaning.
_STRIMZI = {
    "oauth.client.id": "clientId",
    "oauth.client.secret": "clientSecret",
    "oauth.scope": "scope",
    "oauth.token.endpoint.uri": ENDPOINT,
}
_STRIMZI_TLS = "oauth.ssl."
_STRIMZI_OTHER = ("oauth.access.token", "oauth.refresh.token", "oauth.audience", "oauth.client.assertion")
UNSECURED_SUBJECT = "unsecuredLoginStringClaim_sub"
EXTENSION = "extension_"


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    """A login by PLAIN or SCRAM."""

    user: str
    password: str = field(repr=False)


Login = PasswordLogin | TokenLogin | IamLogin


def read_login(settings: UsedSettings, servers: str) -> tuple[str, Login]:
    """Return the mechanism and the login of the `sasl.` settings. Raises ClientConfigError.

    The name of an MSK broker in `servers` has its region.
    """
    name, mechanism = settings.first("sasl.mechanism", "sasl.mechanisms")
    if mechanism is None or mechanism == "GSSAPI":
        default = "" if mechanism else ", Kafka's default,"
        raise ClientConfigError(
            f"{name}: GSSAPI (Kerberos){default} is not supported. Use {', '.join(MODULES)}, or a client "
            "certificate (security.protocol=SSL)"
        )
    if mechanism not in MODULES:
        raise ClientConfigError(f"{name}: {settings.shown(name)} is not one of {', '.join(MODULES)}")
    handler = settings.get(HANDLER) if mechanism == "OAUTHBEARER" else None
    if mechanism == IAM or handler == _IAM_TOKEN_HANDLER:
        return IAM, _iam_login(settings, servers)
    _check_classes(settings)
    if mechanism == "OAUTHBEARER":
        return mechanism, _token_login(settings, handler)
    return mechanism, _password_login(settings, mechanism)


def _check_classes(settings: UsedSettings) -> None:
    for name in (CLIENT_HANDLER, "sasl.login.class"):
        value = settings.get(name)
        # A class of others would take part in the login.
        if value is not None and not value.startswith("org.apache.kafka."):
            raise ClientConfigError(
                f"{name}: {settings.shown(name)} {JAVA_CLASS}. Give the "
                f"user and the password in {JAAS}, or a token endpoint ({ENDPOINT})"
            )


def _module(settings: UsedSettings, expected: str, mechanism: str) -> LoginModule | None:
    text = settings.get(JAAS)
    if text is None:
        return None
    try:
        module = parse_jaas(text)
    except JaasError as error:
        raise ClientConfigError(f"{JAAS}: {error}") from None
    # Some systems shade Kafka's clients, so that a prefix is before the module's name.
    if not f".{module.name}".endswith(f".{expected}"):
        raise ClientConfigError(f"{JAAS}: the login module of {mechanism} is {expected}")
    return module


def _password_login(settings: UsedSettings, mechanism: str) -> PasswordLogin:
    module = _module(settings, MODULES[mechanism], mechanism)
    if module is None:
        user, password = settings.get("sasl.username"), settings.get("sasl.password")
        if user is None or password is None:
            raise ClientConfigError(
                f"sasl.mechanism={mechanism} needs {JAAS}, or sasl.username and sasl.password"
            )
        return PasswordLogin(user, password)
    if module.options.get("tokenauth", "").lower() == "true":
        raise ClientConfigError(
            f"{JAAS}: tokenauth: a delegation token cannot be used, because not all clients here can log in "
            "with one. Use a user of SCRAM"
        )
    _check_options(module.options, "username", "password")
    return PasswordLogin(module.options["username"], module.options["password"])


def _token_login(settings: UsedSettings, handler: str | None) -> TokenLogin:
    if handler is not None and handler not in (*_OAUTH_HANDLERS, _STRIMZI_HANDLER):
        raise ClientConfigError(
            f"{HANDLER}: {settings.shown(HANDLER)} {JAVA_CLASS}. Leave it "
            f"out, and set {ENDPOINT} with a client's id and secret, or file:///PATH of a token that another "
            "program renews"
        )
    settings.text("sasl.oauthbearer.method")
    module = _module(settings, _OAUTH_MODULE, "OAUTHBEARER")
    options = dict(module.options) if module is not None else {}
    if handler == _STRIMZI_HANDLER:
        options = _from_strimzi(options)
    endpoint = options.get(ENDPOINT) or settings.get(ENDPOINT)
    extensions = tuple(_extensions(settings, options).items())
    if endpoint is None:
        if handler is not None or UNSECURED_SUBJECT not in options:
            raise ClientConfigError(f"sasl.mechanism=OAUTHBEARER needs {ENDPOINT}")
        return TokenLogin(None, subject=options[UNSECURED_SUBJECT], extensions=extensions)
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https", "file") or url.username is not None:
        raise ClientConfigError(f"{ENDPOINT} is not a URL with http, https or file, and without a user")
    if url.scheme == "file":
        return TokenLogin(endpoint, extensions=extensions)
    client = options.get("clientId") or settings.first(CLIENT_ID, "sasl.oauthbearer.client.id")[1]
    secret = options.get("clientSecret") or settings.first(CLIENT_SECRET, "sasl.oauthbearer.client.secret")[1]
    if client is None or secret is None:
        raise ClientConfigError(
            f"{ENDPOINT} needs clientId and clientSecret in {JAAS}, or {CLIENT_ID} and {CLIENT_SECRET}"
        )
    scope = options.get("scope") or settings.get("sasl.oauthbearer.scope")
    trusted = _trusted_for_endpoint(settings, options)
    return TokenLogin(endpoint, client, secret, scope, trusted, extensions=extensions)


def _extensions(settings: UsedSettings, options: Mapping[str, str]) -> dict[str, str]:
    found = {
        name.removeprefix(EXTENSION): value for name, value in options.items() if name.startswith(EXTENSION)
    }
    for item in (settings.get("sasl.oauthbearer.extensions") or "").split(","):
        name, sign, value = item.strip().partition("=")
        if sign:
            found.setdefault(name, value)
    return found


def _trusted_for_endpoint(settings: UsedSettings, options: Mapping[str, str]) -> str | None:
    ssl_options = {name: value for name, value in options.items() if name.startswith("ssl.")}
    if "ssl.truststore.location" in ssl_options or TRUSTED in ssl_options:
        return read_tls(UsedSettings(ssl_options), f"{JAAS}: ").trusted
    # None: this machine's certificates.
    return read_trusted(settings, ("https.ca.location", "https.ca.pem"))[1]


def _from_strimzi(options: Mapping[str, str]) -> dict[str, str]:
    if other := sorted(name for name in options if name.startswith(_STRIMZI_OTHER)):
        raise ClientConfigError(
            f"{JAAS}: {', '.join(other)} needs {_STRIMZI_HANDLER}, a class of Java. Use oauth.client.id and "
            f"oauth.client.secret, or {ENDPOINT}=file:///PATH of a token that another program renews"
        )
    found = {own: options[name] for name, own in _STRIMZI.items() if name in options}
    tls = {
        f"ssl.{name.removeprefix(_STRIMZI_TLS)}": value
        for name, value in options.items()
        if name.startswith(_STRIMZI_TLS)
    }
    extensions = {name: value for name, value in options.items() if name.startswith(EXTENSION)}
    return found | tls | extensions


def _iam_login(settings: UsedSettings, servers: str) -> IamLogin:
    settings.text(HANDLER)
    settings.text(CLIENT_HANDLER)
    name, mechanism = settings.first("sasl.mechanism", "sasl.mechanisms")
    assert mechanism is not None
    module = _module(settings, MODULES[mechanism], mechanism)
    options = module.options if module is not None else {}
    if any(option.startswith("awsRole") for option in options):
        raise ClientConfigError(
            f"{JAAS}: a role (awsRoleArn) is not assumed here. Write the credentials that `aws sts "
            f"assume-role` gives into a profile, and name it by {IAM_PROFILE}"
        )
    region = region_of(servers)
    if region is None:
        raise ClientConfigError(
            f"{name}={mechanism} needs the region of the cluster, which bootstrap.servers does not name: set "
            "AWS_REGION in the environment"
        )
    return IamLogin(region, options.get(IAM_PROFILE))


def _check_options(options: Mapping[str, str], *needed: str) -> None:
    # Unknown options are ignored, as in Java.
    for name in needed:
        if name in options:
            continue
        if typos := difflib.get_close_matches(name, options):
            raise ClientConfigError(f"{JAAS}: {typos[0]}: did you mean {name}?")
        raise ClientConfigError(f"{JAAS}: its {name} is missing")
