"""Generates the lists of members in docs/compatibility.md: `python -m glimpse.gateway.field_table < OLD > NEW`.

The effect of a member comes from the dialect's rules, and its meaning from the protos' comments.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from google.protobuf.descriptor_pool import DescriptorPool

from glimpse.dialect.bindings import bindings
from glimpse.dialect.dialects import DIALECTS
from glimpse.dialect.fields import Member, members_of
from glimpse.dialect.rules import Effect
from glimpse.gateway.openapi.comments import proto_comments
from glimpse.gateway.openapi.document import compiled_protos

_SECTION = re.compile(r"(<!-- members of (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_REFUSED = "Refused, and what to do, or why"


def with_tables(document: str, root: Path) -> str:
    """Returns the document with fresh lists, each between the markers that name its request."""
    files = compiled_protos(root)
    comments = proto_comments(files)
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    earlier: dict[str, tuple[str, str]] = {}
    dialects = {
        binding.unary.input_type.full_name: dialect
        for service, dialect in DIALECTS.items()
        for binding in bindings(pool.FindServiceByName(service))
    }

    def members(match: re.Match[str]) -> str:
        found = members_of(dialects[match[2]], pool.FindMessageTypeByName(match[2]))
        return f"{match[1]}\n{_members(found, comments, earlier)}\n{match[3]}"

    return _SECTION.sub(members, document)


def _members(members: Sequence[Member], comments: Mapping[str, str], earlier: dict[str, tuple[str, str]]) -> str:
    """Returns the members of a request that are not honoured, as a list with reasons for each effect.

    Args:
        earlier: titles and reasons of the requests before, by names. The request's own are added; equal ones are left
            out.
    """
    rows = {_names(member): _row(member, comments) for member in members if member.effect is not Effect.HONOURED}
    reasons: dict[str, dict[str, list[str]]] = {_REFUSED: {}}
    for names, (title, reason) in rows.items():
        if earlier.get(_of_chat(names)) != (title, reason):
            reasons.setdefault(title, {}).setdefault(reason, []).append(names)
    earlier.update(rows)
    lists = [_with_reasons(title, names) for title, names in reasons.items() if names]
    return "\n".join(lists) or "Nothing that the lists above do not say.\n"


def _with_reasons(title: str, names: Mapping[str, Iterable[str]]) -> str:
    """Returns a list of members. Those with the same reason are one entry."""
    return f"{title}:\n\n" + "".join(f"- {', '.join(several)}: {reason}\n" for reason, several in names.items())


def _of_chat(text: str) -> str:
    """Returns names of messages within `input` as those of chat."""
    return text.replace("`input[].", "`")


def _names(member: Member) -> str:
    """Returns a member's names, and the values that it may have if it is refused."""
    names = ", ".join(f"`{name}`" for name in (member.path, *member.aliases))
    values = " and ".join(f"`{json.dumps(value)}`" for value in member.accepted)
    return f"{names} (except {values})" if member.effect is Effect.REFUSED and values else names


def _row(member: Member, comments: Mapping[str, str]) -> tuple[str, str]:
    """Returns the title of the member's list, and its reason."""
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
