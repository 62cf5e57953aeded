"""Envoy's side: the ext_proc service, one session per request, message building, drain.

Knows gRPC and Envoy's messages. Decides nothing itself: feeds events to decision/ and carries its effects out.
"""
