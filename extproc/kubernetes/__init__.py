"""A client of the Kubernetes API: reach it, list, watch, keep the last good picture. Knows nothing of what the objects mean."""
