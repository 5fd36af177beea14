"""The front end. It never loads torch."""

import os

# Children are started with exec, which needs nothing of gRPC's fork handlers; they would complain at each start. gRPC
# reads this once, when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
