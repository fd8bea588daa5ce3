"""`sasl.jaas.config` is read as Java's clients read it, and its errors quote nothing of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.connections.client_login import JaasError, LoginModule, format_jaas, parse_jaas

SECRET = "k3y-0f-the-house"


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
        (f'a.B required n="{SECRET}"', "does not end with ';'"),
        (f'a.B needed n="{SECRET}";', "is not 'required'"),
        (f'a.B required n="{SECRET}" m=;', "option 2 of its login module is not NAME"),
        (f'a.B required n:"{SECRET}";', "character 15 of it is not understood"),
        (f"a.B required n=7{SECRET};", "character 16 of it is not understood: values belong in quotes"),
        (f'a.B required n="{SECRET}\n";', "character 16 of it is not understood"),
        (f'a.B required n="{SECRET}"; c.D required;', "more than one login module"),
    ],
)
def test_invalid_jaas_text_is_rejected_without_its_secret(text: str, why: str) -> None:
    with pytest.raises(JaasError, match=why) as raised:
        parse_jaas(text)
    assert SECRET not in str(raised.value)


@given(st.dictionaries(st.sampled_from(["username", "password", "extension_a"]), st.text()))
def test_formatted_jaas_text_parses_back(options: dict[str, str]) -> None:
    module = LoginModule("a.B", options)
    assert parse_jaas(format_jaas(module)) == module


def test_repr_of_a_login_module_shows_no_options() -> None:
    assert SECRET not in repr(LoginModule("a.B", {"password": SECRET}))
