"""`deltafence up`, except that its processors are stub_processor.py."""

import sys
from functools import partial
from pathlib import Path

from extproc.app import up
from extproc.app.gateway_settings import GatewaySettings

STUB = Path(__file__).with_name("stub_processor.py")
up.GatewaySettings = partial(GatewaySettings, processor_command=(sys.executable, str(STUB)))
up.up(prog_name="deltafence up")
