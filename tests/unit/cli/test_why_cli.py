"""The command `why` itself, as far as no broker is needed."""

from click.testing import CliRunner

from cli import main


def test_a_time_that_is_none_is_wrong_usage() -> None:
    told = CliRunner().invoke(
        main, ["why", "g", "--bootstrap-servers", "localhost:1", "--since", "yesterday"]
    )
    assert told.exit_code == 2
    assert "'yesterday' is neither a duration such as 2h nor an ISO time" in told.stderr


def test_a_group_has_to_be_named() -> None:
    told = CliRunner().invoke(main, ["why", "--bootstrap-servers", "localhost:1"])
    assert told.exit_code == 2
    assert "GROUP" in told.stderr
