"""`deltafence processor`, killed by the kernel at a step of its database: STEP MARK OPTION ..., see tests/crash/killed.py."""

import sys

from extproc.app.processor_command import processor
from tests.crash.killed import die_at

step, mark, *options = sys.argv[1:]
die_at(int(step), counted_from=mark)
processor(options, prog_name="deltafence processor")
