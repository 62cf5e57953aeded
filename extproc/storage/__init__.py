"""The database under journal and tools: SQLite in one file, or PostgreSQL; migrations, and who owns what is unfinished.

Runs transactions written as scripts (script.py); knows no request and no tool call. Tables of all rooms are in ``sql/migrations``
so that one number says what a database holds.
"""
