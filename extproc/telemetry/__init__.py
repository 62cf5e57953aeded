"""Traces, metrics, logs. Everything here is told what happened; nothing here changes what happens.

What may not live here: effects on requests, and anything that runs once per delta.
"""
