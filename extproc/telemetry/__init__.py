"""Traces, metrics, logs. Everything here is told what happened; nothing here changes what happens."""
