"""`glimpse chat` without a question: a conversation, at a terminal."""

import asyncio
import io
import json
import stat
from pathlib import Path

import pyte
import pytest

from glimpse.client import Chunk
from glimpse.server.cli.chat.answer import print_answer
from glimpse.server.cli.chat.history import ChatHistory, Turn
from glimpse.server.cli.chat.slash import HELP, CommandError, run_command
from glimpse.v1 import chat_pb2
from tests.engine.replies import NO_REPLY, reply_with
from tests.server.cli.terminal import Terminal, glimpse
from tests.server.requests import png
from tests.server.serving import echoing
from tests.waiting import eventually

SLOW_ANSWER = " ".join(f"word{number}" for number in range(80))


def converse(terminal: Terminal, folder: Path) -> None:
    """What a person types; the engine answers with the last text in ⟦⟧ of the whole prompt."""
    image = folder / "two words.png"
    image.write_bytes(png())
    terminal.shows("understands text, image")
    terminal.type(f"{reply_with('First answer.')}\r")
    terminal.shows("First answer.", times=2)  # the line, and the answer
    terminal.shows("tokens in")
    terminal.type("And now?\r")  # the engine finds the mark of the first question: it gets the whole conversation
    terminal.shows("First answer.", times=3)
    terminal.shows("tokens in", times=2)

    terminal.type(f"{image}\r".replace(" ", "\\ "))  # as terminals write a file that is dropped on them
    terminal.shows("[two words.png] >")
    terminal.type(f"/image {image}\r")
    terminal.shows("[two words.png, two words.png] >")
    terminal.type(f"What are {reply_with('Two images.')}\\\rthese?\r")  # two lines
    terminal.shows("tokens in", times=3)

    terminal.type(f"/save {folder / 'talk.json'}\r")
    terminal.shows("Saved to")
    terminal.type(f"/save {folder / 'talk.md'}\r")
    terminal.shows("Saved to", times=2)
    terminal.type("/nonsense\r")
    terminal.shows("there is no command /nonsense")
    terminal.type("/image none.png\r")
    terminal.shows("cannot use none.png: No such file")
    terminal.type("/help\r")
    terminal.shows("/system TEXT")

    broken = folder / "broken.png"
    broken.write_bytes(png()[:40])
    terminal.type(f"What is in {broken}?\r")
    terminal.shows(f"{broken}: ")  # not the field of the request
    terminal.shows("The next question is not about this file.")
    terminal.type("Still there?\r")
    terminal.shows("tokens in", times=4)
    terminal.type(f"/image {image}\r")
    terminal.shows("[two words.png] >", times=2)
    terminal.type("/detach\r")
    terminal.shows("The next question is about no files.")
    terminal.type("/new\r")
    terminal.shows("A new conversation.")
    terminal.type("Hello?\r")
    terminal.shows(NO_REPLY[:20])  # nothing of the former one is in the prompt
    terminal.type("/system Obey.\r")
    terminal.shows("The system message is set.")
    assert "content[" not in terminal.text()
    terminal.type("half a line\x03")
    terminal.shows("Ctrl-D ends the conversation.")
    assert terminal.process.poll() is None
    assert eventually(lambda: has_ended(terminal))
    assert terminal.process.returncode == 0


def has_ended(terminal: Terminal) -> bool:
    """Presses Ctrl-D, which is lost before the program reads keys, unless the program has ended."""
    if terminal.process.poll() is None:
        terminal.type("\x04")
    return terminal.process.poll() is not None


async def test_holds_a_conversation(tiny_checkpoint: Path, tmp_path: Path) -> None:
    async with echoing(tiny_checkpoint) as (server, _):
        environment = {"XDG_STATE_HOME": str(tmp_path / "state"), "GLIMPSE_PORT": str(server.port)}
        with glimpse("chat", "--system=Be kind.", environment=environment) as terminal:
            await asyncio.to_thread(converse, terminal, tmp_path)
    system, first, answer, *_, third, last = json.loads((tmp_path / "talk.json").read_text())
    assert (system["content"], answer["content"]) == ("Be kind.", "First answer.")
    assert first["content"][-1]["text"] == reply_with("First answer.")
    assert [part["type"] for part in third["content"]] == ["image_url", "image_url", "text"]
    assert third["content"][0]["image_url"]["url"] == (tmp_path / "two words.png").as_uri()
    assert third["content"][2]["text"] == f"What are {reply_with('Two images.')}\nthese?"
    assert last["content"] == "Two images."
    assert "**Model:** First answer." in (tmp_path / "talk.md").read_text()
    history = tmp_path / "state" / "glimpse" / "chat_history"
    assert "And now?" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def interrupt(terminal: Terminal) -> None:
    terminal.shows("understands")
    terminal.type("Go.\r")
    terminal.shows("word1 ")
    terminal.type("\x03")
    terminal.shows("The answer was stopped.")
    assert terminal.process.poll() is None
    terminal.type("/save /dev/tty\r")
    terminal.shows("**Model:** word0 word1")
    terminal.type("exit\r")
    terminal.shows("/exit and Ctrl-D end the conversation too.")
    assert terminal.process.wait(timeout=60) == 0


