"""Requests and their events in the write-ahead order of docs/architecture.md: an in-memory store and the durable ones."""
