"""`sasl.jaas.config`: the login module of a client and its options, as Kafka's clients in Java read them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

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
    """The text is no login of one module. The message quotes nothing of it, because it has a password."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A module by its class name in Java, with its options."""

    name: str
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(text: str) -> LoginModule:
    """The login of `<module> required <name>="<value>" ...;`. Raises JaasError."""
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
    """The text from which `parse_jaas` makes this module, and Java too."""
    options = "".join(f" {name}={_quoted(value)}" for name, value in module.options.items())
    return f"{module.name} required{options};"


def _tokens(text: str) -> Iterator[tuple[str, bool]]:
    """Each token, and whether it is a word or a text in quotes."""
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise JaasError(f"character {at + 1} of it is not understood: values belong in quotes")
        at = match.end()
        kind = match.lastgroup
        if kind in ("double", "single"):
            yield _ESCAPE.sub(_unescaped, match[kind]), True
        elif kind in ("word", "mark"):
            yield match[kind], kind == "word"


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPED.get(code, code)


def _quoted(value: str) -> str:
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{text}"'
