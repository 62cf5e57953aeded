"""The main job run for real: faults where the decision changes, and what a client must receive at each.

The scenarios and their judge serve `make demo` and the tests against the real Envoy alike.
"""
