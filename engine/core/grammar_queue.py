"""Sequences that wait until their grammars are compiled."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from glimpse.engine.core.sequence import Sequence
from glimpse.engine.protocol.sampling_params import Grammar

_WAIT_SECONDS = 0.01
"""How long a step with nothing else to do waits for a grammar. New messages from the caller wait as long."""


class GrammarQueue:
    """Sequences that the scheduler does not have yet because their grammars are being compiled."""

    def __init__(self, compile_grammar: Callable[[Grammar], Future[Any]] | None) -> None:
        """`compile_grammar` starts to compile. If it is None, grammars are compiled where they are used."""
        self._compile = compile_grammar
        self._entries: dict[Sequence, Future[Any]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, sequence: Sequence) -> bool:
        """Takes a sequence whose grammar must be compiled first; returns False for any other.

        A grammar with a trigger is compiled while the sequence runs: most answers do not trigger it.
        """
        grammar = sequence.sampling.grammar
        if grammar is None or self._compile is None:
            return False
        compiling = sequence.compiled = self._compile(grammar)
        if compiling.done() or grammar.trigger is not None:
            return False
        self._entries[sequence] = compiling
        return True

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence if it is in the queue."""
        self._entries.pop(sequence, None)

    def pop_compiled(self, *, may_wait: bool) -> list[Sequence]:
        """Removes and returns the sequences whose compilation has ended, also in failure.

        Args:
            may_wait: There is nothing else to do: wait a moment for a grammar.
        """
        if self._entries and may_wait:
            wait(self._entries.values(), timeout=_WAIT_SECONDS, return_when=FIRST_COMPLETED)
        ready = [sequence for sequence, compiling in self._entries.items() if compiling.done()]
        for sequence in ready:
            del self._entries[sequence]
        return ready
