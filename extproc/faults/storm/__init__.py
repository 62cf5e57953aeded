"""A pool of gateways and replicas in virtual time, driven by the real decisions: what a mass failure does to the rest (R15).

    agenda     virtual time: what will happen, in order
    decided    one request driven by decision/request.py's table; a subclass says what an effect does
    engine     one replica: slots, a queue, prompts read one after the other
    gateway    one processor process: its view of the replicas, its model's pool with the retry budget
    callers    who repeats what: the table under two policies, and a naive one
    study      one storm from its seed, and the whole study
    plot       the study as lines; publish writes them, a page and JSON

No I/O but in publish, no clock, and no randomness but from a seed. The simulation of fleets in ``tests/simulation`` stands on
agenda and decided too.
"""
