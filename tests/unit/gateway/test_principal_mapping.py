"""`ssl.principal.mapping.rules`, and the names that the rules are applied to.

Kafka's SslPrincipalMapper and Java's X500Principal give the same: tests/slow/test_principals_java.py.
"""

from contextlib import suppress

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from gateway.security.certificate_names import InvalidRule, NoMatchingRule, PrincipalMapper, name_text
from tests.harness.principals import CASES, NAMES, Attributes, request_of


@pytest.mark.parametrize(("rules", "name", "principal"), CASES)
def test_a_rule_maps_a_name(rules: str, name: str, principal: str | None) -> None:
    if principal is not None:
        assert PrincipalMapper(rules).name_of(name) == principal
        return
    with pytest.raises(NoMatchingRule):
        PrincipalMapper(rules).name_of(name)


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAULT/L",
        "RULE:^CN=(.*?),.*$/$1",
        "rule:^CN=(.*?),.*$/$1/",
        "RULE:^CN=(.*?),.*$/$1/L/U",
        "RULE:^CN=(.*?),.*$/L",
        "RULE:^CN=(.*?),.*$/$1/X",
        "RULE:(/x/",
        "RULE:x/$1/",
        "RULE:(x)/$/",
        "DEFAULT,nonsense",
    ],
)
def test_a_rule_that_cannot_be_used_is_named(rules: str) -> None:
    with pytest.raises(InvalidRule):
        PrincipalMapper(rules)


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_is_a_rule_or_is_refused(rules: str, name: str) -> None:
    with suppress(InvalidRule, NoMatchingRule):
        PrincipalMapper(rules).name_of(name)


@pytest.mark.parametrize(("attributes", "text"), NAMES)
def test_a_name_is_written_as_java_writes_it(attributes: Attributes, text: str) -> None:
    assert name_text(x509.load_der_x509_csr(request_of(attributes)).subject) == text
