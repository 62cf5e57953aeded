"""The processor's pages for a person on call, and their JSON. Read-only: no request to them changes anything.

Served without a script, a font or an image from anywhere else, so that they work where nothing else does.
"""
