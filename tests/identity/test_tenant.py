"""Cache namespaces of tenants never meet, whatever salts their requests choose."""

import re

from hypothesis import given
from hypothesis import strategies as st

from glimpse.identity.tenant import Tenant, is_tenant_name

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8)


@given(NAMES, NAMES, st.text(max_size=8), st.text(max_size=8))
def test_namespaces_are_equal_only_for_one_tenant_and_one_salt(one: str, other: str, salt: str, other_salt: str):
    namespaces = Tenant(one).namespace(salt), Tenant(other).namespace(other_salt)
    assert (namespaces[0] == namespaces[1]) == ((one, salt) == (other, other_salt))


def test_salt_that_is_another_tenant_s_namespace_opens_nothing():
    stolen = Tenant("acme").namespace("")
    assert Tenant("other").namespace(stolen) != stolen


def test_prefix_tells_a_tenant_s_namespaces():
    acme, other = Tenant("acme"), Tenant("other")
    assert acme.namespace("a").startswith(acme.namespace_prefix)
    assert not other.namespace("a").startswith(acme.namespace_prefix)
    assert re.fullmatch(r"[0-9a-f]{32}\.[0-9a-f]{64}", acme.namespace("a"))


def test_nameless_tenant_s_namespaces_are_the_salts():
    assert Tenant().namespace("salt") == "salt"


def test_names_are_visible_ascii():
    assert is_tenant_name("auth0|acme@example.com")
    assert not any(map(is_tenant_name, ("", "a b", "ä", "x" * 129, "a\n")))
