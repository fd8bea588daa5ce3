"""`ssl.principal.mapping.rules`: a certificate's distinguished name becomes the name of a principal.

The rules are those of Kafka's SslPrincipalMapper: `DEFAULT`, the name itself, and `RULE:pattern/replacement/`
with `L` or `U` behind it for lower or upper case. The first rule whose pattern matches the whole name
decides. Patterns are Python's regular expressions, which differ from Java's in what few rules use: named
groups, `\\p{...}` and intersections of character classes.
"""

import re
from collections.abc import Callable
from typing import Self

from msgspec import Struct

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
