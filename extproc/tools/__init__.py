"""The tool-call ledger and its ext_proc route: an action that was carried out is never carried out again (R11, R12)."""
