"""Base classes of the errors that end a command with their message instead of a traceback."""


class UserFacingError(Exception):
    """An error whose message is meant for the user, because it says what is wrong and what to do.

    The message is shown on one line, because it may quote clients.
    """


class MultilineError(UserFacingError):
    """An error whose message keeps its line feeds, because it quotes the end of a log or is a list."""
