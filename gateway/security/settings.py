"""What a listener demands of its clients, by Kafka's names of a broker's settings.

A file of these settings has the format of Java's properties. Values may refer to the environment and to
files, as in `kafka_why.connections.client_config`.
"""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from gateway.security.mechanisms import PLAIN
from gateway.security.oauthbearer import OAUTHBEARER, TokenSettings
from kafka_why.credentials import HASHES
from kafka_why.numbers import parse_whole_number

# `ssl.principal.mapping.rules`: a certificate's distinguished name becomes the name of a principal.
#
# The rules are those of Kafka's SslPrincipalMapper: `DEFAULT`, the name itself, and
# `RULE:pattern/replacement/` with `L` or `U` behind it for lower or upper case. The first rule whose
# pattern matches the whole name decides. Patterns are Python's regular expressions, which differ from
# Java's in what few rules use: named groups, `\p{...}` and intersections of character classes.


DEFAULT = "DEFAULT"

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(?:.*?)"
_SPLITTER = re.compile(rf"\s*({_RULE})\s*(?:,\s*|$)")
_PARSER = re.compile(_RULE)
_CASES: dict[str, Callable[[str], str]] = {"": str, "L": str.lower, "U": str.upper}


class InvalidRule(ValueError):
    """The mapping rules cannot be used."""


class NoMatchingRule(ValueError):
    """No rule applies to a distinguished name."""


class _Rule(Struct, frozen=True):
    """If `pattern` is None, the rule gives the name itself. `replacement` has text, and numbers of groups."""

    pattern: re.Pattern[str] | None
    replacement: tuple[str | int, ...] = ()
    case: str = ""

    @classmethod
    def of(cls, pattern: str, replacement: str, case: str) -> Self:
        try:
            compiled = re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidRule(f"the pattern {pattern!r} cannot be used: {error}") from error
        return cls(compiled, tuple(_parts(replacement, compiled.groups)), case)

    def apply(self, name: str) -> str | None:
        """The name of the principal, None if the rule does not apply."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        return _CASES[self.case](self.pattern.sub(self._replaced, name))

    def _replaced(self, match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self.replacement)


class PrincipalMapper:
    """The rules of one listener."""

    def __init__(self, rules: str = DEFAULT) -> None:
        """Parse the rules. Raises InvalidRule."""
        self._rules = [found for rule in _SPLITTER.findall(rules.strip()) if (found := _parse(rule[0]))]

    def name_of(self, distinguished_name: str) -> str:
        """The name of the principal. Raises NoMatchingRule."""
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return name
        raise NoMatchingRule("no rule of ssl.principal.mapping.rules applies to the certificate's name")


def _parse(rule: str) -> _Rule | None:
    """Return a rule, None for an empty one, which is ignored. Raises InvalidRule."""
    match = _PARSER.match(rule)
    if match is None or match.end() != len(rule):
        raise InvalidRule(f"{rule!r} is neither DEFAULT nor RULE:pattern/replacement/[L|U]")
    if match[1] is not None:
        return _Rule(None)
    return None if match[2] is None else _Rule.of(match[2], match[3], match[4])


def _parts(replacement: str, groups: int) -> list[str | int]:
    """Cut a replacement as Java does: a backslash makes the next character literal, `$12` is group 12 if
    there are so many, else group 1 and a 2. With `$4` of three groups the text stays. Raises InvalidRule.
    """
    parts: list[str | int] = []
    at = 0
    while at < len(replacement):
        literal, at = replacement[at], at + 1
        if literal == "\\":
            literal, at = replacement[at], at + 1
        elif literal == "$":
            digits = re.compile("[0-9]*").match(replacement, at)
            assert digits is not None
            if not digits[0] or (not groups and digits[0][0] != "0"):
                raise InvalidRule(f"the replacement {replacement!r} has a $ without a group")
            if int(digits[0][0]) <= groups:
                group, at = _group(digits[0], groups, at)
                parts.append(group)
                continue
        parts.append(literal)
    return parts


def _group(digits: str, groups: int, at: int) -> tuple[int, int]:
    """The number of the group with as many digits as there are groups for, and the place behind it."""
    number, used = int(digits[0]), 1
    while used < len(digits) and number * 10 + int(digits[used]) <= groups:
        number, used = number * 10 + int(digits[used]), used + 1
    return number, at + used


MECHANISMS = (PLAIN, *HASHES, OAUTHBEARER)
_MAX_INT = 2**31 - 1


class SecurityError(ValueError):
    """A setting, a certificate, a key, a users file or a JWKS file cannot be used."""


class ClientAuth(StrEnum):
    """`ssl.client.auth`: whether clients show certificates."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class SecuritySettings(Struct, frozen=True, kw_only=True):
    """`keystore`: the certificate of the listeners in PEM, None for plain text. `key`: its key, None if it is
    in the same file. If `mechanisms` is None, they are the mechanisms for which the users and JWKS files have
    entries.
    """

    keystore: Path | None = None
    key: Path | None = None
    key_password: str | None = None
    truststore: Path | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    mapper: PrincipalMapper = PrincipalMapper()
    users: Path | None = None
    jwks: Path | None = None
    mechanisms: tuple[str, ...] | None = None
    tokens: TokenSettings = TokenSettings()
    max_reauth_ms: int = 0

    def __repr__(self) -> str:
        return f"SecuritySettings(keystore={self.keystore}, users={self.users}, jwks={self.jwks})"


