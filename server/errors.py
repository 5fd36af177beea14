"""Why a request is not answered. `glimpse.server.rpc.errors` maps these to statuses."""


class InvalidRequest(Exception):  # noqa: N818 - the fault is the request's, not the server's
    """A request that is invalid or not supported."""

    def __init__(self, field: str, message: str, reason: str = "invalid_value") -> None:
        if field and f"'{field}'" not in message:
            message = f"'{field}': {message}"
        # A message may quote half of a surrogate pair, which JSON's escapes can write and protobuf's strings cannot.
        message = message.encode(errors="backslashreplace").decode()
        super().__init__(message)
        self.field = field
        """Proto path of the invalid field, such as "messages[0].content[1].image.source"."""
        self.message = message
        """What is wrong, beginning with the quoted field."""
        self.reason = reason


class ModelNotFoundError(Exception):
    """The request names a model that is not served."""

    def __init__(self, model: str, served: tuple[str, ...]) -> None:
        names = ", ".join(f"'{name}'" for name in served)
        super().__init__(f"The model '{model[:256]}' does not exist. Available: {names}.")


class DeadlineExceededError(Exception):
    """The client's deadline has passed."""


class ServerStoppingError(Exception):
    """The server ends the RPC because it stops."""
