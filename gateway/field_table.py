"""Generates the tables of members in docs/compatibility.md: `python -m glimpse.gateway.field_table < OLD > NEW`.

The effect of a member comes from the dialect's rules, and its meaning from the protos' comments.
"""

import json
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import DescriptorPool

from glimpse.dialect.fields import Member, members_of
from glimpse.dialect.openai import OPENAI
from glimpse.dialect.rules import Effect
from glimpse.gateway.openapi.comments import proto_comments
from glimpse.gateway.openapi.document import compiled_protos

_SECTION = re.compile(r"(<!-- members of (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_HEADER = "| member | effect | meaning |\n|---|---|---|\n"


def with_tables(document: str, root: Path) -> str:
    """Returns the document with fresh tables, each between the markers that name its request."""
    files = compiled_protos(root)
    comments = proto_comments(files)
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    earlier: dict[str, str] = {}

    def members(match: re.Match[str]) -> str:
        return f"{match[1]}\n{_members(pool.FindMessageTypeByName(match[2]), comments, earlier)}\n{match[3]}"

    return _SECTION.sub(members, document)


def _members(request: Descriptor, comments: Mapping[str, str], earlier: dict[str, str]) -> str:
    """Returns the honoured members of a request as a list, and those with another effect as a table.

    Args:
        earlier: the rows of the tables before, by names. The request's own are added; equal ones are only named, and
            those of messages as one.
    """
    members = members_of(OPENAI, request)
    rows = {_names(member): _row(member, comments) for member in members if member.effect is not Effect.HONOURED}
    repeated = [names for names, row in rows.items() if earlier.get(_of_chat(names)) == _of_chat(row)]
    new = "".join(row for names, row in rows.items() if names not in repeated)
    earlier.update(rows)
    parts = (
        ("Honoured", [_names(member) for member in members if member.effect is Effect.HONOURED]),
        ("The same as above", dict.fromkeys(re.sub(r"(messages\[\]\.).*", r"\1…`", names) for names in repeated)),
    )
    lists = [textwrap.fill(f"{title}: {', '.join(names)}.", 130) + "\n" for title, names in parts if names]
    return "\n".join([*lists, *([_HEADER + new] if new else [])])


def _of_chat(text: str) -> str:
    """Returns names or a row of messages within `input` as those of chat."""
    return text.replace("`input[].", "`")


def _names(member: Member) -> str:
    return ", ".join(f"`{name}`" for name in (member.path, *member.aliases))


def _row(member: Member, comments: Mapping[str, str]) -> str:
    return f"| {_names(member)} | {_effect(member)} | {_meaning(member, comments)} |\n"


def _effect(member: Member) -> str:
    if member.effect is not Effect.REFUSED or not member.accepted:
        return str(member.effect)
    return f"refused, except {' and '.join(f'`{_json(value)}`' for value in member.accepted)}"


def _meaning(member: Member, comments: Mapping[str, str]) -> str:
    """Returns the first sentence of its reason or comment."""
    text = member.reason or comments.get(member.fields[0].descriptor.full_name, "")
    return re.split(r"(?<=[.])\s", text, maxsplit=1)[0].replace("|", "\\|")


def _json(value: Any) -> str:
    return json.dumps(value)


def main() -> None:
    """Reads the document from standard input and writes it with fresh tables to standard output."""
    sys.stdout.write(with_tables(sys.stdin.read(), Path(__file__).resolve().parents[1]))


if __name__ == "__main__":
    main()
