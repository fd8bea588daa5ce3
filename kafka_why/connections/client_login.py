"""The `sasl.` settings of a client, and their parsing.

The settings have the names of Kafka's clients in Java, or those of librdkafka where the names differ.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
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
_ESCAPE = re.compile(r"\\(?P<code>[0-3]?[0-7]{1,2}|.)", re.DOTALL)  # an octal number or one character
_ESCAPED_CHARACTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})


class _Token(NamedTuple):
    """A token of a JAAS text."""

    text: str  # without quotes and escapes
    is_mark: bool  # `=` or `;` outside of quotes


_EQUALS, _END = _Token("=", is_mark=True), _Token(";", is_mark=True)


class JaasError(ValueError):
    """The error when a `sasl.jaas.config` is not exactly one login module.

    Its message does not quote the text, because that has a password.
    """


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A login module with its options."""

    name: str  # its class in Java
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(text: str) -> LoginModule:
    """Parse `<module> required <name>="<value>" ...;`. Raises JaasError."""
    tokens = list(_tokens(text))
    if len(tokens) < 2 or tokens[0].is_mark or tokens[1].is_mark:
        raise JaasError("it does not begin with a login module and 'required'")
    if tokens[-1] != _END:
        raise JaasError("it does not end with ';' (a line that the next one continues ends with a backslash)")
    name, flag, *options = tokens[:-1]
    if flag.text.lower() not in _FLAGS:
        raise JaasError("the word after the login module is not 'required'")
    if _END in options:
        raise JaasError("it has more than one login module")
    values = {}
    for start in range(0, len(options), 3):  # an option has three tokens
        option = options[start : start + 3]
        if len(option) < 3 or option[0].is_mark or option[1] != _EQUALS or option[2].is_mark:
            raise JaasError(f'option {start // 3 + 1} of its login module is not NAME="VALUE"')
        values[option[0].text] = option[2].text
    return LoginModule(name.text, values)


def format_jaas(module: LoginModule) -> str:
    """Return the JAAS text of this module."""
    options = "".join(f" {name}={_quote(value)}" for name, value in module.options.items())
    return f"{module.name} required{options};"


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise JaasError(f"character {at + 1} of it is not understood: values belong in quotes")
        at = match.end()
        kind = match.lastgroup
        if kind in ("double", "single"):
            yield _Token(_ESCAPE.sub(_unescape, match[kind]), is_mark=False)
        elif kind in ("word", "mark"):
            yield _Token(match[kind], is_mark=kind == "mark")


def _unescape(escape: re.Match[str]) -> str:
    code = escape["code"]
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPED_CHARACTERS.get(code, code)


def _quote(value: str) -> str:
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
_STRIMZI_OPTIONS = {
    "oauth.client.id": "clientId",
    "oauth.client.secret": "clientSecret",
    "oauth.scope": "scope",
    "oauth.token.endpoint.uri": ENDPOINT,
}
_STRIMZI_TLS_PREFIX = "oauth.ssl."
# Prefixes of options of Strimzi's handler that have no equivalent.
_STRIMZI_UNSUPPORTED = (
    "oauth.access.token",
    "oauth.refresh.token",
    "oauth.audience",
    "oauth.client.assertion",
)
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

    A login by IAM takes the region from the name of an MSK broker in `servers`.
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
    """Raise ClientConfigError if a class that is not Kafka's own takes part in the login."""
    for name in (CLIENT_HANDLER, "sasl.login.class"):
        value = settings.get(name)
        if value is not None and not value.startswith("org.apache.kafka."):
            raise ClientConfigError(
                f"{name}: {settings.shown(name)} {JAVA_CLASS}. Give the "
                f"user and the password in {JAAS}, or a token endpoint ({ENDPOINT})"
            )


def _login_module(settings: UsedSettings, expected: str, mechanism: str) -> LoginModule | None:
    """Return the login module in `sasl.jaas.config`, or None if it is not set. Raises ClientConfigError."""
    text = settings.get(JAAS)
    if text is None:
        return None
    try:
        module = parse_jaas(text)
    except JaasError as error:
        raise ClientConfigError(f"{JAAS}: {error}") from None
    # A system that shades Kafka's clients puts a prefix before the module's name.
    if module.name != expected and not module.name.endswith(f".{expected}"):
        raise ClientConfigError(f"{JAAS}: the login module of {mechanism} is {expected}")
    return module


