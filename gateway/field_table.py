"""Generates the lists of members in docs/compatibility.md: `python -m glimpse.gateway.field_table < OLD > NEW`.

The effect of a member comes from the dialect's rules, and its meaning from the protos' comments.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from google.protobuf.descriptor_pool import DescriptorPool

from glimpse.dialect.bindings import bindings
from glimpse.dialect.dialects import DIALECTS
from glimpse.dialect.fields import Member, members_of
from glimpse.dialect.rules import Effect
from glimpse.gateway.openapi.comments import proto_comments
from glimpse.gateway.openapi.document import compiled_protos

_SECTION = re.compile(r"(<!-- members of (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_REFUSED = "Refused, and what to do, or why"
_Names: TypeAlias = tuple[str, str]
"""A member's names, and the values that it may have if it is refused."""
_Row: TypeAlias = tuple[str, str]
"""The title of a member's list, and its reason."""


def with_tables(document: str, root: Path) -> str:
    """Returns the document with fresh lists, each between the markers that name its request."""
    files = compiled_protos(root)
    comments = proto_comments(files)
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    earlier: dict[_Names, _Row] = {}
    dialects = {
        binding.unary.input_type.full_name: dialect
        for service, dialect in DIALECTS.items()
        for binding in bindings(pool.FindServiceByName(service))
    }

    def members(match: re.Match[str]) -> str:
        found = members_of(dialects[match[2]], pool.FindMessageTypeByName(match[2]))
        return f"{match[1]}\n{_members(found, comments, earlier)}\n{match[3]}"

    return _SECTION.sub(members, document)


def _members(members: Sequence[Member], comments: Mapping[str, str], earlier: dict[_Names, _Row]) -> str:
    """Returns the members of a request that are not honoured, as a list with reasons for each effect.

    Args:
        earlier: rows of the requests before, by names. The request's own are added; equal ones are left out.
    """
    rows = {_names(member): _row(member, comments) for member in members if member.effect is not Effect.HONOURED}
    reasons: dict[str, dict[str, dict[str, list[str]]]] = {_REFUSED: {}}
    for (names, accepted), (title, reason) in rows.items():
        if earlier.get((_of_chat(names), accepted)) != (title, reason):
            reasons.setdefault(title, {}).setdefault(reason, {}).setdefault(accepted, []).append(names)
    earlier.update(rows)
    lists = [_with_reasons(title, entries) for title, entries in reasons.items() if entries]
    return "\n".join(lists) or "Nothing that the lists above do not say.\n"


def _with_reasons(title: str, entries: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """Returns a list of members. Those with the same reason are one entry, in which those with the same accepted values
    stand together."""
    return f"{title}:\n\n" + "".join(
        f"- {'; '.join(_accepting(names, accepted) for accepted, names in sorted(groups.items()))}: {reason}\n"
        for reason, groups in entries.items()
    )


def _accepting(names: Sequence[str], accepted: str) -> str:
    several = ", ".join(names)
    return f"{several} ({'each ' if ', ' in several else ''}except {accepted})" if accepted else several


def _of_chat(text: str) -> str:
    """Returns names of messages within `input` as those of chat."""
    return text.replace("`input[].", "`")


def _names(member: Member) -> _Names:
    values = member.accepted if member.effect is Effect.REFUSED else ()
    accepted = " and ".join(f"`{json.dumps(value)}`" for value in values)
    return ", ".join(f"`{name}`" for name in (member.path, *member.aliases)), accepted


def _row(member: Member, comments: Mapping[str, str]) -> _Row:
    title = _REFUSED if member.effect is Effect.REFUSED else member.effect.capitalize()
    return title, _meaning(member, comments)


def _meaning(member: Member, comments: Mapping[str, str]) -> str:
    """Returns the first sentence of its reason or comment."""
    text = member.reason or comments.get(member.fields[0].descriptor.full_name, "")
    return re.split(r"(?<=[.])\s", text, maxsplit=1)[0].replace("|", "\\|")


def main() -> None:
    """Reads the document from standard input and writes it with fresh tables to standard output."""
    sys.stdout.write(with_tables(sys.stdin.read(), Path(__file__).resolve().parents[1]))


if __name__ == "__main__":
    main()
