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
def test_mapping_rule_translates_a_certificate_name(rules: str, name: str, principal: str | None) -> None:
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
def test_unusable_mapping_rule_is_named_in_the_error(rules: str) -> None:
    with pytest.raises(InvalidRule):
        PrincipalMapper(rules)


@given(st.text(max_size=40), st.text(max_size=40))
def test_mapping_rule_of_any_text_parses_or_is_refused(rules: str, name: str) -> None:
    with suppress(InvalidRule, NoMatchingRule):
        PrincipalMapper(rules).name_of(name)


@pytest.mark.parametrize(("attributes", "text"), NAMES)
def test_certificate_name_is_formatted_as_by_java(attributes: Attributes, text: str) -> None:
    assert name_text(x509.load_der_x509_csr(request_of(attributes)).subject) == text
