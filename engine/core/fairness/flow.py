"""Who a sequence is computed for: its client, and its flow within the client. Plain counters.

A flow is a request with all of its completions. Clients share the engine equally, and so do the flows of a client.
"""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True, eq=False)
class Client:
    """A client with sequences that wait or run."""

    name: str = ""
    is_background: bool = False
    """What it waits for is not urgent: it gets what others leave."""
    service: int = 0
    """Tokens computed for it. It begins with the least of all clients, so that idle time earns no credit."""
    num_running: int = 0
    num_flows: int = 0
    last_turn: int = 0
    """Position in the order of decodes: those with the smallest are next."""

    def precedes(self, other: "Client") -> bool:
        """A waiting sequence of this client is planned before a running prompt of the other."""
        if self.is_background is not other.is_background:
            return other.is_background
        return self is not other and self.service <= other.service


@dataclass(slots=True, kw_only=True, eq=False)
class Flow:
    """A request whose completions wait or run."""

    client: Client = field(default_factory=Client)
    name: str = ""
    """Unique within the client."""
    num_running: int = 0
    num_sequences: int = 0
    """Running and waiting."""
    last_turn: int = 0
    """Position in the order of decodes: those with the smallest are next."""
