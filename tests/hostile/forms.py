"""Hostile forms, each with the reason for which it is refused."""

from collections.abc import Sequence
from dataclasses import dataclass

BOUNDARY = "b"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
_END = f"\r\n--{BOUNDARY}--\r\n".encode()
_FILE = 'form-data; name="file"; filename="a.png"'


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileForm:
    """A body and its content type."""

    body: bytes
    reason: str
    content_type: str = FORM


def part(disposition: str, value: bytes, *headers: str) -> bytes:
    """Returns a member, with the boundary before it."""
    lines = [f"\r\n--{BOUNDARY}", f"Content-Disposition: {disposition}", *headers, "", ""]
    return "\r\n".join(lines).encode() + value


def form(*parts: bytes) -> bytes:
    """Returns a whole body."""
    return (b"".join(parts) + _END).removeprefix(b"\r\n")


def text(name: str, value: str) -> bytes:
    return part(f'form-data; name="{name}"', value.encode())


def file(data: bytes = b"data", filename: str = "a.png") -> bytes:
    return part(f'form-data; name="file"; filename="{filename}"', data)


def _nested() -> bytes:
    inner = b"--c\r\n" + part(_FILE, b"data") + b"\r\n--c--"
    return form(part('form-data; name="file"', inner, "Content-Type: multipart/mixed; boundary=c"))


def hostile_forms() -> dict[str, HostileForm]:
    """Returns the forms by names."""
    many: Sequence[bytes] = [text(f"m{index}", "") for index in range(10_000)]
    headers = [f"X-{index}: a" for index in range(10_000)]
    malformed, too_large, invalid, wrong = (
        "invalid_form",
        "request_too_large",
        "invalid_value",
        "unsupported_media_type",
    )
    return {
        "nothing": HostileForm(body=b"", reason=malformed),
        "no members": HostileForm(body=_END[2:], reason="missing_value"),
        "no end": HostileForm(body=form(file()).removesuffix(_END), reason=malformed),
        "half an end": HostileForm(body=form(file())[:-3], reason=malformed),
        "only a beginning": HostileForm(body=b"--b\r\n", reason=malformed),
        "another boundary": HostileForm(body=form(file()).replace(b"--b", b"--c"), reason=malformed),
        "many members": HostileForm(body=form(*many, file()), reason=too_large),
        "many headers": HostileForm(body=form(part(_FILE, b"", *headers)), reason=too_large),
        "a long header": HostileForm(body=form(part(_FILE, b"", f"X: {'a' * 1_000_000}")), reason=too_large),
        "a header without end": HostileForm(body=b"--b\r\n" + b"a" * 1_000_000, reason=too_large),
        "a folded header": HostileForm(body=form(part(_FILE, b"", "X: a", " b" * 5000)), reason=too_large),
        "a header of no name": HostileForm(body=form(part(_FILE, b"", ": a")), reason=malformed),
        "a header of other bytes": HostileForm(body=form(file()).replace(b"a.png", b"\xff\xfe"), reason=malformed),
        "bare line feeds": HostileForm(body=form(file()).replace(b"\r\n", b"\n"), reason=malformed),
        "no disposition": HostileForm(body=b"--b\r\nX: a\r\n\r\na" + _END, reason=malformed),
        "another disposition": HostileForm(body=form(part('attachment; name="file"', b"a")), reason=malformed),
        "a length that is wrong": HostileForm(body=form(part(_FILE, b"abc", "Content-Length: 2")), reason=malformed),
        "a length that is huge": HostileForm(
            body=form(part(_FILE, b"abc", f"Content-Length: {'9' * 500}")), reason=malformed
        ),
        "long texts": HostileForm(body=form(text("purpose", "a" * 70_000), file()), reason=too_large),
        "a text that is no UTF-8": HostileForm(
            body=form(part('form-data; name="purpose"', b"\xff"), file()), reason=invalid
        ),
        "two files": HostileForm(body=form(file(), file()), reason="unsupported"),
        "a file elsewhere": HostileForm(
            body=form(part('form-data; name="files"; filename="a"', b"a"), file()), reason="unsupported"
        ),
        "a file as text": HostileForm(body=form(part('form-data; name="file"', b"data")), reason="invalid_type"),
        "a form in a form": HostileForm(body=_nested(), reason="invalid_type"),
        "a member twice": HostileForm(
            body=form(text("purpose", "vision"), text("purpose", "batch"), file()), reason="conflicting_values"
        ),
        "an empty file": HostileForm(body=form(file(b"")), reason="upload_mismatch"),
        "a purpose that is none": HostileForm(body=form(text("purpose", "x" * 60_000), file()), reason=invalid),
        "a name with control characters": HostileForm(body=form(file(filename="a%0D%0Ab")), reason=invalid),
        "a long name": HostileForm(body=form(file(filename="a" * 300)), reason=invalid),
        "a number that is none": HostileForm(
            body=form(text("expires_after[seconds]", "1e999"), file()), reason="invalid_type"
        ),
        "a number of many digits": HostileForm(
            body=form(text("expires_after[seconds]", "9" * 60_000), file()), reason="invalid_type"
        ),
        "another anchor": HostileForm(
            body=form(text("expires_after[anchor]", "last_active_at"), file()), reason="unsupported"
        ),
        "a near name": HostileForm(body=form(text("purpos", "vision"), file()), reason="unsupported"),
        "no boundary": HostileForm(body=form(file()), reason=invalid, content_type="multipart/form-data"),
        "a boundary that is long": HostileForm(
            body=form(file()), reason=invalid, content_type=f"multipart/form-data; boundary={'b' * 1000}"
        ),
        "an empty boundary": HostileForm(
            body=form(file()), reason=invalid, content_type='multipart/form-data; boundary=""'
        ),
        "another kind of parts": HostileForm(
            body=form(file()), reason=wrong, content_type="multipart/mixed; boundary=b"
        ),
        "JSON": HostileForm(body=b"{}", reason=wrong, content_type="application/json"),
        "no content type": HostileForm(body=form(file()), reason=wrong, content_type=""),
    }
