"""The name in a client's certificate, and the rules that map it to a principal's name.

The subject is written as Java's X500Principal.getName() writes it (RFC 2253): the order of its parts is the
reverse of the certificate's. Kafka's principals and mapping rules depend on this form.

The rules, `ssl.principal.mapping.rules`, are those of Kafka's SslPrincipalMapper: `DEFAULT`, the name itself,
and `RULE:pattern/replacement/`, followed by `L` or `U` for lower or upper case. The first rule whose pattern
matches the whole name applies. Patterns are Python's regular expressions, which differ from Java's in a few
rarely used features: named groups, `\\p{...}` and intersections of character classes.
"""

import re
from collections.abc import Callable
from typing import Self

from cryptography import x509
from cryptography.x509.oid import NameOID
from msgspec import Struct

# The keywords of RFC 2253. Other types of attributes are written as numbers, and their values as bytes.
_KEYWORDS = {
    NameOID.COMMON_NAME: "CN",
    NameOID.COUNTRY_NAME: "C",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}
_ESCAPED = frozenset(',=+<>#;"\\')
_OBJECT_IDENTIFIER = 0x06


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate in DER as text. Raises ValueError."""
    return name_text(x509.load_der_x509_certificate(certificate).subject)


def name_text(name: x509.Name) -> str:
    """Return a name as text, such as `CN=ann,OU=readers,O=Example`."""
    return ",".join("+".join(map(_attribute, part)) for part in reversed(name.rdns))


def _attribute(attribute: x509.NameAttribute[str | bytes]) -> str:
    """Return an attribute as `KEYWORD=value`, or with a value in hexadecimal DER."""
    keyword, value = _KEYWORDS.get(attribute.oid), attribute.value
    if keyword is None or not isinstance(value, str):
        return f"{keyword or attribute.oid.dotted_string}=#{_encoded_value(attribute).hex()}"
    return f"{keyword}={_escaped(value)}"


def _escaped(value: str) -> str:
    """Return an attribute's value with a backslash before special characters, and before spaces at both
    ends.
    """
    text = "".join("\\00" if char == "\0" else f"\\{char}" if char in _ESCAPED else char for char in value)
    inner = text.strip(" ")
    leading = len(text) - len(text.lstrip(" "))
    trailing = len(text) - len(text.rstrip(" ")) if inner else 0  # a text of spaces has only leading ones
    return "\\ " * leading + inner + "\\ " * trailing


def _encoded_value(attribute: x509.NameAttribute[str | bytes]) -> bytes:
    """Return the value in DER: the element after the attribute's type."""
    # Nested elements enclose the type, which is an object identifier.
    rest = x509.Name([attribute]).public_bytes()
    while rest[0] != _OBJECT_IDENTIFIER:
        rest = rest[_content_at(rest) :]
    type_bytes = rest[1]
    return rest[_content_at(rest) + type_bytes :]


def _content_at(der: bytes) -> int:
    """Return the offset of the content of the first element, after its tag and its size."""
    return 2 if der[1] < 0x80 else 2 + (der[1] & 0x7F)


DEFAULT = "DEFAULT"

# As in SslPrincipalMapper. The last alternative matches any other text, so that an error can quote it.
_RULE = (
    r"(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?).*?"
    r"|(?:.*?)"
)
_SPLITTER = re.compile(rf"\s*(?P<rule>{_RULE})\s*(?:,\s*|$)")
_PARSER = re.compile(_RULE)
_DIGITS = re.compile("[0-9]+")
_CASES: dict[str, Callable[[str], str]] = {"": str, "L": str.lower, "U": str.upper}


class NoMatchingRule(ValueError):
    """No rule applies to a distinguished name."""


class _Rule(Struct, frozen=True):
    """A rule. `replacement` has texts, and numbers of the pattern's groups."""

    pattern: re.Pattern[str] | None  # None: the rule returns the name itself
    replacement: tuple[str | int, ...] = ()
    case: str = ""

    @classmethod
    def of(cls, pattern: str, replacement: str, case: str) -> Self:
        try:
            compiled = re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"the pattern {pattern!r} cannot be used: {error}") from error
        return cls(compiled, tuple(_parts(replacement, compiled.groups)), case)

    def apply(self, name: str) -> str | None:
        """Return the name of the principal, or None if the rule does not apply."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        return _CASES[self.case](self.pattern.sub(self._replaced, name))

    def _replaced(self, match: re.Match[str]) -> str:
        """Return the replacement for a match. A group that does not take part is empty."""
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self.replacement)


class PrincipalMapper:
    """The mapping rules of one listener."""

    def __init__(self, rules: str = DEFAULT) -> None:
        """Parse the rules. Raises ValueError."""
        texts = [match["rule"] for match in _SPLITTER.finditer(rules.strip())]
        self._rules = [rule for rule in map(_parse, texts) if rule is not None]

    def name_of(self, distinguished_name: str) -> str:
        """Return the name of the principal. Raises NoMatchingRule."""
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return name
        raise NoMatchingRule("no rule of ssl.principal.mapping.rules applies to the certificate's name")


def _parse(rule: str) -> _Rule | None:
    """Parse a rule. Return None for an empty rule, which is ignored. Raises ValueError."""
    match = _PARSER.match(rule)
    if match is None or match.end() != len(rule):
        raise ValueError(f"{rule!r} is neither DEFAULT nor RULE:pattern/replacement/[L|U]")
    if match["default"] is not None:
        return _Rule(pattern=None)
    if match["pattern"] is None:
        return None
    return _Rule.of(match["pattern"], match["replacement"], match["case"])


def _parts(replacement: str, groups: int) -> list[str | int]:
    """Split a replacement into texts and numbers of groups, as Java does. `groups` is the number of groups in
    the pattern. Raises ValueError.

    A backslash makes the next character literal. `$12` is group 12 if there are 12 groups, else group 1
    followed by a 2. With three groups `$4` stays text.
    """
    parts: list[str | int] = []
    at = 0
    while at < len(replacement):
        literal, at = replacement[at], at + 1
        if literal == "\\":
            literal, at = replacement[at], at + 1
        elif literal == "$":
            match = _DIGITS.match(replacement, at)
            digits = "" if match is None else match[0]
            if not digits or (not groups and digits[0] != "0"):
                raise ValueError(f"the replacement {replacement!r} has a $ without a group")
            if int(digits[0]) <= groups:
                group, at = _group(digits, groups, at)
                parts.append(group)
                continue
        parts.append(literal)
    return parts


def _group(digits: str, groups: int, at: int) -> tuple[int, int]:
    """Return the largest existing group whose number begins here, and the offset after it."""
    number, length = int(digits[0]), 1
    while length < len(digits) and number * 10 + int(digits[length]) <= groups:
        number, length = number * 10 + int(digits[length]), length + 1
    return number, at + length
