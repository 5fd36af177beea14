"""Drives clients that share a process and what they import: each is loaded when it is first asked."""

from importlib import import_module

from driver import drive


def module_of(client: str) -> str:
    """The module of a client; of two versions, whose processes have the one or the other, there is one."""
    return f"{'_'.join(client.lower().replace(' 2', '').replace('-', ' ').split())}_client"


if __name__ == "__main__":
    drive(lambda client: import_module(module_of(client)).ASKS)
