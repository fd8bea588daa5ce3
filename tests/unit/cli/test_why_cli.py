"""The command `why`, as far as it needs no broker."""

from click.testing import CliRunner

from cli import main


def test_a_time_that_is_none_is_wrong_usage() -> None:
    result = CliRunner().invoke(
        main, ["why", "g", "--bootstrap-servers", "localhost:1", "--since", "yesterday"]
    )
    assert result.exit_code == 2
    assert "'yesterday' is neither a duration such as 2h nor an ISO time" in result.stderr
