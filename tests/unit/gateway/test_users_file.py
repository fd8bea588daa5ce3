"""The users file, and `group-coordinator gateway-user`, which makes its entries."""

import base64

import pytest
from click.testing import CliRunner

from cli.gateway import gateway_user
from kafka_why.credentials import InvalidEntry, ScramCredential, Users

KEY = base64.b64encode(bytes(32)).decode()
# RFC 7677, section 3: user `user` with the password `pencil`.
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
STORED = "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
SERVER = "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


def test_password_is_the_rest_of_the_line_after_the_first_colon() -> None:
    users = Users(["# people", "", "ann:sec:ret", "bob: zażółć ", "eve:a SCRAM-SHA-256"])
    assert users.has_password("ann", b"sec:ret")
    assert users.has_password("bob", " zażółć ".encode())
    assert users.has_password("eve", b"a SCRAM-SHA-256")
    assert users.mechanisms == ("PLAIN",)
    for name, password in (("ann", b""), ("ann", b"sec"), ("nobody", b""), ("nobody", b"sec:ret"), ("", b"")):
        assert not users.has_password(name, password)


def test_scram_entry_equals_what_kafka_stores() -> None:
    text = f"salt={SALT},stored_key={STORED},server_key={SERVER},iterations=4096"
    users = Users([f"user:SCRAM-SHA-256=[{text}]", "user:pencil"])
    credential, is_known = users.credential("SCRAM-SHA-256", "user")
    assert is_known
    assert credential.entry("SCRAM-SHA-256") == f"SCRAM-SHA-256=[{text}]"
    assert users.mechanisms == ("PLAIN", "SCRAM-SHA-256")
    for secret in (SALT, STORED, SERVER, "pencil"):
        assert secret not in repr(credential) + repr(users)


@pytest.mark.parametrize("options", [[], ["--mechanism", "SCRAM-SHA-256", "--iterations", "16384"]])
def test_command_writes_a_scram_entry(options: list[str]) -> None:
    made = [CliRunner().invoke(gateway_user, ["ann", *options], input="pencil\r\nx\n") for _ in range(2)]
    assert {one.exit_code for one in made} == {0}
    assert made[0].output != made[1].output, "each entry has a salt of its own"
    (mechanism,) = Users(made[0].output.splitlines()).mechanisms
    assert mechanism == (options[1] if options else "SCRAM-SHA-512")
    assert "pencil" not in made[0].output


@pytest.mark.parametrize("name", ["", "a:b", "#ann", "a\nb"])
def test_command_refuses_a_name_that_does_not_fit_a_line(name: str) -> None:
    done = CliRunner().invoke(gateway_user, [name], input="secret\n")
    assert done.exit_code == 1
    assert done.output.startswith("Error: a name ")


def test_the_command_needs_a_password() -> None:
    done = CliRunner().invoke(gateway_user, ["ann"], input="\n")
    assert (done.exit_code, done.output) == (1, "Error: the standard input has no password\n")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("", "has salt, stored_key, server_key, iterations"),
        (f"salt={SALT},stored_key={KEY},server_key={KEY}", "has salt, stored_key"),
        (f"salt={SALT},stored_key={KEY},server_key={KEY},iterations=1,x=1", "has salt, stored_key"),
        (f"salt=#,stored_key={KEY},server_key={KEY},iterations=4096", "have to be base64"),
        (f"salt=ż,stored_key={KEY},server_key={KEY},iterations=4096", "have to be base64"),
        (f"salt=,stored_key={KEY},server_key={KEY},iterations=4096", "has the wrong size"),
        (f"salt={SALT},stored_key={SALT},server_key={KEY},iterations=4096", "has the wrong size"),
        (f"salt={SALT},stored_key={KEY},server_key={KEY},iterations=4095", "4096 to 16384"),
        (f"salt={SALT},stored_key={KEY},server_key={KEY},iterations=16385", "4096 to 16384"),
        (f"salt={SALT},stored_key={KEY},server_key={KEY},iterations={'9' * 5000}", "4096 to 16384"),
        (f"salt={SALT},stored_key={KEY},server_key={KEY},iterations=-1", "4096 to 16384"),
        (f"salt={SALT},stored_key={KEY},server_key={KEY},iterations=٤٠٩٦", "4096 to 16384"),
    ],
)
def test_unusable_entry_is_reported_with_its_line_number(fields: str, why: str) -> None:
    with pytest.raises(InvalidEntry, match=f"line 2: .*{why}") as refused:
        Users(["ann:secret", f"bob:SCRAM-SHA-256=[{fields}]"])
    assert SALT not in str(refused.value)


@pytest.mark.parametrize("damaged", ["{} ", " {}", "{}\r", "{}x"])
def test_damaged_scram_entry_is_not_taken_for_a_password(damaged: str) -> None:
    """Whoever can read the file could use it as one."""
    entry = ScramCredential.of("SCRAM-SHA-256", "x").entry("SCRAM-SHA-256")
    for one in (damaged.format(entry), entry.lower(), entry[:-1], "SCRAM-SHA-256"):
        with pytest.raises(InvalidEntry, match="line 1: a malformed SCRAM entry") as refused:
            Users([f"ann:{one}"])
        assert "stored_key" not in str(refused.value)


@pytest.mark.parametrize(
    "lines",
    [
        ["ann"],
        ["ann:"],
        [":secret"],
        ["ann:secret", "ann:other"],
        [f"ann:{ScramCredential.of('SCRAM-SHA-512', 'x').entry('SCRAM-SHA-512')}"] * 2,
    ],
)
def test_meaningless_lines_of_a_users_file_are_refused(lines: list[str]) -> None:
    with pytest.raises(InvalidEntry, match=f"line {len(lines)}: ") as refused:
        Users(lines)
    assert "secret" not in str(refused.value) and "other" not in str(refused.value)
