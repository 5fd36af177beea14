"""What becomes of each member of a request, as a table: from the rules of the request's messages, and nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor

from glimpse.dialect.options import map_entry, message_type
from glimpse.dialect.rules import Effect, FieldRules, MessageRules, message_rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member of a request."""

    path: str
    """Where it stands, such as "messages[].content[].uuid"."""
    aliases: tuple[str, ...]
    """Its other names."""
    effect: Effect
    """What becomes of it."""
    why: str
    """Why it is refused, where its message says so; a sentence."""
    accepted: tuple[Any, ...]
    """Of one that is refused, the values that ask for nothing."""
    fields: tuple[FieldRules, ...]
    """The fields that it may set, told apart by its JSON type; none where there is no such field."""


def members_of(request: Descriptor) -> list[Member]:
    """All members of the outermost object, and those further inside that are refused."""
    return list(_members(message_rules(request), "", frozenset()))


def _members(rules: MessageRules, prefix: str, above: frozenset[str]) -> Iterator[Member]:
    """`above` are the messages around this one, which may hold messages of its own type."""
    above |= {rules.descriptor.full_name}
    own = _own_fields(rules)
    for name, fields in own.items():
        member = _member(prefix + name, fields)
        if not prefix or member.effect is Effect.REFUSED:
            yield member
        for field in fields:
            if member.effect is not Effect.REFUSED:
                yield from _inside(field, prefix + name, above)
    yield from _refused(rules, prefix)


def _own_fields(rules: MessageRules) -> dict[str, tuple[FieldRules, ...]]:
    """The fields by their names in JSON, those of flattened messages included."""
    own: dict[str, tuple[FieldRules, ...]] = {}
    for field in rules.fields:
        inner = _own_fields(message_rules(message_type(field.descriptor))) if field.flatten else {field.name: (field,)}
        for name, fields in inner.items():
            own[name] = own.get(name, ()) + fields
    return own


def _member(path: str, fields: tuple[FieldRules, ...]) -> Member:
    aliases = tuple(alias for field in fields for alias in field.aliases)
    return Member(path=path, aliases=aliases, effect=fields[0].effect, why="", accepted=(), fields=fields)


def _inside(field: FieldRules, path: str, above: frozenset[str]) -> Iterator[Member]:
    message = map_entry(field.descriptor)[1].message_type if field.is_map else field.descriptor.message_type
    if message is None or message.full_name in above:
        return
    rules = message_rules(message)
    path += "[]" if field.is_list else ""
    if not rules.union:
        yield from _members(rules, f"{path}.", above)
    else:
        for choice in rules.fields:
            yield from _inside(choice, path, above | {message.full_name})


def _refused(rules: MessageRules, prefix: str) -> Iterator[Member]:
    for refusal in rules.refusals:
        yield Member(
            path=prefix + refusal.name,
            aliases=(),
            effect=Effect.REFUSED,
            why=refusal.why,
            accepted=refusal.accepted,
            fields=(),
        )
    for field in rules.fields:
        if field.flatten:
            yield from _refused(message_rules(message_type(field.descriptor)), prefix)
