"""The fault suite: every point of the token loop broken on purpose, and judged by evidence from outside (R17, R18).

    points        what can be broken: kind x place x API x streamed or not x which attempt
    expectations  what a client may be left with at each point
    apis          one small request for each API, and where its answer keeps the text
    client        one HTTP/1.1 connection that keeps every byte with its time
    answers       what those bytes say, read by a reader that is on purpose not the gateway's
    evidence      everything that was seen of one request from outside the processor
    invariants    the promises, one function each; checker asks them all
    gateway       a real Envoy and a real processor as processes that can be killed one by one
    stage         replicas, links and a tool around it; observation reads what they say
    rounds        points broken together; acts are the ways of breaking what requests share
    suite         a whole run, from a seed to its verdict
    trace         one request on disk; replay runs it again, through the pure core exactly
    report        what a person opens; picture is the timeline in it, pages turns templates into text
    storm/        virtual time: whole pools of gateways and replicas in the pure core

Nothing here is imported by the gateway. It knows the gateway only from outside: its commands, its listeners, its files.
"""
