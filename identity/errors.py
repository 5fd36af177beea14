"""Why an RPC is refused because of who sends it. `glimpse.server.rpc.errors` maps these to statuses."""


class AccessError(Exception):
    """The caller may not do this, or not now."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.message = message
        """For the client."""
        self.reason = reason
        """A stable code, in lower case."""


class UnauthenticatedError(AccessError):
    """The request has no credential, or one that is not valid."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "invalid_credential")


class PermissionDeniedError(AccessError):
    """The credential is valid, but does not allow this."""


class QuotaExceededError(AccessError):
    """The caller's tenant has used up a quota; the same request succeeds later."""

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message, "rate_limit_exceeded")
        self.retry_after_seconds = retry_after_seconds


class IdentityConfigError(Exception):
    """A file that says who may call, or a certificate, cannot be used. The message is for the operator."""
