"""A replica look-alike with a vLLM API, vLLM metrics and fault points; used by the demo, tests and benchmarks."""
