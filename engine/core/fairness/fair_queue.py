"""The order in which waiting sequences are admitted: weighted fair queueing over clients, then over their requests.

The client served least comes first. Within it come, in this order, the smallest priority number, the request with the
fewest running sequences, and the oldest sequence. With a single client and one completion per request, that is the
order of priority and arrival. Priorities never compare sequences of different clients, except that clients in the
background come after all others.

The service of a client is counted in computed tokens (as in Sheng et al., "Fairness in Serving Large Language Models",
2024, with equal weights for prompt and answer). There is no clock.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from itertools import count
from operator import attrgetter

from glimpse.engine.core.fairness.flow import Client, Flow
from glimpse.engine.core.sequence import Sequence
from glimpse.engine.protocol.messages import BACKGROUND_PRIORITY

_priority_key = attrgetter("priority_key")
_NEWCOMER_SHARE = 4


class FairQueue:
    """The waiting sequences, and the counters of all clients and flows."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        self._flows: dict[tuple[str, str], Flow] = {}
        self._waiting: dict[Flow, list[Sequence]] = {}  # sorted by priority key; no empty lists
        self._queues: dict[Client, list[Flow]] = {}  # flows with waiting sequences, sorted by `_flow_key`
        # (in the background, service, running sequences, serial number, client), the least served first. An entry may
        # be out of date: service only grows, so it is corrected when it comes up.
        self._heap: list[tuple[bool, int, int, int, Client]] = []
        self._queued: set[Client] = set()  # clients in the heap
        self._serial = count()
        self._num_waiting = 0
        self._num_running = 0
        self._num_wide_flows = 0
        self._num_background = 0  # clients

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    @property
    def has_one_client(self) -> bool:
        return len(self._clients) <= 1

    @property
    def num_urgent_clients(self) -> int:
        """Clients that are not in the background."""
        return len(self._clients) - self._num_background

    @property
    def background_waits(self) -> bool:
        """Clients in the background wait, because there are others."""
        return 0 < self._num_background < len(self._clients)

    @property
    def has_equal_shares(self) -> bool:
        """No client or flow can have more than its share: there is one client, with one running sequence a request."""
        return self.has_one_client and not self._num_wide_flows

    def service_by_client(self) -> dict[str, int]:
        """Returns the tokens computed for each client that has sequences; see `Client.service`."""
        return {name: client.service for name, client in self._clients.items()}

    def add(self, sequence: Sequence) -> None:
        """Takes in a new sequence. It waits."""
        name, flow_name = sequence.request.client, sequence.request.flow_name
        client = self._clients.get(name)
        if client is None:
            is_background = sequence.request.priority >= BACKGROUND_PRIORITY
            alike = (each.service for each in self._clients.values() if each.is_background is is_background)
            service = min(alike, default=0)
            client = self._clients[name] = Client(name=name, is_background=is_background, service=service)
            self._num_background += is_background
        flow = self._flows.get((name, flow_name))
        if flow is None:
            flow = self._flows[name, flow_name] = Flow(client=client, name=flow_name)
            client.num_flows += 1
        flow.num_sequences += 1
        sequence.wait(flow)
        self._enqueue(sequence)

    def remove(self, sequence: Sequence, *, was_running: bool) -> None:
        """Forgets a sequence that has ended, and its client and flow if it was their last. Ignores unknown ones."""
        flow = sequence.flow
        if was_running:
            self._count_running(flow, -1)
        elif not self._dequeue(sequence):
            return
        flow.num_sequences -= 1
        if flow.num_sequences == 0:
            client = flow.client
            del self._flows[client.name, flow.name]
            client.num_flows -= 1
            if client.num_flows == 0:
                del self._clients[client.name]
                self._num_background -= client.is_background

    def waiting(self) -> Iterator[Sequence]:
        """Yields the waiting sequences, those of each client in their order."""
        for flows in self._queues.values():
            for flow in flows:
                yield from self._waiting[flow]

    def head(self) -> Sequence | None:
        """Returns the sequence that is to be admitted next."""
        client = self._least_served()
        return None if client is None else self._waiting[self._queues[client][0]][0]

    def newcomer(self) -> Sequence | None:
        """Returns the head if there are other clients that are as urgent, and it is a newcomer's."""
        sequence = self.head() if self.num_urgent_clients > 1 else None
        if sequence is None or sequence.is_complete or sequence.flow.client.is_background:
            return None
        return sequence if self.is_newcomer(sequence.flow.client) else None

    def is_newcomer(self, client: Client) -> bool:
        """Nothing runs of the client, or no more than a quarter of its share of the running sequences."""
        num_running = _NEWCOMER_SHARE * client.num_running * len(self._clients)
        return not num_running or num_running <= self._num_running

    def start(self, sequence: Sequence) -> None:
        """Takes a sequence out of the queue. It counts as running."""
        self._dequeue(sequence)
        self._count_running(sequence.flow, 1)

    def stop(self, sequence: Sequence) -> None:
        """Puts a running sequence back into the queue."""
        self._count_running(sequence.flow, -1)
        self._enqueue(sequence)

    def _least_served(self) -> Client | None:
        while self._heap:
            _, service, _, _, client = self._heap[0]
            if client not in self._queues:
                heappop(self._heap)
                self._queued.remove(client)
            elif service != client.service:
                heapreplace(self._heap, self._entry(client))
            else:
                return client
        return None

    def _entry(self, client: Client) -> tuple[bool, int, int, int, Client]:
        return (client.is_background, client.service, client.num_running, next(self._serial), client)

    def _enqueue(self, sequence: Sequence) -> None:
        flow, client = sequence.flow, sequence.flow.client
        self._take_out(flow)
        insort(self._waiting.setdefault(flow, []), sequence, key=_priority_key)
        self._put_in(flow)
        self._num_waiting += 1
        if client not in self._queued:
            self._queued.add(client)
            heappush(self._heap, self._entry(client))

    def _dequeue(self, sequence: Sequence) -> bool:
        """Removes a waiting sequence; False if it does not wait."""
        flow = sequence.flow
        waiting = self._waiting.get(flow, [])
        index = bisect_left(waiting, sequence.priority_key, key=_priority_key)
        if index == len(waiting) or waiting[index] is not sequence:
            return False
        self._take_out(flow)
        del waiting[index]
        if not waiting:
            del self._waiting[flow]
        self._put_in(flow)
        self._num_waiting -= 1
        return True

    def _count_running(self, flow: Flow, change: int) -> None:
        self._take_out(flow)
        self._num_wide_flows -= flow.num_running > 1
        flow.num_running += change
        flow.client.num_running += change
        self._num_running += change
        self._num_wide_flows += flow.num_running > 1
        self._put_in(flow)

    def _take_out(self, flow: Flow) -> None:
        """Removes a flow from its client's queue, before its place there changes."""
        if flow in self._waiting:
            queue = self._queues[flow.client]
            del queue[bisect_left(queue, self._flow_key(flow), key=self._flow_key)]
            if not queue:
                del self._queues[flow.client]

    def _put_in(self, flow: Flow) -> None:
        if flow in self._waiting:
            insort(self._queues.setdefault(flow.client, []), flow, key=self._flow_key)

    def _flow_key(self, flow: Flow) -> tuple[int, int, int]:
        first = self._waiting[flow][0]
        return (first.request.priority, flow.num_running, first.sequence_id)
