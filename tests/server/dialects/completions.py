"""Completions of any kind, cut anywhere."""

import json

from hypothesis import strategies as st

from glimpse.engine.checkpoint.text.output_processor import Delta, TokenText, ToolCallDelta
from glimpse.engine.protocol.messages import FinishReason


def token(text: str) -> TokenText:
    """Returns a token with its log-probability."""
    return TokenText(token_id=1, text=text, bytes=text.encode(), logprob=-0.5)


FINISHES = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS)
PIECES = st.one_of(
    st.text(min_size=1, max_size=4).map(lambda text: Delta(text=text)),
    st.text(min_size=1, max_size=4).map(lambda text: Delta(reasoning=text)),
    st.text(min_size=1, max_size=4).map(lambda text: Delta(text=text, tokens=(token(text),))),
    st.just(Delta()),
)


def calls(draw: st.DrawFn) -> list[Delta]:
    """Calls of tools, each begun by its name and continued by pieces of its arguments."""
    found: list[Delta] = []
    for index in range(draw(st.integers(0, 3))):
        text = json.dumps({"x": draw(st.text(max_size=5))})
        cut = draw(st.integers(0, len(text)))
        begun = ToolCallDelta(index=index, id=f"call-{index}", name="look", arguments=text[:cut])
        more = ToolCallDelta(index=index, id=None, name=None, arguments=text[cut:])
        found += [Delta(tool_calls=(begun,)), Delta(tool_calls=(more,))]
    return found


@st.composite
def completions(draw: st.DrawFn) -> list[Delta]:
    deltas = [*draw(st.lists(PIECES, max_size=8)), *calls(draw)]
    end = Delta(finish=draw(st.sampled_from(FINISHES)), stop_string=draw(st.sampled_from(["", "END"])))
    return [*deltas, end]
