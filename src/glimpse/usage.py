"""A wrong use of a command, for which it ends as for wrong flags."""

USAGE_STATUS = 2
"""Exit status, as most commands have it: a service manager need not try again."""


class UsageError(Exception):
    """The message names the flag or the argument: `'--flag': expected X, got Y`."""
