"""The replicas' side: roster and placement, attempt client over the egress listener, lease heartbeat, health monitor.

Knows HTTP towards replicas. May not know ext_proc or what the client sees.
"""
