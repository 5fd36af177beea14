"""A wrong use of a command, for which it ends with exit status 2 as for wrong flags."""


class UsageError(Exception):
    """The message names the flag or the argument: `'--flag': expected X, got Y`."""
