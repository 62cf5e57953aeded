"""A replica look-alike with a vLLM API, vLLM metrics and fault points; used by the demo, tests and benchmarks.

It speaks as vLLM 0.32 was seen to speak and runs on vLLM's own server (uvicorn), so that connections behave as its do. What it
computes is a toy: the answer is its own name, counted. Nothing here is imported by the gateway's rooms.

    settings     what a replica is told at start, as a dataclass and as command-line options
    reading      requests of the four APIs, read into one shape
    script       what the toy model says
    engine       slots, prefill, steps, hangs: the numbers behind /metrics
    dialects/    the bytes that each API puts around an answer
    publishing   the response body, and the record of what was really sent
    generation   one request from its headers to its last byte, past every fault point
    faults       where x what, and which requests a fault is for
    strikes      the acts of a fault
    connection   the TCP connection under a request
    request_log  what was asked, published and freed, and when
    metrics      the Prometheus text
    state        one replica's engines, faults and log
    endpoint     the routes of the four APIs; pages: the other routes of vLLM; control: the simulator's own
    replica      the ASGI app; server: uvicorn around it; process: one replica as a child process
"""