def test_knows_the_commands_of_other_programs() -> None:
    conversation = ChatHistory(turns=[Turn(question="a", attachments=(), answer="b")], models=["small", "large"])
    assert run_command(conversation, "/?") == HELP
    assert run_command(conversation, "/clear") == "A new conversation."
    assert not conversation.turns
    for name in ("/exit", "/bye", "/quit"):
        with pytest.raises(EOFError):
            run_command(conversation, name)
    with pytest.raises(CommandError, match="/model lists the models of this server"):
        run_command(conversation, "/models")
    assert run_command(conversation, "/model") == "* small\n  large"
    with pytest.raises(CommandError, match=r"does not serve larg; did you mean large\?"):
        run_command(conversation, "/model larg")
    assert run_command(conversation, "/model large") == "large answers from now on."
    assert conversation.options({"temperature": 0}) == {"temperature": 0, "model": "large"}
    with pytest.raises(CommandError, match=r"there is no command /imge; did you mean /image\?"):
        run_command(conversation, "/imge a.png")


class Output(io.StringIO):
    """A terminal's end that a program writes to."""

    def isatty(self) -> bool:
        return True


def shown(answer: str, size: int, *, columns: int = 40, rows: int = 30, markdown: bool = False) -> list[str]:
    """What a terminal shows of an answer that comes in pieces of one size, without blank lines at its end."""
    pieces = (answer[start : start + size] for start in range(0, len(answer), size))
    delta = chat_pb2.Delta
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("LINES", str(rows))
        patch.setattr("sys.stdout", output := Output())
        print_answer(
            (
                Chunk(chat_pb2.StreamChatCompletionResponse(choices=[chat_pb2.ChunkChoice(delta=delta(content=piece))]))
                for piece in pieces
            ),
            markdown=markdown,
        )
    screen = pyte.HistoryScreen(columns, rows, history=1000)
    pyte.Stream(screen).feed(output.getvalue().replace("\n", "\r\n"))
    left = ["".join(line[x].data for x in range(columns)) for line in screen.history.top]
    return "\n".join(line.rstrip() for line in (*left, *screen.display)).rstrip().split("\n")


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_lines_of_an_answer_are_broken_between_words(size: int) -> None:
    answer = "Up and down look through earlier lines.\n\nА" + "x" * 25 + " 日本語のテキスト、日本語のテキスト ends."
    assert shown(answer, size, columns=20) == [
        "Up and down look",
        "through earlier",
        "lines.",
        "",
        "А" + "x" * 18,
        "xxxxxxx 日本語のテ",
        "キスト、日本語のテ",
        "キスト ends.",
    ]


MARKDOWN = """\
# Fruit

An **apple** and a
`pear`, \\(x_1 * y_2\\), <box>(1,2)</box>.

| name | pieces |
|------|-------:|
| fig | 10 |

```python
a = 1

b = 2
```
- one
- two
"""


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_answer_is_shown_as_markdown(size: int) -> None:
    assert shown(MARKDOWN, size, markdown=True) == [
        "Fruit",
        "",
        "An apple and a",
        "pear, \\(x_1 * y_2\\), <box>(1,2)</box>.",
        "",
        " name  pieces",
        " ────────────",
        " fig       10",
        "",
        "a = 1",
        "",
        "b = 2",
        "",
        " • one",
        " • two",
    ]


def test_markdown_commands_no_terminal_and_loads_nothing() -> None:
    hostile = (
        "&#27;[2J \x1b]0;owned\x07 \x1b[31m <script>alert(1)</script> [me](http://a.example) ![i](http://b.example)\n"
    )
    (line,) = shown(hostile, 5, columns=200, markdown=True)
    assert "<script>alert(1)</script> me (http://a.example)" in line


def test_a_block_that_left_the_screen_stays_as_it_was_written() -> None:
    long = "".join(f"line {number} **bold**\n" for number in range(40))
    lines = shown(f"{long}\n**short**\n", 9, rows=10, markdown=True)
    assert lines[:40] == [f"line {number} **bold**" for number in range(40)]
    assert lines[-1] == "short"


async def test_ctrl_c_ends_the_answer_and_keeps_its_beginning(tiny_checkpoint: Path, tmp_path: Path) -> None:
    async with echoing(tiny_checkpoint, step_ms=50) as (server, _):
        environment = {"XDG_STATE_HOME": "/dev/null"}  # nowhere to keep the history, which is no reason to end
        arguments = f"--target=http://127.0.0.1:{server.port}", f"--system={reply_with(SLOW_ANSWER)}"
        with glimpse("chat", *arguments, environment=environment) as terminal:
            await asyncio.to_thread(interrupt, terminal)
    assert terminal.text().count("word79") == 1  # in the system message that was saved, not in the answer
