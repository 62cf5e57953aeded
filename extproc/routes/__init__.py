"""Where a route's policy comes from: file, ext_proc metadata, Envoy route metadata, Kubernetes annotations.

Turns documents into decision.policy.Policy or into an error that names the path; holds no decisions of its own.
"""
