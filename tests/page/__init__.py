"""A package, so that its server and its browser end with it: other tests need the event loop."""