def _password_login(settings: UsedSettings, mechanism: str) -> PasswordLogin:
    module = _login_module(settings, MODULES[mechanism], mechanism)
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
    settings.text("sasl.oauthbearer.method")  # counts as used, although the endpoint shows the method
    module = _login_module(settings, _OAUTH_MODULE, "OAUTHBEARER")
    options = dict(module.options) if module is not None else {}
    if handler == _STRIMZI_HANDLER:
        options = _convert_strimzi_options(options)
    endpoint = options.get(ENDPOINT) or settings.get(ENDPOINT)
    extensions = tuple(_extensions(settings, options).items())
    if endpoint is None:
        if handler is not None or UNSECURED_SUBJECT not in options:
            raise ClientConfigError(f"sasl.mechanism=OAUTHBEARER needs {ENDPOINT}")
        return TokenLogin(None, subject=options[UNSECURED_SUBJECT], extensions=extensions)
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https", "file") or url.username is not None:
        raise ClientConfigError(f"{ENDPOINT} is not a URL with http, https or file, or it has a user")
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
    """Return the extensions from the login module's options, and from the setting for further names."""
    extensions = {
        name.removeprefix(EXTENSION): value for name, value in options.items() if name.startswith(EXTENSION)
    }
    for item in (settings.get("sasl.oauthbearer.extensions") or "").split(","):
        name, sign, value = item.strip().partition("=")
        if sign:
            extensions.setdefault(name, value)
    return extensions


def _trusted_for_endpoint(settings: UsedSettings, options: Mapping[str, str]) -> str | None:
    """Return the certificates that verify the token endpoint, or None for those of this machine."""
    ssl_options = {name: value for name, value in options.items() if name.startswith("ssl.")}
    if "ssl.truststore.location" in ssl_options or TRUSTED in ssl_options:
        return read_tls(UsedSettings(ssl_options), f"{JAAS}: ").trusted
    _, trusted = read_trusted(settings, ("https.ca.location", "https.ca.pem"))
    return trusted


def _convert_strimzi_options(options: Mapping[str, str]) -> dict[str, str]:
    """Convert options of Strimzi's handler to those of Kafka's own. Raises ClientConfigError."""
    if names := sorted(name for name in options if name.startswith(_STRIMZI_UNSUPPORTED)):
        raise ClientConfigError(
            f"{JAAS}: {', '.join(names)} needs {_STRIMZI_HANDLER}, a class of Java. Use oauth.client.id and "
            f"oauth.client.secret, or {ENDPOINT}=file:///PATH of a token that another program renews"
        )
    credentials = {
        kafka_name: options[name] for name, kafka_name in _STRIMZI_OPTIONS.items() if name in options
    }
    tls = {
        f"ssl.{name.removeprefix(_STRIMZI_TLS_PREFIX)}": value
        for name, value in options.items()
        if name.startswith(_STRIMZI_TLS_PREFIX)
    }
    extensions = {name: value for name, value in options.items() if name.startswith(EXTENSION)}
    return credentials | tls | extensions


def _iam_login(settings: UsedSettings, servers: str) -> IamLogin:
    # The handlers count as used, although the mechanism decides which ones are used.
    settings.text(HANDLER)
    settings.text(CLIENT_HANDLER)
    name, mechanism = settings.first("sasl.mechanism", "sasl.mechanisms")
    assert mechanism is not None
    module = _login_module(settings, MODULES[mechanism], mechanism)
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


def _check_options(options: Mapping[str, str], *required: str) -> None:
    """Raise ClientConfigError if a required option is missing. Unknown options are ignored, as in Java."""
    for name in required:
        if name in options:
            continue
        if typos := difflib.get_close_matches(name, options):
            raise ClientConfigError(f"{JAAS}: {typos[0]}: did you mean {name}?")
        raise ClientConfigError(f"{JAAS}: its {name} is missing")
