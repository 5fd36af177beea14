"""Sequences whose grammars are being compiled, beside the steps. Knows no grammar: only that one is ready or not."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from glimpse.engine.sampling_params import Grammar
from glimpse.engine.scheduling.sequence import Sequence

_WAIT_SECONDS = 0.01
"""How long a step with nothing else to do waits for a grammar: so long may what the caller has wait."""


class CompilingQueue:
    """What the scheduler does not have yet."""

    def __init__(self, compile_grammar: Callable[[Grammar], Future[Any]] | None) -> None:
        """`compile_grammar` begins to compile; None where whoever needs a grammar compiles it."""
        self._compile = compile_grammar
        self._entries: dict[Sequence, Future[Any]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, sequence: Sequence) -> bool:
        """Takes a sequence that must wait for its grammar; False for any other."""
        grammar = sequence.sampling.grammar
        if grammar is None or self._compile is None:
            return False
        compiling = self._compile(grammar)
        if compiling.done():
            return False
        self._entries[sequence] = compiling
        return True

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence, if it is here."""
        self._entries.pop(sequence, None)

    def compiled(self, *, may_wait: bool) -> list[Sequence]:
        """Hands out those whose grammars are compiled, or could not be; waits a little for one if it may."""
        if self._entries and may_wait:
            wait(self._entries.values(), timeout=_WAIT_SECONDS, return_when=FIRST_COMPLETED)
        ready = [sequence for sequence, compiling in self._entries.items() if compiling.done()]
        for sequence in ready:
            del self._entries[sequence]
        return ready
