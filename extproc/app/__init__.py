"""The process: command line, settings, assembly, shutdown. May import every room; nothing imports it."""
