"""Drives clients that share a process and what they import: each is loaded when it is first asked."""

from importlib import import_module

from driver import drive_clients

if __name__ == "__main__":
    drive_clients(lambda client: import_module(f"{client.lower().replace('-', '_')}_client").ASKS)
