"""Attacks a real server while bystanders use it: `python -m tests.chaos`; `--help` explains the options.

Bystanders are clients that do nothing wrong: their answers are known, and each of their requests must end once and
rightly, whatever others do. The report counts those that were lost (ended in silence), answered twice or wrongly, hung,
or failed without an attack that explains it.
"""

import asyncio
import json
import os
import signal
import sys

from tests.chaos.campaign import Campaign
from tests.chaos.options import parse
from tests.chaos.report import has_failed, report_of, text_of


def main() -> None:
    options = parse()
    if options is None:
        return
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC logs each connection that a kill breaks
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server is stopped as on Ctrl-C
    campaign = Campaign(options=options)
    try:
        asyncio.run(campaign.run())
    except KeyboardInterrupt:
        sys.exit(130)
    report = report_of(campaign)
    if options.report is not None:
        options.report.write_text(json.dumps(report, indent=1, default=list))
    print(text_of(report))
    sys.exit(1 if has_failed(report) else 0)


if __name__ == "__main__":
    main()