def parse(properties: Mapping[str, str], **given: Path | None) -> SecuritySettings:
    """Read the settings by their names. `given` are the files that options of the command name. Raises
    SecurityError, without values.
    """
    found: dict[str, Any] = {name: path for name, path in given.items() if path is not None}
    tokens: dict[str, Any] = {}
    for name, text in properties.items():
        if name not in _PARSERS:
            raise SecurityError(f"{name} is not a setting of the gateway's security")
        field, parser = _PARSERS[name]
        try:
            value = parser(text.strip())
        except ValueError as error:
            raise SecurityError(f"{name}: {error}") from error
        if field in found:
            raise SecurityError(f"{name} and an option of the command name the same file")
        if field is not None:
            (tokens if field in TokenSettings.__struct_fields__ else found)[field] = value
    return _checked(SecuritySettings(**found, tokens=TokenSettings(**tokens)))


def _checked(settings: SecuritySettings) -> SecuritySettings:
    """Return the settings. Raises SecurityError if they do not fit each other."""
    if settings.key is not None and settings.keystore is None:
        raise SecurityError("a TLS key needs its certificate")
    if settings.client_auth is not ClientAuth.NONE and settings.keystore is None:
        raise SecurityError("ssl.client.auth needs ssl.keystore.location, because it is a part of TLS")
    if settings.client_auth is not ClientAuth.NONE and settings.truststore is None:
        raise SecurityError(
            "ssl.client.auth needs ssl.truststore.location, the CAs of the clients' certificates"
        )
    for mechanism in settings.mechanisms or ():
        if mechanism == OAUTHBEARER and settings.jwks is None:
            raise SecurityError("OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url")
        if mechanism != OAUTHBEARER and settings.users is None:
            raise SecurityError(f"{mechanism} needs a users file")
    return settings


def _pem(text: str) -> None:
    if text.upper() != "PEM":
        raise ValueError("only PEM can be read")


def _mapper(text: str) -> PrincipalMapper:
    try:
        return PrincipalMapper(text)
    except InvalidRule as error:
        raise ValueError(str(error)) from error


def _mechanisms(text: str) -> tuple[str, ...]:
    names = _list(text)
    if not names or not set(names) <= set(MECHANISMS):
        raise ValueError(f"needs one or more of {', '.join(MECHANISMS)}")
    return names


def _list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _file_of_url(text: str) -> Path:
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise ValueError("file:///PATH is needed, because the gateway reads keys from a file")
    return Path(unquote(parts.path))


def _at_most(limit: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        try:
            return parse_whole_number(text, 0, limit)
        except ValueError:
            raise ValueError(f"needs a number from 0 to {limit}") from None

    return number


def _client_auth(text: str) -> ClientAuth:
    try:
        return ClientAuth(text.lower())
    except ValueError:
        raise ValueError(f"is one of {', '.join(ClientAuth)}") from None


# Kafka's names: the field of SecuritySettings or TokenSettings, and how the text is read.
_PARSERS: Mapping[str, tuple[str | None, Callable[[str], Any]]] = {
    "ssl.keystore.location": ("keystore", Path),
    "ssl.keystore.type": (None, _pem),
    "ssl.key.password": ("key_password", str),
    "ssl.truststore.location": ("truststore", Path),
    "ssl.truststore.type": (None, _pem),
    "ssl.client.auth": ("client_auth", _client_auth),
    "ssl.principal.mapping.rules": ("mapper", _mapper),
    "sasl.enabled.mechanisms": ("mechanisms", _mechanisms),
    "connections.max.reauth.ms": ("max_reauth_ms", _at_most(2**63 - 1)),
    "sasl.oauthbearer.jwks.endpoint.url": ("jwks", _file_of_url),
    "sasl.oauthbearer.expected.issuer": ("issuer", str),
    "sasl.oauthbearer.expected.audience": ("audience", _list),
    "sasl.oauthbearer.scope.claim.name": ("scope_claim_name", str),
    "sasl.oauthbearer.sub.claim.name": ("sub_claim_name", str),
    "sasl.oauthbearer.clock.skew.seconds": ("clock_skew_s", _at_most(_MAX_INT)),
}
