"""Attacks a real server while bystanders use it: `python -m tests.chaos`; `--help` explains the options.

Bystanders are clients that do nothing wrong: their answers are known, and each of their requests must end once and
rightly, whatever others do. The report counts those that were lost (ended in silence), answered twice or wrongly, hung,
or failed without an attack that explains it.
"""

import asyncio
import contextlib
import json
import os
import sys

from tests.chaos.bystanders import UnsteadyAnswersError
from tests.chaos.campaign import Campaign
from tests.chaos.options import parse
from tests.chaos.report import has_failed, report_of, text_of
from tests.chaos.stack import NotServingError


def main() -> None:
    options = parse()
    if options is None:
        return
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC logs each connection that a kill breaks
    if options.num_cores is not None:  # children inherit it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.num_cores :])
    campaign = Campaign(options=options)
    try:
        with contextlib.suppress(asyncio.CancelledError):  # interrupted: the report is of what was done until then
            asyncio.run(campaign.run())
    except (NotServingError, UnsteadyAnswersError) as error:
        sys.exit(f"tests.chaos: {error}")
    report = report_of(campaign)
    if options.report is not None:
        options.report.write_text(json.dumps(report, indent=1, default=list))
    print(text_of(report))
    sys.exit(130 if campaign.is_interrupted else 1 if has_failed(report) else 0)


if __name__ == "__main__":
    main()
